"""Placement: which shard a new task goes to when its id is ours to draw.

A good choice saves one of two things. A shard that this node leads saves the way to another node.
A shard that all nodes agree on saves entries of the log: an entry costs the same for one task as
for thirty, and tasks share it only if they reach one leader at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from codeq_cluster.broker.ports import Clock, Shards
from codeq_cluster.broker.requests import NewTask

# A queue of so few tasks on one shard is worked off in a moment; longer ones are spread evenly.
AHEAD_MAX = 256
# While a node has so many creates under way at once, it sends them where the other nodes do. One
# or two gain nothing from company, and more than that fill entries of their own.
MEET_MIN, MEET_MAX = 3, 64
# How long the nodes send their tasks to one shard before they go on to the next. Clocks that differ
# cost some of the gain and nothing else.
SLOT_MS = 500
# What comes in one slot may wait on one shard. Nodes count what waits a little differently, and a
# bound that is reached in every slot would part them.
MET_AHEAD_MAX = 4096
# Creates under way are counted over this and the one before: when an entry is applied, all of its
# callers are answered at once and none is under way.
WINDOW_MS = 125
# A larger payload costs more on its way to another node than it saves there.
CARRIED_BYTES_MAX = 16 * 1024
# So many tasks in a row go to one of the shards that a node leads.
TOGETHER = 64


class Placement:
    """Chooses shards for the tasks that one node is asked to create."""

    def __init__(self, shards: Shards, clock: Clock) -> None:
        self._shards = shards
        self._clock = clock
        self._placed = 0
        self._under_way = 0
        self._window = 0
        self._most = self._most_before = 0

    @contextmanager
    def under_way(self, items: Sequence[NewTask]) -> Iterator[None]:
        """Count new tasks as under way until the block ends."""
        count = len(items)
        self._under_way += count
        window = self._clock.monotonic_ms() // WINDOW_MS
        if window != self._window:
            self._most_before = self._most if window == self._window + 1 else 0
            self._window, self._most = window, 0
        self._most = max(self._most, self._under_way)
        try:
            yield
        finally:
            self._under_way -= count
            self._placed += count

    def shard(self, tenant: str, item: NewTask) -> int | None:
        """Return the shard for a task without an idempotency key; None: any will do.

        No shard is chosen whose queue is longer than the shortest by more than `AHEAD_MAX` tasks,
        or `MET_AHEAD_MAX` where nodes meet: producers that all ask one node fill no shard alone.
        """
        count = self._shards.count
        replicas = [self._shards.local(shard) for shard in range(count)]
        led = [shard for shard in range(count) if replicas[shard].leads]
        if len(led) == count == 1:
            return 0
        queue = item.command.lower()
        ready = [replica.ready(tenant, queue) for replica in replicas]
        shortest = min(ready)
        if self._meets(item):
            first = self._clock.wall_ms() // SLOT_MS
            return next(
                shard
                for shard in ((first + step) % count for step in range(count))
                if ready[shard] <= shortest + MET_AHEAD_MAX
            )
        led = [shard for shard in led if ready[shard] <= shortest + AHEAD_MAX]
        return led[self._placed // TOGETHER % len(led)] if led else None

    def _meets(self, item: NewTask) -> bool:
        """Return whether a task goes where the other nodes send theirs now."""
        busy = MEET_MIN <= max(self._most, self._most_before) <= MEET_MAX
        return busy and len(item.payload) <= CARRIED_BYTES_MAX
