"""Time index: the rows of one shard that say when something is due, in order of time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from codeq_cluster.broker.engine.window import Read, Window
from codeq_cluster.codec import keyspace
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.core.task_ids import tag_of

_OTHERS = 4  # Behind a tenant's backlog, others have one part in so many of what is acted on.
_LOOKED_AT_MAX = 64
_SINCE_MS = 1000, 100  # How long something is due that is looked for behind a backlog.


class TimeIndex:
    """Windows on the leases, the other timers of tasks, and the ends of items.

    Args:
        read: Reads the shard's rows; see `window.Read`.

    Attributes:
        windows: By family.
        has_new_first: The next timer may be due earlier than `next_due_ms` said last.
    """

    def __init__(self, read: Read) -> None:
        def window(prefix: bytes) -> Window:
            start, end = keyspace.prefix_range(prefix)
            return Window(start, end, read)

        self._read = read
        self._leases = window(keyspace.LEASE_PREFIX)
        self._timers = window(keyspace.TTL_PREFIX)
        self._expiries = window(keyspace.EXPIRY_PREFIX)
        self.windows = {
            Family.LEASE: self._leases,
            Family.TTL: self._timers,
            Family.EXPIRY: self._expiries,
        }
        self.has_new_first = False

    def next_due_ms(self, *, leases_from_ms: int) -> int | None:
        """Return when the next timer is due, Unix milliseconds; leases from `leases_from_ms` on."""
        self.has_new_first = False
        due: list[int] = []
        if self._expiries.first() is not None:
            due += map(keyspace.item_timer_ms, islice(self._known_expiries(), 1))
        timer = self._timers.first()
        if timer is not None:
            due.append(keyspace.timed_parts(timer)[0])
        lease = self._leases.first()
        if lease is not None:
            due.append(max(leases_from_ms, keyspace.timed_parts(lease)[0]))
        return min(due, default=None)

    def tasks(self, count: int, *, now_ms: int, leases_too: bool) -> list[tuple[int, str, bytes]]:
        """Return (Unix milliseconds, task id, timer) of tasks that are due, oldest first.

        If there are more than `count`, some are of tenants that have none among the oldest: the
        backlog of one tenant does not make the timers of another late.
        """
        found: list[tuple[int, str, bytes]] = []
        full: list[bytes] = []
        for window, prefix in (
            (self._timers, keyspace.TTL_PREFIX),
            (self._leases, keyspace.LEASE_PREFIX),
        )[: 1 + leases_too]:
            some = _due(islice(window, count), now_ms)
            found += some
            if len(some) == count:
                full.append(prefix)
        found.sort()
        room = count // _OTHERS
        if not full or not room:
            return found[:count]
        others = self._others(found, count, full, now_ms=now_ms)[:room]
        return found[: count - len(others)] + others

    def _others(
        self,
        found: list[tuple[int, str, bytes]],
        count: int,
        full: list[bytes],
        *,
        now_ms: int,
    ) -> list[tuple[int, str, bytes]]:
        """Return some that are due behind the oldest, of tenants that have none among these."""
        busy = {tag_of(task_id) for _, task_id, _ in found[:count]}
        behind = found[count:]
        last_ms = found[count - 1][0]
        for prefix in full:
            for from_ms in (last_ms + 1, *(now_ms - since_ms for since_ms in _SINCE_MS)):
                if last_ms < from_ms <= now_ms:
                    start, end = keyspace.timed_range(prefix, from_ms, now_ms + 1)
                    behind += _due(self._read(start, end, _LOOKED_AT_MAX)[0], now_ms)
        return sorted({each for each in behind if tag_of(each[1]) not in busy})

    def items(self, count: int, *, now_ms: int) -> list[bytes]:
        """Return the timers of at most `count` items that have ended, oldest first."""
        expiries = islice(self._known_expiries(), count)
        return [key for key in expiries if keyspace.item_timer_ms(key) <= now_ms]

    def first(self, *, now_ms: int, leases_too: bool) -> bytes | None:
        """Return the timer that an advance of one acts on; None if nothing is due."""
        tasks = self.tasks(1, now_ms=now_ms, leases_too=leases_too)
        if tasks:
            return tasks[0][2]
        items = self.items(1, now_ms=now_ms)
        return items[0] if items else None

    def pass_over(self, timer: bytes) -> None:
        """Forget a timer, although its row stays, for as long as this index lives."""
        self.windows[keyspace.family(timer)].remove(timer)

    def _known_expiries(self) -> Iterator[bytes]:
        """Yield the timers of items, except those written by a newer version."""
        return (key for key in self._expiries if keyspace.knows_kind(key))


def _due(keys: Iterable[bytes], now_ms: int) -> list[tuple[int, str, bytes]]:
    found: list[tuple[int, str, bytes]] = []
    for key in keys:
        when_ms, task_id = keyspace.timed_parts(key)
        if when_ms > now_ms:
            break
        found.append((when_ms, task_id, key))
    return found
