"""Status: a group's state as operators see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from codeq_cluster.raft.replica import Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatus:
    """One other member.

    Attributes:
        voter: It counts for a majority.
        match_index: Last entry it is known to hold durably; 0 unless this node leads.
    """

    id: str
    voter: bool
    connected: bool
    match_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """One group at one instant.

    Attributes:
        ready: This node leads and its state holds every entry committed before its term.
        known_commit: The highest commit index this node has heard of. It may lack entries up to
            there, and so must not count them as committed itself.
        digest: Hex, of the state at `applied_index`.
        log_bytes: Of the entries kept, payloads only.
        leader_changes: How often the known leader changed since the start, including to none.
        voting: This node counts for a majority.
        preferred: The node that should lead when it can.
        changing: The newest membership is not known to be committed.
        counters: Dropped and refused messages, by reason.
        in_doubt: Voters whose state differs, while no majority is known to agree with this one.
    """

    shard: int
    is_leader: bool
    ready: bool
    leader: str | None
    term: int
    commit_index: int
    known_commit: int
    applied_index: int
    digest: str
    log_bytes: int
    log_first: int
    log_last: int
    leader_changes: int
    voting: bool
    preferred: str | None
    changing: bool
    peers: tuple[PeerStatus, ...]
    counters: Mapping[str, int]
    in_doubt: tuple[str, ...] = ()


def describe(replica: Replica, *, running: bool, ready: bool) -> GroupStatus:
    """Return the status of a replica.

    Args:
        replica: It has been loaded.
        running: It takes turns.
        ready: It leads, and has applied everything of earlier terms.
    """
    voters, engine = replica.voters, replica.engine
    journal, divergence = replica.journal, replica.divergence
    return GroupStatus(
        shard=replica.shard,
        is_leader=running and engine.leads,
        ready=running and ready,
        leader=engine.leader if running else None,
        term=engine.term,
        commit_index=engine.commit_index,
        known_commit=max(engine.commit_index, replica.known_commit),
        applied_index=replica.applier.index,
        digest=replica.applier.digest.hex(),
        log_bytes=journal.log_bytes,
        log_first=journal.first,
        log_last=journal.last,
        leader_changes=replica.leader_changes,
        voting=voters.voting,
        preferred=voters.preferred,
        changing=voters.index > replica.applier.index,
        peers=tuple(
            PeerStatus(
                id=peer,
                voter=voters.votes(peer),
                # A replica that is out tells its engine nothing, but knows its links.
                connected=peer in replica.links.connected,
                match_index=engine.match_index(peer),
            )
            for peer in voters.peers
        ),
        counters=dict(replica.counters),
        in_doubt=divergence.differing if divergence.open else (),
    )
