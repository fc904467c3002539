"""Turn order: which of a tenant's queues is served next, found without a walk over all of them.

The order is by priority, then by turn (`fairness`), then by name. Each queue has a place in it, and
the place is a lower bound: no queue is served before its place comes up.
The place may be out of date by then, because the queue has lost tasks or paid for turns. So each
queue is checked when its place comes up, and is moved back if it belongs further back. The caller
only has to report what brings a queue forward: `put`.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from heapq import heappop, heappush

from codeq_cluster.core.fairness import Turns
from codeq_cluster.core.task import PRIORITY_MAX, PRIORITY_MIN

# Outdated places are dropped when they come up, or all at once when they outnumber the queues. This
# many are always allowed.
_OUTDATED_MIN = 64


class TurnOrder:
    """The queues of one tenant in the order in which their tasks are handed out.

    Memory: ~300 bytes per queue.

    Attributes:
        parked: The queues that are left out.

    Args:
        busy: The queues that have work, kept by the caller; others are forgotten in time.
        priority: Returns the priority of a queue's first ready task, or None when it has none.
    """

    def __init__(
        self, turns: Turns, busy: AbstractSet[str], priority: Callable[[str], int | None]
    ) -> None:
        self.priority = priority
        self.parked: set[str] = set()
        self._turns = turns
        self._busy = busy
        self._bands = [_Band() for _ in range(PRIORITY_MIN, PRIORITY_MAX + 1)]
        self._places: dict[str, tuple[int, int]] = {}  # Band, and payments there.
        self._entries = 0
        self._begun = turns.begun

    def put(self, queue: str, priority: int) -> None:
        """Note that the queue's first task may now have this priority, or a lower one."""
        band = PRIORITY_MAX - priority
        place = self._places.get(queue)
        if place is None or band < place[0]:
            self._place(queue, band, self._turns.paid(queue))

    def park(self, queue: str) -> None:
        """Leave out a queue from which nobody may claim, until the caller puts it again."""
        self._places.pop(queue, None)
        self.parked.add(queue)

    def first(self, look: Callable[[str], int | None]) -> str | None:
        """Return the queue to serve next, or None.

        Args:
            look: Returns the priority at which a queue has a task to give, at most the one it was
                put at. None leaves the queue out until it is put again.
        """
        turns = self._turns
        if self._begun != turns.begun:
            self._begun = turns.begun
            self._rebuild()
        for number, band in enumerate(self._bands):
            while queues := band.first(turns.time):
                queue = queues[0]
                if self._is_here(queue, number, band):
                    priority = look(queue)
                    if priority is None:
                        self._places.pop(queue, None)
                    else:
                        paid = turns.paid(queue)
                        if priority == PRIORITY_MAX - number and paid == band.paid:
                            return queue
                        heappop(queues)
                        self._entries -= 1
                        self._place(queue, PRIORITY_MAX - priority, paid)
                        continue
                heappop(queues)
                self._entries -= 1
        return None

    def _is_here(self, queue: str, number: int, band: _Band) -> bool:
        """Return whether the place of a queue that came up is still here."""
        place = self._places.get(queue)
        if place is None or place[0] != number:
            return False
        return max(place[1], self._turns.time) == band.paid

    def _place(self, queue: str, band: int, paid: int) -> None:
        self._places[queue] = band, paid
        self._bands[band].add(queue, paid, self._turns.time)
        self._entries += 1
        if self._entries > 2 * len(self._busy) + _OUTDATED_MIN:
            self._rebuild()

    def _rebuild(self) -> None:
        """Drop outdated places."""
        turns, busy = self._turns, self._busy
        for band in self._bands:
            band.clear()
        self._places = {
            queue: (place[0], turns.paid(queue))
            for queue, place in self._places.items()
            if queue in busy
        }
        for queue, (number, paid) in self._places.items():
            self._bands[number].add(queue, paid, turns.time)
        self._entries = len(self._places)


class _Band:
    """The queues of one priority: those with an equal turn now, the others by their payments.

    Attributes:
        paid: Payments of the queues that `first` returned last.
    """

    __slots__ = ("_ahead", "_due", "_payments", "paid")

    def __init__(self) -> None:
        self._due: list[str] = []  # A heap of names, like each list in `_ahead`.
        self._ahead: dict[int, list[str]] = {}
        self._payments: list[int] = []  # A heap of the keys above.
        self.paid = 0

    def add(self, queue: str, paid: int, time: int) -> None:
        """Add a queue with these payments at the present time."""
        if paid <= time:
            heappush(self._due, queue)
        elif paid in self._ahead:
            heappush(self._ahead[paid], queue)
        else:
            self._ahead[paid] = [queue]
            heappush(self._payments, paid)

    def first(self, time: int) -> list[str]:
        """Return the heap of the queues that have paid least; empty when there are none."""
        while self._payments and self._payments[0] <= time:
            self._join(heappop(self._payments))
        if self._due:
            self.paid = time
            return self._due
        while self._payments:
            queues = self._ahead[self._payments[0]]
            if queues:
                self.paid = self._payments[0]
                return queues
            del self._ahead[heappop(self._payments)]
        return self._due

    def clear(self) -> None:
        """Forget every queue."""
        self._due.clear()
        self._ahead.clear()
        self._payments.clear()

    def _join(self, paid: int) -> None:
        """Make the queues with these payments due; the smaller heap moves, mostly an empty one."""
        fewer, more = self._ahead.pop(paid), self._due
        if len(fewer) > len(more):
            fewer, more = more, fewer
        for queue in fewer:
            heappush(more, queue)
        self._due = more
