"""Cluster views: the nodes, the leader of each shard, and what a change does to them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from codeq_cluster.broker.values import PeerView, ShardStatus
from codeq_cluster.membership.service import Effect


class ClusterNode(Struct, rename="camel", kw_only=True):
    """One node; `leads` lists shards, `level` is the newest version of formats it knows."""

    id: str
    addr: str
    http_addr: str
    is_self: bool = msgspec.field(name="self")
    connected: bool
    voter: bool
    level: int
    leads: list[int]


class ClusterPeer(Struct, rename="camel"):
    """Another member of a shard's group."""

    id: str
    voter: bool
    connected: bool
    match_index: int


class ClusterShard(Struct, rename="camel", kw_only=True):
    """One shard; its leader is empty if none is known, `level` is the version of formats in use."""

    shard: int
    leader: str
    preferred: str
    changing: bool
    level: int
    term: int
    commit_index: int
    applied_index: int
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


class MemberShard(Struct, rename="camel", kw_only=True):
    """The effect of a change of nodes on one shard; `answering` counts `votersAfter`."""

    shard: int
    leader: str
    voters: Sequence[str]
    voters_after: Sequence[str]
    learners_after: Sequence[str]
    quorum: int
    quorum_after: int
    answering: int
    done: bool


class MembersChanged(Struct, rename="camel", kw_only=True):
    """The effect of a change of nodes, made or only previewed."""

    node_id: str
    dry_run: bool
    changed: bool
    shards: list[MemberShard]


class LevelShard(Struct, rename="camel"):
    """The effect of an upgrade on one shard."""

    shard: int
    leader: str
    level: int
    level_after: int
    done: bool


class LevelNode(Struct):
    """The newest version of formats that a node knows, in every shard."""

    id: str
    level: int


class LevelRaised(Struct, rename="camel", kw_only=True):
    """The effect of an upgrade; `level` is the version in use once it has been made."""

    level: int
    dry_run: bool
    changed: bool
    shards: list[LevelShard]
    nodes: list[LevelNode]


def cluster_view(cluster_id: str, shards: Sequence[ShardStatus]) -> ClusterStatus:
    """Render the nodes, and the leader of each shard."""
    return ClusterStatus(
        cluster_id=cluster_id,
        # A joining node must know the newest format that any shard uses.
        level=max(shard.level for shard in shards),
        nodes=_nodes(shards),
        shards=[
            ClusterShard(
                shard=shard.shard_idx,
                leader=shard.leader_id,
                preferred=shard.preferred,
                changing=shard.changing,
                level=shard.level,
                term=shard.term,
                commit_index=shard.commit_index,
                applied_index=shard.applied_index,
                peers=msgspec.convert(shard.peers, list[ClusterPeer], from_attributes=True),
            )
            for shard in shards
        ],
    )


def member_shard(effect: Effect) -> MemberShard:
    """Render the effect of a change of nodes on one shard."""
    return MemberShard(
        shard=effect.shard,
        leader=effect.leader,
        voters=effect.voters,
        voters_after=effect.voters_after,
        learners_after=effect.learners_after,
        quorum=len(effect.voters) // 2 + 1,
        quorum_after=len(effect.voters_after) // 2 + 1,
        answering=effect.answering,
        done=effect.done,
    )


def level_raised(effects: Sequence[Effect], *, level: int, dry_run: bool, new: bool) -> LevelRaised:
    """Render an upgrade of every shard; `new` is true if it changed one of them."""
    known: dict[str, int] = {}
    for node_id, knows in (each for effect in effects for each in effect.levels):
        known[node_id] = min(knows, known.get(node_id, knows))
    return LevelRaised(
        level=level,
        dry_run=dry_run,
        changed=new and not dry_run,
        shards=msgspec.convert(effects, list[LevelShard], from_attributes=True),
        nodes=[LevelNode(node_id, knows) for node_id, knows in sorted(known.items())],
    )


def _nodes(shards: Sequence[ShardStatus]) -> list[ClusterNode]:
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
        )
        for _, node in sorted(seen.items())
    ]
