"""Status: one shard as a node sees it, with its members' addresses."""

from __future__ import annotations

from codeq_cluster.broker.values import PeerView, ShardStatus
from codeq_cluster.membership.node_view import NodeMembers
from codeq_cluster.raft.group import RaftGroup
from codeq_cluster.settings import NodeSettings


def status_of(
    group: RaftGroup, *, members: NodeMembers, settings: NodeSettings, log_sync: str
) -> ShardStatus:
    """Return the status of a group.

    Args:
        group: Of this node.
        members: The cluster's members and their addresses.
        settings: The node's settings.
        log_sync: How the node's log is synced now.
    """
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
        peers=tuple(
            PeerView(
                id=peer.id,
                addr=known[peer.id].link,
                http_addr=known[peer.id].http,
                voter=peer.voter,
                connected=peer.connected,
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
