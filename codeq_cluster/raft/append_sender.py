"""Append sender: a leader's entries and heartbeats, as its followers get them."""

from __future__ import annotations

from collections.abc import Sequence

from codeq_cluster.raft.followers import Followers
from codeq_cluster.raft.following import Following
from codeq_cluster.raft.journal import Entry
from codeq_cluster.raft.messages import Append
from codeq_cluster.raft.read_index import ReadIndex
from codeq_cluster.raft.replica import Replica


class AppendSender:
    """One leader's append messages.

    They promise nothing about this node's disk, so they leave at once. None says that an entry is
    committed before a majority holds it.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        read_index: ReadIndex,
        followers: Followers,
        following: Following,
    ) -> None:
        self._committed_only = replica.context.rules.tell_committed_only
        self._outbox = replica.outbox
        self._journal = replica.journal
        self._engine = replica.engine
        self._machine = replica.machine
        self._applier = replica.applier
        self._read_index = read_index
        self._followers = followers
        self._following = following

    def send(
        self, peer: str, *, prev: int, prev_term: int, entries: Sequence[Entry], quiet: bool
    ) -> None:
        """Send a follower the entries after `prev`; none for a heartbeat.

        Args:
            peer: The follower.
            prev: Index of the entry before the first.
            prev_term: Its term.
            entries: In order, without a gap.
            quiet: Only a refusal needs an answer.
        """
        commit = self._engine.commit_index() if self._committed_only else self._journal.last
        self._followers.informed[peer] = commit
        message = Append(
            term=self._engine.term(),
            prev=prev,
            prev_term=prev_term,
            commit=commit,
            terms=[entry[2] for entry in entries],
            commands=[entry[0] for entry in entries],
            floor=self._following.floor,
            round=self._read_index.number,
            applied=self._applier.index,
            digest=self._machine.digest,
            quiet=quiet,
        )
        self._outbox.send(peer, message)
