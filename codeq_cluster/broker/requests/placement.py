"""Placement: chooses the shard of a new task whose id this node draws.

A good choice saves one of two things. A shard led by this node saves the hop to another node. A
shard that all nodes agree on saves log entries, because an entry costs the same for one task as for
thirty. Tasks share an entry only if they reach one leader at the same time.
"""

from __future__ import annotations

from itertools import compress
from operator import attrgetter

from codeq_cluster.broker.ports import Clock, Shards
from codeq_cluster.core.new_task import Create

# A queue with fewer tasks on one shard empties in a moment; tasks of longer queues are spread
# evenly.
AHEAD_MAX = 256
# A node with this many creates under way sends them to the same shard as the other nodes. One or
# two creates gain nothing from sharing an entry, and more than 64 fill entries of their own.
MEET_MIN, MEET_MAX = 3, 64
# The time for which the nodes send their tasks to one shard before they move on to the next. Clocks
# that differ only cost some of the gain.
SLOT_MS = 500
# Tasks that may wait on the shared shard, enough for one slot. Nodes count waiting tasks a little
# differently: if every slot reached the bound, the nodes would choose different shards.
MET_AHEAD_MAX = 4096
# Creates under way are counted over this window and the one before. An applied entry answers all
# its callers at once, so at that instant none is under way.
WINDOW_MS = 125
# A larger payload costs more to send to another node than a shared entry saves.
CARRIED_BYTES_MAX = 16 * 1024
# Tasks in a row that go to one of the shards this node leads.
TOGETHER = 64
_LEADS = attrgetter("leads")


class Placement:
    """Chooses shards for the tasks that one node is asked to create."""

    def __init__(self, shards: Shards, clock: Clock) -> None:
        self._replicas = tuple(map(shards.local, range(shards.count)))
        self._clock = clock
        self._placed = 0
        self._under_way = 0
        self._window = 0
        self._most = self._most_before = 0

    def begin(self, count: int) -> None:
        """Count new tasks as under way, until as many `end`."""
        self._under_way += count
        window = self._clock.monotonic_ms() // WINDOW_MS
        if window != self._window:
            self._most_before = self._most if window == self._window + 1 else 0
            self._window, self._most = window, 0
        self._most = max(self._most, self._under_way)

    def end(self, count: int) -> None:
        """Stop counting tasks as under way."""
        self._under_way -= count
        self._placed += count

    def shard(self, tenant: str, item: Create) -> int | None:
        """Return the shard for a task without an idempotency key, or None if any will do.

        A shard is not chosen if its queue is longer than the shortest by more than `AHEAD_MAX`
        tasks, or by `MET_AHEAD_MAX` where nodes share a shard. So producers that all ask one node
        cannot fill one shard alone. Nodes share no shard without a known leader: its creates would
        wait for an election.
        """
        replicas = self._replicas
        count = len(replicas)
        if count == 1:
            return 0
        queue, turn = item.command.lower(), self._placed // TOGETHER
        led = list(compress(range(count), map(_LEADS, replicas)))
        meet = MEET_MIN <= max(self._most, self._most_before) <= MEET_MAX
        if not meet or len(item.payload) > CARRIED_BYTES_MAX:
            if not led:
                return None
            chosen = led[turn % len(led)]
            if replicas[chosen].ready(tenant, queue) <= AHEAD_MAX:
                return chosen  # It is not longer than any other queue by more.
            meet = False
        ready = [replica.ready(tenant, queue) for replica in replicas]
        shortest = min(ready)
        if meet:
            open_to_all = [
                replica.leader is not None and waiting <= shortest + MET_AHEAD_MAX
                for replica, waiting in zip(replicas, ready, strict=True)
            ]
            if any(open_to_all):
                slot = self._clock.wall_ms() // SLOT_MS
                return next(
                    shard
                    for shard in ((slot + step) % count for step in range(count))
                    if open_to_all[shard]
                )
        led = [shard for shard in led if ready[shard] <= shortest + AHEAD_MAX]
        return led[turn % len(led)] if led else None
