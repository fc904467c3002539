"""Cluster: the nodes and shards, from the reports of every node that can be reached."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict

from codeq_cluster.api.http.call import Call
from codeq_cluster.api.routes.cluster import ClusterNode, nodes_of
from codeq_cluster.broker.values import ShardStatus
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.membership.node_report import NodeReport, ShardReport
from codeq_cluster.ui.sources import Sources


class NodeRow(ClusterNode, rename="camel", kw_only=True):
    """A node; fields from its own report are unset while it cannot be reached.

    Attributes:
        addr: The link's address.
        voter: In every shard.
        leads: The shards it leads.
        missing: Why it is not ready.
    """

    version: str | UnsetType = UNSET
    started_at: str | UnsetType = UNSET
    disk_free_bytes: int | UnsetType = UNSET
    disk_bytes: int | UnsetType = UNSET
    memory_bytes: int | UnsetType = UNSET
    missing: tuple[str, ...] = ()


class ReplicaRow(Struct, rename="camel", kw_only=True):
    """A shard on one node.

    Attributes:
        lag: Entries it lacks, as its leader counts; unset while no leader reports.
        out: Why it takes no part; empty if it does.
    """

    node: str
    voter: bool
    connected: bool
    lag: int | UnsetType = UNSET
    applied_index: int | UnsetType = UNSET
    log_bytes: int | UnsetType = UNSET
    out: str = ""


class ShardRow(Struct, rename="camel", kw_only=True):
    """A shard.

    Attributes:
        leader: Empty while none is known.
        changing: A membership change is in progress.
    """

    shard: int
    leader: str
    preferred: str
    term: int
    commit_index: int
    level: int
    changing: bool
    durability: str
    replicas: list[ReplicaRow]


class ClusterLook(Struct, rename="camel", kw_only=True):
    """The whole cluster.

    Attributes:
        level: The version of the newest formats in use.
        backups: Whether this node has a place for them.
    """

    cluster_id: str
    level: int
    nodes: list[NodeRow]
    shards: list[ShardRow]
    backups: bool


async def look(call: Call, sources: Sources) -> ClusterLook:
    """Return the cluster as this node sees it."""
    shards = call.services.broker.shard_status()
    reports = await sources.reports()
    return ClusterLook(
        cluster_id=call.services.settings.cluster_id,
        level=max(shard.level for shard in shards),
        nodes=[_row(node, reports.get(node.id)) for node in nodes_of(shards)],
        shards=[_shard(shard, reports) for shard in shards],
        backups=call.services.cluster.backups is not None,
    )


def _row(node: ClusterNode, report: NodeReport | None) -> NodeRow:
    row = NodeRow(**asdict(node))
    if report is not None:
        row.version = report.version
        row.started_at = rfc3339(report.started_ms)
        row.disk_free_bytes = report.disk_free_bytes
        row.disk_bytes = report.disk_bytes
        row.memory_bytes = report.memory_bytes
        row.missing = report.missing
    return row


def _shard(status: ShardStatus, reports: Mapping[str, NodeReport]) -> ShardRow:
    on_nodes = {
        node: found
        for node, report in reports.items()
        if (found := _of(report, status.shard_idx)) is not None
    }
    leader = next((each for each in on_nodes.values() if each.leads), None)
    replicas = [
        ReplicaRow(node=status.self_id, voter=status.voting, connected=True),
        *(
            ReplicaRow(node=peer.id, voter=peer.voter, connected=peer.connected)
            for peer in status.peers
        ),
    ]
    for row in replicas:
        found = on_nodes.get(row.node)
        # A node that is away is not behind: what it lacks says how long it is gone.
        if leader is not None and row.connected:
            row.lag = 0 if found is leader else leader.lags.get(row.node, UNSET)
        if found is not None:
            row.applied_index = found.applied_index
            row.log_bytes = found.log_bytes
            row.out = found.out
    return ShardRow(
        shard=status.shard_idx,
        leader=status.leader_id,
        preferred=status.preferred,
        term=status.term,
        commit_index=max(
            (each.commit_index for each in on_nodes.values()), default=status.commit_index
        ),
        level=status.level,
        changing=status.changing,
        durability=status.durability,
        replicas=sorted(replicas, key=lambda row: row.node),
    )


def _of(report: NodeReport, shard: int) -> ShardReport | None:
    return next((each for each in report.shards if each.shard == shard), None)
