"""Cluster: the requests and answers of the handlers of nodes, groups and formats."""

from __future__ import annotations

from msgspec.structs import replace

from codeq_cluster.api.openapi.types import (
    BodyFields,
    DescribedAnswer,
    DescribedBody,
    DescribedOperation,
    Fields,
    Operations,
    said,
)
from codeq_cluster.api.routes import cluster, membership, raft, upgrading
from codeq_cluster.api.schemas import requests
from codeq_cluster.api.schemas.cluster_views import (
    MembersChanged,
    Transferred,
    cluster_view,
    level_raised,
    member_shard,
)
from codeq_cluster.api.schemas.node_views import raft_view
from codeq_cluster.broker.values import PeerView, ShardStatus
from codeq_cluster.codec.levels import LEVEL_MAX
from codeq_cluster.codec.membership import ADDRESS, HTTP_ADDRESS, NODE_ID
from codeq_cluster.membership.service import Effect

_SHARD = ShardStatus(
    shard_idx=0,
    is_leader=True,
    self_id="n1",
    self_addr="10.0.0.1:7000",
    self_http_addr="http://10.0.0.1:8080",
    preferred="n1",
    leader_id="n1",
    leader_addr="10.0.0.1:7000",
    leader_http_addr="http://10.0.0.1:8080",
    has_leader=True,
    term=3,
    commit_index=1042,
    applied_index=1042,
    digest="9f2c1a7be0d34c55",
    log_bytes=65536,
    durability="fsync",
    log_sync="thread",
    peers=(PeerView(id="n2", http_addr="http://10.0.0.2:8080", connected=True, match_index=1042),),
)
_CLUSTER = cluster_view("orders", [_SHARD])
_AGREED = "The effect on each shard; repeating the request changes nothing more."
_RAISED = Effect(
    shard=0,
    leader="n1",
    voters=("n1",),
    voters_after=("n1",),
    learners_after=(),
    answering=1,
    changes=True,
    done=True,
    level_after=2,
    levels=(("n1", 2),),
)


def _changed(voters_after: tuple[str, ...], learners_after: tuple[str, ...]) -> DescribedAnswer:
    effect = Effect(
        shard=0,
        leader="n1",
        voters=("n1", "n2", "n3"),
        voters_after=voters_after,
        learners_after=learners_after,
        answering=len(voters_after),
        changes=True,
        done=True,
    )
    changed = MembersChanged(
        node_id="n4", dry_run=False, changed=True, shards=[member_shard(effect)]
    )
    return DescribedAnswer(_AGREED, changed)


def operations(shards: int) -> Operations:
    """Return the description of these handlers in a cluster with this number of shards."""
    return {
        raft.status: DescribedOperation(
            DescribedAnswer("The groups, by shard.", raft_view([_SHARD])), replicated=False
        ),
        cluster.cluster: DescribedOperation(
            DescribedAnswer(
                "The nodes and the shards.", replace(_CLUSTER, nodes=_CLUSTER.nodes[:1])
            ),
            replicated=False,
        ),
        cluster.transfer: DescribedOperation(
            DescribedAnswer(
                "The shard's leader now; `changed` is false if it was the leader before.",
                Transferred(shard=0, before="n1", leader="n2", changed=True),
            ),
            body=DescribedBody(requests.TransferBody, {"shard": 0, "to": "n2"}),
            errors=(cluster.no_such_shard(shards), cluster.NO_SUCH_NODE, cluster.NOT_TRANSFERRED),
        ),
        membership.join: DescribedOperation(
            _changed(("n1", "n2", "n3"), ("n4",)),
            body=DescribedBody(
                requests.JoinBody,
                {"nodeId": "n4", "addr": "10.0.0.4:7000", "httpAddr": "http://10.0.0.4:8080"},
            ),
            errors=membership.JOIN_REFUSALS,
        ),
        membership.remove: DescribedOperation(
            _changed(("n1", "n2"), ()),
            body=DescribedBody(requests.RemoveBody, {"nodeId": "n3"}),
            errors=membership.REMOVE_REFUSALS,
        ),
        upgrading.upgrade: DescribedOperation(
            DescribedAnswer(_AGREED, level_raised([_RAISED], level=2, dry_run=False, new=True)),
            body=DescribedBody(requests.UpgradeBody, {"dryRun": True}, may_miss=True),
            errors=upgrading.REFUSALS,
        ),
    }


def fields(shards: int) -> BodyFields:
    """Return the description of these bodies' fields beyond their types."""
    node_id = said("Id of the node.", pattern=f"^{NODE_ID.pattern}$")
    dry_run = said("Return the effect on each shard, and change nothing.")
    return {
        requests.TransferBody: Fields(
            required=("shard",),
            known={
                "shard": said("Number of the shard.", minimum=0, maximum=shards - 1),
                "to": said("Id of the node; absent for the peer that has most of the log."),
            },
        ),
        requests.JoinBody: Fields(
            required=("nodeId", "addr", "httpAddr"),
            known={
                "nodeId": node_id,
                "addr": said(
                    "host:port at which the other nodes reach it.", pattern=f"^{ADDRESS.pattern}$"
                ),
                "httpAddr": said(
                    "Base URL at which clients reach it.", pattern=f"^{HTTP_ADDRESS.pattern}$"
                ),
                "dryRun": dry_run,
            },
        ),
        requests.RemoveBody: Fields(
            required=("nodeId",), known={"nodeId": node_id, "dryRun": dry_run}
        ),
        requests.UpgradeBody: Fields(
            known={
                "level": said(
                    "Version of formats to enable; absent for the newest that any node knows.",
                    minimum=1,
                    maximum=LEVEL_MAX,
                ),
                "dryRun": dry_run,
            },
        ),
    }
