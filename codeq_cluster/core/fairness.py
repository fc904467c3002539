"""Fairness: whose turn it is when a claim takes from several queues at once.

Weighted round robin by virtual time (start-time fair queueing): serving a queue costs it 1/weight,
and of the queues that have work at the best priority the one that has paid least is served. A queue
that was idle does not save up turns: it joins at the time of those being served.

The bound, for queues that keep having work at the best priority and claims that may take from all
of them: between two turns of queue i, and before its first, each other queue j is served at most
`ceil(w_j / w_i) + 1` times.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import lcm

WEIGHT_MAX = 100
QUEUES_MAX = 4096  # Remembered, a tenant and shard; beyond it all begin anew.

_TURN = lcm(*range(1, WEIGHT_MAX + 1))  # Divides by every weight without a rest.


class Turns:
    """The queues of one tenant in one shard; kept by the leader in memory, fair from its start."""

    __slots__ = ("_paid", "_time")

    def __init__(self) -> None:
        self._paid: dict[str, int] = {}
        self._time = 0

    def due(self, queues: Iterable[str]) -> str:
        """Return the queue to serve, the first in order among those that have paid the same."""
        paid, time = self._paid, self._time
        return min(queues, key=lambda queue: max(paid.get(queue, time), time))

    def served(self, queue: str, *, weight: int) -> None:
        """Take note that one task of the queue is handed out; `weight` is 1 to `WEIGHT_MAX`."""
        assert 1 <= weight <= WEIGHT_MAX
        if len(self._paid) >= QUEUES_MAX and queue not in self._paid:
            self._paid.clear()
        self._time = max(self._paid.get(queue, self._time), self._time)
        self._paid[queue] = self._time + _TURN // weight
