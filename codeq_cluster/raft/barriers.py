"""Barriers: proof that this node led, and had applied everything committed, after the question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from codeq_cluster.raft.electorate import Electorate

Done = Callable[[bool], None]


@dataclass(slots=True)
class _Round:
    """One quorum round and who waits for it."""

    number: int
    waiting: list[Done]
    confirmed_by: set[str]
    index: int


class Barriers:
    """The quorum rounds of one leader; everyone who waits shares them.

    A round is a heartbeat under a number that the answers repeat. A question waits for a round
    that starts after it, so an answer that was on its way already proves nothing.
    """

    def __init__(self, electorate: Electorate) -> None:
        self._electorate = electorate
        self._waiting: list[Done] = []
        self._running: _Round | None = None
        self._confirmed: list[_Round] = []
        self.number = 0

    @property
    def wanted(self) -> bool:
        """Tell whether a new round should start: someone waits and none is under way."""
        return bool(self._waiting) and self._running is None

    @property
    def open(self) -> bool:
        """Return whether anybody waits for an answer."""
        return bool(self._waiting or self._running or self._confirmed)

    def ask(self, done: Done) -> None:
        """Add a question; `done` runs once, within a turn."""
        self._waiting.append(done)

    def start(self, *, index: int, node_id: str) -> None:
        """Start the round for all who wait: the state must reach `index` besides."""
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
        """Count again by another membership: whoever was waited for may vote no more."""
        if self._running is not None:
            self._settle(self._running)

    def release(self, applied: int) -> None:
        """Answer every confirmed round whose index the state has reached."""
        while self._confirmed and self._confirmed[0].index <= applied:
            for done in self._confirmed.pop(0).waiting:
                done(True)

    def fail(self) -> None:
        """Answer everyone: this node does not lead."""
        rounds = [*self._confirmed, *([self._running] if self._running else [])]
        waiting = [done for each in rounds for done in each.waiting] + self._waiting
        self._confirmed, self._running, self._waiting = [], None, []
        for done in waiting:
            done(False)

    def _settle(self, running: _Round) -> None:
        confirmed = sum(map(self._electorate.votes, running.confirmed_by))
        if confirmed >= self._electorate.majority:
            self._confirmed.append(running)
            self._running = None
