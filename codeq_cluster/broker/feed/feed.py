"""Feed: the events of all shards from this node's own logs, for watchers that resume anywhere.

The log is the same on every node, so a position in it is a place to resume at on any of them. While
somebody watches, each applied entry is decoded once, into a ring in memory. A watcher that is
further behind reads the log on disk, or what a peer's log still has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context

from codeq_cluster.broker.feed import cursor
from codeq_cluster.broker.feed.cursor import CursorExpired, OtherHistory, Position, check_of
from codeq_cluster.broker.feed.events import Event, EventFilter, events_of
from codeq_cluster.broker.feed.ring import Applied, Ring
from codeq_cluster.broker.ports import LogEntry, Shards
from codeq_cluster.codec import entries
from codeq_cluster.errors import NoLeader

log = logging.getLogger(__name__)

# Entries of this time are told together: at 1,000 events a second a watcher wakes 50 times.
GATHER_S = 0.02
LOOK_AGAIN_S = 1.0  # A log that cannot be read for the moment tells nothing when it can be again.
EVENTS_MAX = 256  # Of one look, and at least those of one entry; each has 4 KiB at most.
# Entries and events that one look compares with a filter, about a millisecond; then others go on.
LOOK_MAX = 1024
# One read of the log takes up to 5 ms of the loop; before the next one, others get as much of it.
PART_BYTES = 128 * 1024

# Returns the first entries of a shard after a position from another node's log, about so many bytes
# of them, but at least one; none if that log ends there, None if no other node has them.
Elsewhere = Callable[[int, Position, int], Awaitable[Sequence[LogEntry] | None]]


async def _nowhere(_shard: int, _after: Position, _bytes_max: int) -> None:
    """Return that no other node has an entry."""


class Feed:
    """The events of all shards, as this node applies them.

    Args:
        shards: This node's replicas are read; a leader says how far its log goes.
        failed: Called for what cannot be read.
        elsewhere: Asks the other nodes for entries that this node's log has no more.

    Attributes:
        generation: The number of the last gathering of entries.
    """

    def __init__(
        self, shards: Shards, *, failed: Callable[[], None], elsewhere: Elsewhere = _nowhere
    ) -> None:
        self._shards = shards
        self._failed = failed
        self._elsewhere = elsewhere
        self._rings = [
            Ring(shard, changed=self._changed, failed=failed) for shard in range(shards.count)
        ]
        self._watchers = 0
        self.generation = 0
        self._waiting: dict[asyncio.Future[None], None] = {}  # In the order of their coming.
        self._due: asyncio.TimerHandle | None = None
        self._reading = asyncio.Lock()
        self._asking = asyncio.Lock()

    @property
    def isolated(self) -> bool:
        """Return whether some shard's entries may not reach this node: watchers must move on."""
        shards = self._shards
        return shards.isolated or any(
            shards.local(shard).leader is None for shard in range(shards.count)
        )

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Decode entries as they are applied, until the last such block has ended."""
        self._watchers += 1
        if self._watchers == 1:
            for shard, ring in enumerate(self._rings):
                self._shards.local(shard).tap = ring.tap
        try:
            yield
        finally:
            self._watchers -= 1
            if not self._watchers:
                for shard, ring in enumerate(self._rings):
                    self._shards.local(shard).tap = None
                    ring.forget()
                if self._due is not None:
                    self._due.cancel()
                    self._due = None

    async def reader(self, only: EventFilter, after: str, *, deadline: float) -> Reader:
        """Return a reader of the events after a cursor; without one, of those from now on.

        Call it within `watched`.

        Raises:
            CursorInvalid: The text is no cursor.
            CursorExpired: No log has the entries after it.
            OtherHistory: It is of another log.
            NoLeader: This node may be behind, or hears too little of the others: another one may
                know more.
        """
        count = self._shards.count
        if after:
            positions = cursor.decode(after, shards=count)
            try:
                async with asyncio.timeout_at(deadline):
                    for shard, position in enumerate(positions):
                        await self._check(shard, position, deadline=deadline)
            except TimeoutError as late:
                raise NoLeader("this node lacks entries in time: ask another node") from late
        else:
            positions = [self._newest(shard) for shard in range(count)]
        return Reader(self, self._shards, self._rings, only, positions)

    async def older(self, shard: int, after: Position) -> list[Applied]:
        """Return the first entries after one, from a log; none if it is the last one.

        Raises:
            CursorExpired: No log has them.
            OtherHistory: The entry there is another one.
            NoLeader: The others have not said whether they have them.
        """
        loop = asyncio.get_running_loop()
        found: Sequence[LogEntry] | None = None
        if not self._holds(shard, after):
            # Who reads this node's log does not wait for those who wait for others.
            async with self._asking:
                found = await self._told(shard, after, PART_BYTES)
        async with self._reading:
            begun = loop.time()
            if found is None:
                # Trimmed meanwhile, the log has none: then the next look asks the others.
                found = self.logged(shard, after) or ()
            applied = [self._decoded(shard, *entry) for entry in found]
            await asyncio.sleep(loop.time() - begun)
            return applied

    def logged(
        self, shard: int, after: Position, bytes_max: int = PART_BYTES
    ) -> Sequence[LogEntry] | None:
        """Return the first entries after one from this node's log; None if it lacks them.

        Raises:
            OtherHistory: The entry there is another one.
        """
        if not self._holds(shard, after):
            return None
        local = self._shards.local(shard)
        return local.entries(after.index + 1, upto=local.applied_index, bytes_max=bytes_max)

    async def change(self, seen: int, timeout_s: float) -> None:
        """Wait until entries came after a generation, or the time is over."""
        if seen != self.generation:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            pass
        finally:
            self._waiting.pop(future, None)

    def _newest(self, shard: int) -> Position:
        local = self._shards.local(shard)
        index = local.applied_index
        found = local.entries(index, upto=index, bytes_max=0) if index >= local.oldest_index else ()
        return Position(index, check_of(found[0][1], found[0][2]) if found else 0)

    async def _check(self, shard: int, after: Position, *, deadline: float) -> None:
        """Return once it is certain that what follows a position can be read; read one entry."""
        await self._reach(shard, after, deadline=deadline)
        if not self._holds(shard, after):
            await self._told(shard, after, 0)
        await asyncio.sleep(0)  # Many watchers may come at once, with many shards each.

    def _holds(self, shard: int, after: Position) -> bool:
        """Return whether this node's log has all after a position, or raise OtherHistory."""
        local = self._shards.local(shard)
        index, oldest = after.index, local.oldest_index
        if not oldest <= index + 1 <= local.applied_index + 1:
            return False
        # Just before the oldest entry there is none to compare with.
        if after.check and index >= oldest:
            found = local.entries(index, upto=index, bytes_max=0)
            if found and check_of(found[0][1], found[0][2]) != after.check:
                raise OtherHistory(f"shard {shard}: entry {index} is another one")
        return True

    async def _told(self, shard: int, after: Position, bytes_max: int) -> Sequence[LogEntry]:
        """Return the first entries after a position from another node's log."""
        found = await self._elsewhere(shard, after, bytes_max)
        if found is None:
            raise CursorExpired(f"shard {shard}: no log has the entry after {after.index}")
        return found

    async def _reach(self, shard: int, position: Position, *, deadline: float) -> None:
        """Wait until this node has applied an entry that another one has shown."""
        local = self._shards.local(shard)
        if position.index <= local.applied_index:
            return
        newest = (await self._shards.read(shard, (), deadline=deadline)).applied_index
        if position.index > newest:
            raise OtherHistory(f"shard {shard}: the log ends before entry {position.index}")
        loop = asyncio.get_running_loop()
        while position.index > local.applied_index:
            left_s = deadline - loop.time()
            if left_s <= 0:
                raise NoLeader(f"this node lacks entries of shard {shard}: ask another node")
            await self.change(self.generation, left_s)

    def _decoded(self, shard: int, index: int, term: int, payload: bytes | None) -> Applied:
        at = Position(index, check_of(term, payload))
        entry = None if payload is None else entries.decode(payload)
        if entry is None or entry.epoch != term:
            return Applied(at, ())  # A replica drops an entry that another term decided.
        return Applied(at, events_of(entry, shard=shard, index=index, failed=self._failed))

    def _changed(self) -> None:
        if self._due is None:
            loop = asyncio.get_running_loop()
            self._due = loop.call_later(GATHER_S, self._tell, context=Context())

    def _tell(self) -> None:
        self._due = None
        self.generation += 1
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if not future.done():
                future.set_result(None)


