"""State exchange: which snapshots a replica takes, and which part of its log stays beside one."""

from __future__ import annotations

from codeq_cluster.raft.journal import Rows, rows_after_snapshot, rows_from
from codeq_cluster.raft.ports import LogStore
from codeq_cluster.raft.replica import Replica


def wants(replica: Replica, index: int, term: int) -> bool:
    """Return whether a snapshot of that entry takes the replica forward.

    A replica with a diverged state takes any snapshot that its log continues.
    """
    journal = replica.journal
    if replica.divergence.wrong_at:
        return index >= journal.first
    if replica.context.rules.newer_snapshots_only and index <= journal.commit:
        return False
    return journal.term_at(index) != term


def wanted_from(replica: Replica) -> int:
    """Return the lowest entry a useful snapshot may end with: this log has what follows it."""
    return replica.journal.first if replica.divergence.wrong_at else 0


def rows_beside(replica: Replica, store: LogStore, index: int, term: int, members: bytes) -> Rows:
    """Return the log's rows that belong beside a snapshot's state.

    Term and vote stay; so does the log after the snapshot, if it is the snapshot's own.

    Args:
        replica: It must be paused, or the log may change.
        store: The log's rows.
        index: Of the last entry in the snapshot's state.
        term: Of that entry.
        members: The row with the membership at that entry.
    """
    journal, rules = replica.journal, replica.context.rules
    vote: tuple[int, str | None] = (journal.term, journal.voted_for)
    if term > journal.term or not rules.keep_the_vote:
        # The snapshot's leader was elected in a newer term, in which this node has not voted yet.
        vote = (term, None)
    keep = rules.keep_the_suffix and journal.term_at(index) == term
    return rows_after_snapshot(
        index,
        term,
        vote_term=vote[0],
        voted_for=vote[1],
        kept=rows_from(store, index) if keep else (),
        members=members,
    )
