"""Read index: proof that this node led and had applied all that was committed, when asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from codeq_cluster.raft.members import Voters

Done = Callable[[bool], None]


@dataclass(slots=True)
class _Round:
    """One quorum round and the reads that wait for it."""

    number: int
    waiting: list[Done]
    confirmed_by: set[str]
    index: int


class ReadIndex:
    """One leader's quorum rounds; all waiting reads share them.

    A round is a heartbeat whose number the answers repeat. A question waits for a round that starts
    after it, because an answer already on its way proves nothing.

    Attributes:
        number: Of the latest round.
        open: A read still waits for its answer.
    """

    def __init__(self, voters: Voters) -> None:
        self._voters = voters
        self._waiting: list[Done] = []
        self._running: _Round | None = None
        self._confirmed: list[_Round] = []
        self.number = 0
        self.open = False

    @property
    def wanted(self) -> bool:
        """Return whether a new round should start: a read waits and no round is under way."""
        return bool(self._waiting) and self._running is None

    def ask(self, done: Done) -> None:
        """Add a question; `done` runs once, within a turn."""
        self._waiting.append(done)
        self.open = True

    def start(self, *, index: int, node_id: str) -> None:
        """Start the round for all waiting reads; the state must also reach `index`."""
        self.number += 1
        self._running = _Round(self.number, self._waiting, {node_id}, index)
        self._waiting = []
        self._settle(self._running)

    def answered(self, peer: str, number: int) -> None:
        """Note that the peer repeated round `number` in the current term."""
        running = self._running
        if running is not None and number >= running.number:
            running.confirmed_by.add(peer)
            self._settle(running)

    def recount(self) -> None:
        """Count the votes again after a membership change: a missing voter may no longer be one."""
        if self._running is not None:
            self._settle(self._running)

    def release(self, applied: int) -> None:
        """Answer every confirmed round whose index the state has reached."""
        while self._confirmed and self._confirmed[0].index <= applied:
            for done in self._confirmed.pop(0).waiting:
                done(True)
        self.open = bool(self._waiting or self._running or self._confirmed)

    def fail(self) -> None:
        """Answer every waiting read: this node does not lead."""
        rounds = [*self._confirmed, *([self._running] if self._running else [])]
        waiting = [done for each in rounds for done in each.waiting] + self._waiting
        self._confirmed, self._running, self._waiting = [], None, []
        self.open = False
        for done in waiting:
            done(False)

    def _settle(self, running: _Round) -> None:
        confirmed = sum(map(self._voters.votes, running.confirmed_by))
        if confirmed >= self._voters.majority:
            self._confirmed.append(running)
            self._running = None
