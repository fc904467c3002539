"""Appends: a leader's entries, heartbeats and announced commits, as its followers get them."""

from __future__ import annotations

from collections.abc import Sequence

from codeq_cluster.raft.journal_rows import Entry
from codeq_cluster.raft.messages import Append
from codeq_cluster.raft.replica import Replica

# The next entry tells the followers the commit index at no cost, so the leader waits this long for
# one. A follower on whose node a caller waits is told at once.
_ANNOUNCE_S = 0.02
_NEVER = float("inf")


class AppendSender:
    """One leader's append messages.

    They promise nothing about this node's disk, so they leave at once. None says that an entry is
    committed before a majority holds it.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def send(self, peer: str, start: int, entries: Sequence[Entry], *, quiet: bool = False) -> None:
        """Send a follower entries; none for a heartbeat.

        Args:
            start: Index of the first entry, or of the next one that there will be.
            entries: In order, without a gap.
            quiet: Only a refusal needs an answer.
        """
        replica, engine, journal = self._replica, self._replica.engine, self._replica.journal
        prev_term = journal.term_at(start - 1)
        assert prev_term is not None, f"there is no entry {start - 1}"
        commit = engine.commit_index if replica.rules.tell_committed_only else journal.last
        replica.followers.informed[peer] = commit
        commands: list[bytes] = []
        terms: list[int] = []
        for command, _, term in entries:
            commands.append(command)
            terms.append(term)
        replica.outbox.send(
            peer,
            Append(
                term=engine.term,
                prev=start - 1,
                prev_term=prev_term,
                commit=commit,
                terms=terms,
                commands=commands,
                floor=replica.floor,
                round=replica.read_index.number,
                applied=replica.applier.index,
                digest=replica.applier.digest,
                quiet=quiet,
            ),
        )


class CommitAnnouncer:
    """A leader's announcements of its commit index.

    A connected follower that was sent every entry knows the commit index `_ANNOUNCE_S` after the
    leader, and at once if a caller on its node waits: a caller should not wait for a heartbeat.

    Attributes:
        due: When the announcement is due; infinite while there is nothing to announce.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        # The commit index that every follower knows, and the membership of these followers.
        self._announced = (0, 0)
        self.due = _NEVER

    def announce(self) -> None:
        """Announce the commit index if that is due, or a caller waits for it."""
        commit = self._replica.engine.commit_index
        if self._announced == (commit, self._replica.voters.index):
            return
        peers = self._uninformed(commit)
        if not peers:
            self.due = _NEVER
            return
        now = self._replica.now()
        if self.due == _NEVER:
            self.due = now + _ANNOUNCE_S
        if now >= self.due:
            self.due = _NEVER
        else:
            awaited = self._replica.followers.awaited
            peers = list(filter(awaited.get, peers))
        if peers:
            self._replica.engine.announce(peers)

    def _uninformed(self, commit: int) -> list[str]:
        """Return the followers that were sent all entries, but not the newest commit index.

        The others learn it with their next entries, or when they can be reached again.
        """
        replica, engine, last = self._replica, self._replica.engine, self._replica.journal.last
        informed, connected = replica.followers.informed, replica.links.connected
        peers: list[str] = []
        all_informed = True
        for peer in replica.voters.peers:
            if informed.get(peer, 0) >= commit:
                continue
            all_informed = False
            if peer in connected and engine.next_index(peer) > last:
                peers.append(peer)
        if all_informed:
            self._announced = (commit, replica.voters.index)
        return peers
