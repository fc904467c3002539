"""Busy queues: one tenant's queues with ready tasks on one shard, in the order of claims.

A claim of any command needs two answers. The node with the request asks which of its shards has the
oldest task of the best priority (`oldest`). The shard's leader asks whose turn it is (`order`).
Each has its own order, in which the places are lower bounds (see `TurnOrder`). So adding or
removing a task costs a comparison, and a look costs as much as has changed since the last one.

The counters show which queues have tasks. If a queue had tasks when the view was made, at a start,
its first task must be read from the store: these queues are `unread`. A look reads some of them,
and the engine reads the rest between other work. Until then, looks consider only the read queues.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from heapq import heappop, heappush, heapreplace

from codeq_cluster.broker.engine.window import Window
from codeq_cluster.codec import keyspace
from codeq_cluster.core.fairness import Turns
from codeq_cluster.core.task import PRIORITY_MAX
from codeq_cluster.core.turn_order import TurnOrder

# Queues read in one look once none of the known ones are left: more than the largest claim takes
# from. 128 x up to 50 us.
READS_MAX = 128
# Unread queues that one look takes in: first those that need a read, then all together. A claim
# looks at every shard of its node: 32 x up to 50 us, and 256 x 4 us.
UNREAD_READS_MAX = 32
UNREAD_MAX = 256

_SEQ_BITS = 64
_OUTDATED_MIN = 64  # See `TurnOrder`.


class BusyQueues:
    """Made at the first claim of any command of a tenant.

    Memory: ~600 bytes per queue, including the turn order.

    Attributes:
        order: The turn order, for claims.
        unread: Queues with work whose first task is not known.

    Args:
        names: The queues with work, kept by the caller: see `left`.
        window: Returns the window on the ready tasks of a queue that has work.
    """

    def __init__(
        self,
        names: AbstractSet[str],
        turns: Turns,
        *,
        window: Callable[[str], Window],
        is_open: Callable[[str], bool],
    ) -> None:
        self.order = TurnOrder(turns, names, self._priority)
        self.unread: dict[str, None] = dict.fromkeys(names)
        self._names = names
        self._window = window
        self._is_open = is_open
        self._ranks: dict[str, int] = {}  # A lower bound of the rank of each queue's first task.
        self._by_rank: list[tuple[int, str]] = []  # A heap with stale entries.
        self._reads_left = 0

    def read(self) -> None:
        """Start a look: read the next unread queues, at least until one has a task to give."""
        self._reads_left = UNREAD_READS_MAX
        unread = self.unread
        entered = 0
        while unread:
            if self._by_rank:
                if entered >= UNREAD_MAX or self._reads_left <= 0:
                    break
            elif self._reads_left <= 0:
                self._reads_left = 1
            queue = next(iter(unread))
            del unread[queue]
            self._enter(queue)
            entered += 1
        self._reads_left = READS_MAX

    def oldest(self) -> tuple[int, int] | None:
        """Return (priority, seq) of the first task among the queues that may be claimed from."""
        self.read()
        heap, ranks = self._by_rank, self._ranks
        while heap:
            rank, queue = heap[0]
            if ranks.get(queue) != rank:
                heappop(heap)
            elif not self._is_open(queue):
                heappop(heap)
                del ranks[queue]
                self.order.park(queue)
            else:
                now = self._rank(queue)
                if now == rank:
                    return PRIORITY_MAX - (rank >> _SEQ_BITS), rank & ((1 << _SEQ_BITS) - 1)
                if now is None:
                    heappop(heap)
                    del ranks[queue]
                else:
                    ranks[queue] = now
                    heapreplace(heap, (now, queue))
            if not heap and self.unread:
                self.read()
        return None

    def added(self, queue: str, key: bytes) -> None:
        """Add a task that became ready; the queue has work."""
        if queue in self.unread or queue in self.order.parked:
            return
        self._stand(queue, _rank_of(key))

    def left(self, queue: str) -> None:
        """Drop a queue that has no work any more."""
        self.unread.pop(queue, None)
        self.order.parked.discard(queue)

    def opened(self, queue: str) -> None:
        """Look at a parked queue again: it may have become claimable."""
        if queue in self.order.parked:
            self.order.parked.discard(queue)
            if queue in self._names:
                self.unread[queue] = None

    # -- inside ----------------------------------------------------------------------------------

    def _enter(self, queue: str) -> None:
        """Place the queue in both orders by its first task."""
        if not self._is_open(queue):
            self.order.park(queue)
            return
        rank = self._rank(queue)
        if rank is not None:
            self._stand(queue, rank)

    def _stand(self, queue: str, rank: int) -> None:
        known = self._ranks.get(queue)
        if known is None or rank < known:
            self._ranks[queue] = rank
            heappush(self._by_rank, (rank, queue))
            if len(self._by_rank) > 2 * len(self._names) + _OUTDATED_MIN:
                self._drop_outdated()
        self.order.put(queue, PRIORITY_MAX - (rank >> _SEQ_BITS))

    def _drop_outdated(self) -> None:
        names = self._names
        self._ranks = {queue: rank for queue, rank in self._ranks.items() if queue in names}
        self._by_rank[:] = sorted((rank, queue) for queue, rank in self._ranks.items())

    def _priority(self, queue: str) -> int | None:
        rank = self._rank(queue)
        return None if rank is None else PRIORITY_MAX - (rank >> _SEQ_BITS)

    def _rank(self, queue: str) -> int | None:
        """Return the rank of a queue's first task, or None if it has none or stays unread."""
        if queue not in self._names:
            return None
        window = self._window(queue)
        if not window.known:
            if self._reads_left <= 0:
                self.unread[queue] = None
                return None
            self._reads_left -= 1
        key = window.first()
        return None if key is None else _rank_of(key)


def _rank_of(key: bytes) -> int:
    """Return a number that orders tasks of different queues: by priority, then by age."""
    priority, seq, _ = keyspace.pending_parts(key)
    return (PRIORITY_MAX - priority) << _SEQ_BITS | seq
