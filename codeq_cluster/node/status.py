"""Status: the shards as a node sees them, with their members' addresses."""

from __future__ import annotations

from codeq_cluster.broker.values import PeerView, ShardStatus
from codeq_cluster.membership.node_view import NodeMembers
from codeq_cluster.node.cluster_calls import ClusterCalls
from codeq_cluster.node.open_storage import OpenStorage
from codeq_cluster.node.replicas import Replicas
from codeq_cluster.raft.group import RaftGroup
from codeq_cluster.settings import LogSync, NodeSettings


class NodeStatus:
    """The shards of a node, as it sees them.

    Args:
        calls: Know since when a peer cannot be reached.
    """

    def __init__(
        self,
        settings: NodeSettings,
        storage: OpenStorage,
        replicas: Replicas,
        *,
        members: NodeMembers,
        calls: ClusterCalls,
    ) -> None:
        self._settings = settings
        self._syncer = storage.syncer
        self._replicas = replicas
        self._members = members
        self._peers = calls.handler

    def shards(self) -> list[ShardStatus]:
        """Return one status per shard."""
        log_sync = self._log_sync()
        return [self._shard(group, log_sync) for group in self._replicas.groups]

    def _log_sync(self) -> str:
        if self._syncer is None:
            return "none"
        return (LogSync.KERNEL if self._syncer.by_kernel else LogSync.THREAD).value

    def _shard(self, group: RaftGroup, log_sync: str) -> ShardStatus:
        settings, members = self._settings, self._members
        status = group.status()
        known = members.known()
        own = members.me
        leader = known.get(status.leader or "")
        return ShardStatus(
            shard_idx=status.shard,
            is_leader=status.is_leader,
            self_id=settings.node_id,
            self_addr=own.link,
            self_http_addr=own.http,
            voting=status.voting,
            preferred=status.preferred or "",
            changing=status.changing,
            leader_id=leader.id if leader else "",
            leader_addr=leader.link if leader else "",
            leader_http_addr=leader.http if leader else "",
            has_leader=leader is not None,
            term=status.term,
            commit_index=status.commit_index,
            applied_index=status.applied_index,
            digest=status.digest,
            log_bytes=status.log_bytes,
            level=group.level,
            knows=_knows(group, settings.node_id),
            durability=settings.raft.durability.value,
            log_sync=log_sync,
            aside=len(self._replicas.engines[status.shard].view.asides),
            peers=tuple(
                PeerView(
                    id=peer.id,
                    addr=known[peer.id].link,
                    http_addr=known[peer.id].http,
                    voter=peer.voter,
                    connected=peer.connected,
                    away_since_ms=0 if peer.connected else self._peers.away_since_ms(peer.id),
                    remedy="" if peer.connected else members.remedy(peer.id),
                    match_index=peer.match_index,
                    knows=_knows(group, peer.id),
                )
                for peer in status.peers
            ),
        )


def _knows(group: RaftGroup, node_id: str) -> int:
    """Return the newest formats on record for a node; 0 if it is not on record."""
    member = group.membership.of(node_id)
    return member.level if member is not None else 0