class Reader:
    """One watcher's way through the logs: the order of each shard, every entry once."""

    def __init__(
        self,
        feed: Feed,
        shards: Shards,
        rings: Sequence[Ring],
        only: EventFilter,
        positions: list[Position],
    ) -> None:
        self._feed = feed
        self._locals = [shards.local(shard) for shard in range(shards.count)]
        self._rings = rings
        self._only = only
        self._positions = positions
        self._first = 0

    @property
    def cursor(self) -> str:
        """Return the cursor after everything that was returned."""
        return cursor.encode(self._positions)

    async def next(self, wait_s: float) -> list[Event]:
        """Return the next events, waiting for one at most so long; none if there is none.

        Raises:
            CursorExpired: No log has what follows any more.
            OtherHistory: This node's log has been replaced by another one.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while True:
            seen, before = self._feed.generation, self._positions
            found = await self._look()
            left_s = until - loop.time()
            if found or left_s <= 0:
                return found
            if before == self._positions:
                await self._feed.change(seen, min(left_s, LOOK_AGAIN_S))
            else:
                await asyncio.sleep(0)

    async def _look(self) -> list[Event]:
        """Return the events of some entries, whole ones, beginning with another shard each time.

        Cancelled, or refused at one shard, it has passed over nothing.
        """
        found: list[Event] = []
        positions = [*self._positions]
        compared = 0
        fits, count = self._only.fits, len(self._locals)
        self._first = (self._first + 1) % count
        for turn in range(count):
            shard = (self._first + turn) % count
            position = positions[shard]
            if self._locals[shard].applied_index <= position.index:
                continue
            # After a snapshot was installed the ring ends before what is applied.
            part: Sequence[Applied] | None = self._rings[shard].after(position.index)
            if not part:
                part = await self._feed.older(shard, position)
            for at, events in part:
                positions[shard] = at
                found += [event for event in events if fits(event)]
                compared += 1 + len(events)
                if len(found) >= EVENTS_MAX or compared >= LOOK_MAX:
                    self._positions = positions
                    return found
        self._positions = positions
        return found
