"""Fairness: whose turn it is when a claim takes from several queues at once.

This is weighted round robin by virtual time (start-time fair queueing). Serving a queue costs it
1/weight, and of the queues with work at the best priority, the one that has paid least is served.
An idle queue does not save up turns: it joins at the time of the queues being served.

Between two turns of queue i, and before its first, each other queue j is served at most
`ceil(w_j / w_i) + 1` times. This bound holds for queues that keep having work at the best priority,
and for claims that may take from all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import lcm

from codeq_cluster.core.items import WEIGHT_MAX

# Queues remembered per tenant and shard: 64 Ki x ~200 bytes = 13 MiB at the very most. Queues that
# have paid no more than the present time go first, which changes nothing. If that is not enough,
# all queues restart at zero. With more queues than this, all with work, some might never be served.
QUEUES_MAX = 65_536

_TURN = lcm(*range(1, WEIGHT_MAX + 1))  # Divisible by every weight without remainder.


class Turns:
    """The queues of one tenant in one shard; kept by the leader in memory, fair from its start.

    Attributes:
        time: The present virtual time; it only grows.
        begun: How often all queues were reset. Between resets, a queue's payments only grow.
    """

    __slots__ = ("_paid", "begun", "time")

    def __init__(self) -> None:
        self._paid: dict[str, int] = {}
        self.time = 0
        self.begun = 0

    def due(self, queues: Iterable[str]) -> str:
        """Return the queue to serve; among equal payments, the first in order."""
        return min(queues, key=self.paid)

    def paid(self, queue: str) -> int:
        """Return the queue's payments, at least the present time."""
        return max(self._paid.get(queue, 0), self.time)

    def served(self, queue: str, *, weight: int) -> None:
        """Note that one task of the queue is handed out; `weight` is 1 to `WEIGHT_MAX`."""
        assert 1 <= weight <= WEIGHT_MAX
        self.time = self.paid(queue)
        if len(self._paid) >= QUEUES_MAX and queue not in self._paid:
            self._forget()
        self._paid[queue] = self.time + _TURN // weight

    def _forget(self) -> None:
        time = self.time
        self._paid = {queue: paid for queue, paid in self._paid.items() if paid > time}
        # Half of the room must be free afterwards; otherwise the next call would scan all queues
        # again.
        if len(self._paid) > QUEUES_MAX // 2:
            self._paid.clear()
            self.begun += 1
