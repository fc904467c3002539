"""Cluster: the nodes, and the leader of each shard."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import NODEFAULT, UNSET, Struct, UnsetType
from msgspec.structs import replace

from codeq_cluster.api.declared.bodies import Body, Schema, field
from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.declared.wide import Int64
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, bad_request
from codeq_cluster.api.routes.audit import put_on_record
from codeq_cluster.auth import Access
from codeq_cluster.broker.values import PeerView, ShardStatus
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.settings import NodeSettings

ROUTES = Routes(__name__, __doc__, Access.OPERATOR)
RAFT = Routes("raft", "Raft: this node's view of its groups.", Access.ANY)

NO_SUCH_NODE = bad_request("invalid 'to' (no such node)", "no-such-node")
NOT_TRANSFERRED = ApiError(
    409, "leadership not transferred", "not-transferred", retryable=True
).because(
    "the node is away or behind, its replica is out (its /readyz says so, and why), the shard has "
    "no other voter, or another transfer is under way"
)


def no_such_shard(node: NodeSettings) -> ApiError:
    """Return the error for a number that no shard has."""
    return bad_request(f"invalid 'shard' (use 0 to {node.shards - 1})", "out-of-range")


class TransferBody(Body):
    """A transfer of a shard's leadership."""

    shard: int = field(
        "Number of the shard.",
        minimum=0,
        maximum=lambda node: node.shards - 1,
        refused=(no_such_shard,),
        default=NODEFAULT,
    )
    to: str | None = field(
        "Id of the node; absent for the peer that has most of the log.", refused=(NO_SUCH_NODE,)
    )


_TRANSFER = Schema(TransferBody)


class ClusterNode(Struct, rename="camel", kw_only=True):
    """One node; `leads` lists shards, `level` is the newest version of formats it knows.

    `awaySince` tells since when the answering node cannot reach it, `remedy` what to do if one of
    the two refuses the other.
    """

    id: str
    addr: str
    http_addr: str
    is_self: bool = msgspec.field(name="self")
    connected: bool
    voter: bool
    level: int
    leads: list[int]
    away_since: str | UnsetType = UNSET
    remedy: str | UnsetType = UNSET


class ClusterPeer(Struct, rename="camel"):
    """Another member of a shard's group."""

    id: str
    voter: bool
    connected: bool
    match_index: Int64


class ClusterShard(Struct, rename="camel", kw_only=True):
    """One shard; its leader is empty if none is known, `level` is the version of formats in use."""

    shard_idx: int = msgspec.field(name="shard")
    leader_id: str = msgspec.field(name="leader")
    preferred: str
    changing: bool
    level: int
    term: Int64
    commit_index: Int64
    applied_index: Int64
    peers: list[ClusterPeer]


class ClusterStatus(Struct, rename="camel", kw_only=True):
    """The cluster as one node sees it; `level` is the newest version of formats any shard uses."""

    cluster_id: str
    level: int
    nodes: list[ClusterNode]
    shards: list[ClusterShard]


class Transferred(Struct, kw_only=True):
    """The former leader of a shard, and the present one."""

    shard: int
    before: str = msgspec.field(name="from")
    leader: str
    changed: bool


class RaftPeer(Struct, rename="camel"):
    """Another member of a group; `awaySince` tells since when this node cannot reach it."""

    id: str
    http_addr: str
    connected: bool
    match_index: Int64
    away_since: str | UnsetType = UNSET


class RaftGroup(Struct, rename="camel"):
    """One Raft group as this node sees it; leader fields are empty if no leader is known."""

    shard_idx: int
    is_leader: bool
    self_id: str
    self_addr: str
    leader_id: str
    leader_addr: str
    leader_http_addr: str = msgspec.field(name="leaderHTTPAddr")
    has_leader: bool
    term: Int64
    commit_index: Int64
    applied_index: Int64
    digest: str
    log_bytes: Int64
    durability: str
    log_sync: str
    aside: int
    self_http_addr: str = msgspec.field(name="selfHTTPAddr")
    peers: list[RaftPeer]


class RaftStatus(Struct, rename="camel"):
    """Every group of this node."""

    enabled: bool
    num_groups: int
    groups: list[RaftGroup]


def _cluster(cluster_id: str, shards: Sequence[ShardStatus]) -> ClusterStatus:
    return ClusterStatus(
        cluster_id=cluster_id,
        # A joining node must know the newest format that any shard uses.
        level=max(shard.level for shard in shards),
        nodes=nodes_of(shards),
        shards=msgspec.convert(shards, list[ClusterShard], from_attributes=True),
    )


