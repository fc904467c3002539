"""Cluster calls: what this node asks of the other nodes, and answers when they ask."""

from __future__ import annotations

import time

from codeq_cluster.membership.node_view import NodeMembers
from codeq_cluster.node.base import NodeBase
from codeq_cluster.node.peer_handler import Method, PeerHandler
from codeq_cluster.node.recovery import Recovery
from codeq_cluster.node.replicas import Replicas
from codeq_cluster.ratelimit.limiter import BORROW, RateLimiter, RateLimits
from codeq_cluster.routing.ask_all import GATHER, AskAll
from codeq_cluster.routing.leaders import Leaders
from codeq_cluster.routing.leadership import TRANSFER, LeadershipTransfers
from codeq_cluster.routing.router import Router
from codeq_cluster.routing.shard_calls import ShardCalls
from codeq_cluster.wire import Mesh


class ClusterCalls:
    """Makes the parts that span the cluster.

    Attributes:
        router: Reaches every shard, wherever it is led.
        quotas: The rate limits of tenants.
        transfers: Transfers leaderships.
        gathering: Asks every node.
        handler: What this node does about its peers.
    """

    def __init__(
        self,
        base: NodeBase,
        replicas: Replicas,
        leaders: Leaders,
        *,
        mesh: Mesh,
        members: NodeMembers,
        recovery: Recovery,
    ) -> None:
        node_id, engines, groups = base.settings.node_id, replicas.engines, replicas.groups
        self.router = Router(
            node_id=node_id,
            engines=engines,
            leaders=leaders,
            calls=mesh,
            tracing=base.tracing,
            on_answered=base.metrics.forwarded,
        )
        self.quotas = RateLimiter(
            node_id=node_id,
            nodes=lambda: len(members.known()),
            replicas=engines,
            calls=mesh,
            limits=RateLimits(base.settings.rate_limit),
            now_ns=time.monotonic_ns,
            on_refused=base.metrics.rate_limited.inc,
            on_answered=base.metrics.forwarded,
        )
        self.transfers = LeadershipTransfers(
            node_id=node_id,
            count=len(engines),
            leaders=leaders,
            begin=lambda shard, peer: groups[shard].transfer(peer),
            calls=mesh,
        )
        self.gathering = AskAll(node_id=node_id, peers=members.connected, calls=mesh)
        methods: dict[str, Method] = {
            BORROW: self.quotas.serve,
            TRANSFER: self.transfers.serve,
            GATHER: self.gathering.serve,
            **recovery.methods,
            **members.methods,
        }
        self.handler = PeerHandler(
            groups,
            ShardCalls(engines, tracing=base.tracing),
            rest=replicas.rest,
            methods=methods,
            traced=base.tracing is not None,
            wall_ms=base.clock.wall_ms,
        )
