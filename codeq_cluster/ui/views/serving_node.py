"""Serving node: the parts of every view: the serving node, and the totals of waiting tasks."""

from __future__ import annotations

from msgspec import Struct

from codeq_cluster.api.http.call import Call
from codeq_cluster.auth import Role
from codeq_cluster.broker.queries.depths import plus
from codeq_cluster.core.task import Counters
from codeq_cluster.ui.sources import Sources

TENANT = (Role.VIEWER, Role.ADMIN)


class NodeLink(Struct, rename="camel", kw_only=True):
    """A node of the cluster, as the serving one sees it."""

    id: str
    url: str
    connected: bool
    own: bool


class ServingNode(Struct, rename="camel", kw_only=True):
    """The serving node.

    Attributes:
        leaderless: Shards without a known leader: it can neither change them nor read them safely.
        missing: Why it is not ready, for the operator.
    """

    node: str
    nodes: list[NodeLink]
    leaderless: list[int]
    shards: int
    missing: list[str]


class Totals(Struct, rename="camel", kw_only=True):
    """How many tasks of a tenant are in each state."""

    ready: int
    delayed: int
    in_progress: int
    dlq: int
    completed: int
    failed: int
    stored_bytes: int


def serving(call: Call) -> ServingNode:
    """Return the node's state."""
    shards = call.services.broker.shard_status()
    own = shards[0]
    links = {
        own.self_id: NodeLink(id=own.self_id, url=own.self_http_addr, connected=True, own=True)
    }
    for peer in (peer for shard in shards for peer in shard.peers):
        links[peer.id] = NodeLink(
            id=peer.id, url=peer.http_addr, connected=peer.connected, own=False
        )
    return ServingNode(
        node=own.self_id,
        nodes=[links[name] for name in sorted(links)],
        leaderless=[shard.shard_idx for shard in shards if not shard.has_leader],
        shards=len(shards),
        missing=call.services.broker.missing(in_full=Role.OPERATOR in call.identity.roles),
    )


async def totals(call: Call, sources: Sources) -> Totals | None:
    """Return the totals of the caller's tenant; None for a caller without one."""
    if call.identity.roles.isdisjoint(TENANT):
        return None
    queues = await depths(call.identity.tenant, sources)
    return totals_of(queues)


async def depths(tenant: str, sources: Sources) -> dict[str, Counters]:
    """Return the tenant's queues, at most a moment old."""
    return await sources.shared.of(("depths", tenant), 1, lambda: sources.depths.queues(tenant))


def totals_of(queues: dict[str, Counters]) -> Totals:
    """Return the sum of queues."""
    total = Counters()
    for counters in queues.values():
        total = plus(total, counters)
    return totals_view(total)


def totals_view(counters: Counters) -> Totals:
    """Render counters."""
    return Totals(
        ready=counters.ready,
        delayed=counters.delayed,
        in_progress=counters.leased,
        dlq=counters.dead,
        completed=counters.done,
        failed=counters.failed,
        stored_bytes=counters.stored_bytes,
    )