def raft_view(shards: Sequence[ShardStatus]) -> RaftStatus:
    """Render the local groups; each field is the status field of the same name."""
    groups = msgspec.convert(shards, list[RaftGroup], from_attributes=True)
    for group, shard in zip(groups, shards, strict=True):
        for peer, seen in zip(group.peers, shard.peers, strict=True):
            peer.away_since = _away_since(seen)
    return RaftStatus(enabled=True, num_groups=len(groups), groups=groups)


def _away_since(peer: PeerView) -> str | UnsetType:
    """Return since when a peer cannot be reached, as text."""
    return rfc3339(peer.away_since_ms) if peer.away_since_ms else UNSET


def nodes_of(shards: Sequence[ShardStatus]) -> list[ClusterNode]:
    """Return every node that a shard knows, by id, this one included."""
    own = shards[0]
    myself = PeerView(
        id=own.self_id,
        addr=own.self_addr,
        http_addr=own.self_http_addr,
        connected=True,
        voter=all(shard.voting for shard in shards),
        knows=min(shard.knows for shard in shards),
    )
    seen = {own.self_id: myself}
    for peer in (peer for shard in shards for peer in shard.peers):
        before = seen.get(peer.id, peer)
        # A node that is still a learner in any shard is not a full member.
        seen[peer.id] = replace(
            peer, voter=peer.voter and before.voter, knows=min(peer.knows, before.knows)
        )
    return [
        ClusterNode(
            id=node.id,
            addr=node.addr,
            http_addr=node.http_addr,
            is_self=node is myself,
            connected=node.connected,
            voter=node.voter,
            level=node.knows,
            leads=[shard.shard_idx for shard in shards if shard.leader_id == node.id],
            away_since=_away_since(node),
            remedy=node.remedy or UNSET,
        )
        for _, node in sorted(seen.items())
    ]


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
    aside=0,
    peers=(PeerView(id="n2", http_addr="http://10.0.0.2:8080", connected=True, match_index=1042),),
)
_CLUSTER = _cluster("orders", [_SHARD])


@RAFT("GET", "/raft/status", Answer("The groups, by shard.", raft_view([_SHARD])), replicated=False)
async def status(call: Call) -> HttpAnswer[RaftStatus]:
    """Return every local group, by shard."""
    return reply(raft_view(call.services.broker.shard_status()))


@ROUTES(
    "GET",
    "/admin/cluster",
    Answer("The nodes and the shards.", replace(_CLUSTER, nodes=_CLUSTER.nodes[:1])),
    replicated=False,
)
async def cluster(call: Call) -> HttpAnswer[ClusterStatus]:
    """Return the nodes and the shards as this node sees them."""
    services = call.services
    return reply(_cluster(services.settings.cluster_id, services.broker.shard_status()))


@ROUTES(
    "POST",
    "/admin/cluster/transfer",
    Answer(
        "The shard's leader now; `changed` is false if it was the leader before.",
        Transferred(shard=0, before="n1", leader="n2", changed=True),
    ),
    body=_TRANSFER,
    example={"shard": 0, "to": "n2"},
    errors=(NOT_TRANSFERRED,),
)
async def transfer(call: Call) -> HttpAnswer[Transferred]:
    """Transfer the leadership of a shard to a node, or to the peer that has most of its log.

    A shard's preferred node takes it back after a while, as long as it is up to date.
    """
    body = _TRANSFER.decode(call.text)
    settings = call.services.settings
    shard, to = body.shard, body.to or ""
    if not 0 <= shard < settings.shards:
        raise no_such_shard(settings)
    status = call.services.broker.shard_status()[shard]
    voters = {peer.id for peer in status.peers if peer.voter} | {status.self_id}
    if to and to not in voters:
        raise NO_SUCH_NODE
    done = await call.services.cluster.transfers.transfer(shard, to, timeout_s=call.timeout_s)
    if done.leader == done.before and to != done.before:
        raise NOT_TRANSFERRED
    changed = done.leader != done.before
    if changed:
        detail = f"{done.before} to {done.leader}"
        await put_on_record(call, "cluster.transfer", f"shard {shard}", detail=detail)
    return reply(Transferred(shard=shard, before=done.before, leader=done.leader, changed=changed))
