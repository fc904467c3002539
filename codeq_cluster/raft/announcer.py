"""Announcer: tells followers the commit index if no entry does so soon."""

from __future__ import annotations

from codeq_cluster.raft.followers import Followers
from codeq_cluster.raft.replica import Replica

# The next entry tells the followers the commit index at no cost, so the leader waits this long for
# one. A follower on whose node a caller waits is told at once.
_ANNOUNCE_S = 0.02
_NEVER = float("inf")


class CommitAnnouncer:
    """A leader's announcements of its commit index.

    A connected follower that was sent every entry knows the commit index `_ANNOUNCE_S` after the
    leader, and at once if a caller on its node waits: a caller should not wait for a heartbeat.

    Attributes:
        due: When the announcement is due; infinite while there is nothing to announce.
    """

    def __init__(self, replica: Replica, followers: Followers) -> None:
        self._now = replica.context.now
        self._voters = replica.voters
        self._connected = replica.links.connected
        self._engine = replica.engine
        self._journal = replica.journal
        self._followers = followers
        self.due = _NEVER

    def announce(self) -> None:
        """Announce the commit index if that is due, or a caller waits for it."""
        peers = self._uninformed
        if not peers:
            self.due = _NEVER
            return
        now = self._now()
        if self.due == _NEVER:
            self.due = now + _ANNOUNCE_S
        if now >= self.due:
            self.due = _NEVER
        else:
            awaited = self._followers.awaited
            peers = [peer for peer in peers if awaited.get(peer)]
        if peers:
            self._engine.announce(peers)

    @property
    def _uninformed(self) -> list[str]:
        """Return the followers that were sent all entries, but not the newest commit index.

        The others learn it with their next entries, or when they can be reached again.
        """
        engine, informed, last = self._engine, self._followers.informed, self._journal.last
        commit = engine.commit_index()
        return [
            peer
            for peer in self._voters.peers
            if informed.get(peer, 0) < commit
            and peer in self._connected
            and engine.next_index(peer) > last
        ]
