"""Dispatcher: sends the relays of a shard that this node leads, until the other shards have them.

Each other shard has a line of its own, so a shard that is out delays no other. A line is sent in
the order of its numbers, one batch at a time: the next one leaves when the other shard has the
batch before and this shard's log says so. Only committed relays are read, so none that could still
be undone is sent. If the leader dies in between, the next one sends the batch again, and the other
shard does nothing twice.

A relay that the broker itself fails at is set aside, so that those behind it go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context

from codeq_cluster.broker.background import Background
from codeq_cluster.broker.engine.engine import Engine
from codeq_cluster.broker.engine.faults import is_fault, setting_aside
from codeq_cluster.broker.ports import Shards, StateStore
from codeq_cluster.broker.scanning import every_row
from codeq_cluster.codec import keyspace, line_keys, records
from codeq_cluster.core.outcomes import Taken
from codeq_cluster.core.relaying import RELAYS_BYTES_MAX, RELAYS_MAX
from codeq_cluster.core.relays import (
    Relay,
    Relayed,
    RelayLink,
    RelaysMissed,
    RelaysTaken,
    TakeRelays,
    relayed,
)
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.errors import CodeqError, OutcomeUnknown
from codeq_cluster.portions import in_parts

log = logging.getLogger(__name__)

SEND_S = 10.0
PAUSE_S, PAUSE_S_MAX = 0.05, 5.0  # Before a line is tried again; it doubles.
# A relay that the other shard answers nothing to, although it answers at once without it.
FAILURES_MAX = 5


class RelayDispatcher:
    """One shard's relays on one node; idle unless the node leads the shard.

    Args:
        background: Owns the lines being sent.
        failed: Called for each relay that is set aside.

    Attributes:
        waiting: How many relays are in line, as this node knows.
    """

    def __init__(
        self,
        engine: Engine,
        store: StateStore,
        shards: Shards,
        *,
        background: Background,
        failed: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._store = store
        self._shards = shards
        self._background = background
        self._failed = failed
        # When each line that is not empty began or last moved, on the loop's clock; by shard.
        self._moved_s: dict[int, float] = {}
        self._stopped = False
        self.waiting = self._stored()

    @property
    def stalled_s(self) -> float:
        """Return for how long the slowest line has not moved; 0 if none waits."""
        now_s = asyncio.get_running_loop().time()
        return max((now_s - moved_s for moved_s in self._moved_s.values()), default=0.0)

    def rows(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Follow an applied entry's rows."""
        for key, value in rows.items():
            if not key.startswith(line_keys.FORWARD_PREFIX):
                continue
            self.waiting += -1 if value is None else 1
            if value is not None:
                self._begin(line_keys.forward_parts(key)[0])

    def look(self) -> None:
        """Send what is stored, once this node leads."""
        for shard in range(self._shards.count if self._engine.leads else 0):
            if self._line(shard, 1) or self._link(shard).recalled_ms:
                self._begin(shard)

    def reload(self) -> None:
        """Read the store again, after its state was replaced."""
        self.waiting = self._stored()
        self.look()

    def stop(self) -> None:
        """Send no more."""
        self._stopped = True

    def _begin(self, shard: int) -> None:
        if self._engine.leads and not self._stopped and shard not in self._moved_s:
            self._moved_s[shard] = asyncio.get_running_loop().time()
            # In a fresh context: the caller may be in the tracing context of some request.
            Context().run(self._background.spawn, self._send(shard))

    async def _send(self, shard: int) -> None:
        """Send a line until it is empty, or this node no longer leads."""
        pause_s, most, failures = PAUSE_S, RELAYS_MAX, 0
        try:
            while self._engine.leads and not self._stopped:
                is_recalling = self._link(shard).recalled_ms > 0
                keys: Sequence[bytes] = () if is_recalling else self._line(shard, most)
                if not keys and not is_recalling:
                    return
                sending = self._send_batch(shard, keys) if keys else self._recall(shard)
                error = await self._tried(shard, sending)
                if error is None:
                    self._moved_s[shard] = asyncio.get_running_loop().time()
                    pause_s, failures = PAUSE_S, 0
                    most = min(2 * most, RELAYS_MAX)
                elif len(keys) > 1:
                    most = 1  # If one is at fault, the others leave without it.
                else:
                    if keys and await self._is_at_fault(shard, keys[0], error):
                        failures += 1
                    if failures >= FAILURES_MAX:
                        await self._set_aside(keys[0], error)
                        failures = 0
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, PAUSE_S_MAX)
        finally:
            del self._moved_s[shard]

    async def _tried(self, shard: int, sending: Awaitable[object]) -> Exception | None:
        """Return the error of what is sent to a shard, or None."""
        try:
            await sending
        except CodeqError as error:
            log.info("relays not sent", extra={"to": shard, "error": str(error)})
            return error
        except Exception as error:
            log.exception("relays cannot be sent", extra={"to": shard})
            return error
        return None

    async def _send_batch(self, shard: int, keys: Sequence[bytes]) -> None:
        batch: list[Relay] = []
        size = 0
        for key in keys:
            relay = self._relay(key)
            size += relay.effect.size
            if batch and size > RELAYS_BYTES_MAX:
                break
            batch.append(relay)
        last = batch[-1].number
        taken = await self._take(shard, tuple(map(relayed, batch)))
        if taken < last:
            # It has lost what it had.
            log.warning("relays are recalled", extra={"to": shard, "from": taken})
            await self._engine.operate([RelaysMissed(to=shard, number=taken)])
            return
        names = tuple((each.tenant, each.id, each.number) for each in batch)
        await self._engine.operate([RelaysTaken(to=shard, number=last, relays=names)])

    async def _recall(self, shard: int) -> None:
        """Put the kept relays that the other shard lacks back into the line."""
        number = self._link(shard).number
        missed: list[tuple[str, str]] = []
        start, end = keyspace.prefix_range(keyspace.item_prefix(ItemKind.RELAY))
        while page := self._store.scan(start, end, RELAYS_MAX):
            start = page[-1][0] + b"\0"
            for _, value in page:
                relay = records.decode_item(value)
                assert isinstance(relay, Relay)
                if relay.to == shard and relay.taken_ms and relay.number > number:
                    missed.append((relay.tenant, relay.id))
            await asyncio.sleep(0)  # There may be hundreds of thousands.
        for some in in_parts(missed, count_max=RELAYS_MAX):
            operation = RelaysMissed(to=shard, number=number, relays=some)
            await self._engine.operate([operation])
        await self._engine.operate([RelaysMissed(to=shard, number=number, done=True)])

    async def _take(self, shard: int, relays: tuple[Relayed, ...]) -> int:
        """Send relays; return the number of the last one that the other shard has."""
        operation = TakeRelays(
            origin=self._engine.shard, after=self._link(shard).number, relays=relays
        )
        deadline = asyncio.get_running_loop().time() + SEND_S
        [outcome] = await self._shards.operate(shard, [operation], deadline=deadline)
        assert isinstance(outcome, Taken)
        return outcome.number

    async def _is_at_fault(self, shard: int, key: bytes, error: Exception) -> bool:
        """Return whether the broker failed at the relay, and not at reaching the other shard.

        A peer tells no fault from a lost answer. But if it answers when it is asked for nothing, it
        says whether it has the relay.
        """
        if is_fault(error):
            return True
        taken: list[int] = []

        async def ask() -> None:
            taken.append(await self._take(shard, ()))

        if not isinstance(error, OutcomeUnknown) or await self._tried(shard, ask()) is not None:
            return False
        return taken[0] < line_keys.forward_parts(key)[1]

    async def _set_aside(self, key: bytes, error: BaseException) -> None:
        _, tenant, relay_id = keyspace.item_parts(key)
        log.error("set aside", extra={"item": relay_id, "error": str(error)})
        self._failed()
        try:
            await self._engine.operate([setting_aside(key, error, tenant=tenant)])
        except CodeqError as why:
            log.info("not set aside yet", extra={"item": relay_id, "error": str(why)})

    def _stored(self) -> int:
        start, end = keyspace.prefix_range(line_keys.FORWARD_PREFIX)
        return sum(1 for _ in every_row(self._store, start, end))

    def _line(self, shard: int, most: int) -> list[bytes]:
        # Those before are gone, and reading over their remains takes long after an outage.
        start = line_keys.forward_from(shard, self._link(shard).number + 1)
        _, end = keyspace.prefix_range(line_keys.forward_prefix(shard))
        return [key for key, _ in self._store.scan(start, end, most)]

    def _relay(self, key: bytes) -> Relay:
        record = self._store.get(keyspace.item(*keyspace.item_parts(key)))
        assert record is not None, "the relay of a line is missing"
        relay = records.decode_item(record)
        assert isinstance(relay, Relay), "a line names something else"
        return relay

    def _link(self, shard: int) -> RelayLink:
        record = self._store.get(keyspace.item(ItemKind.RELAY_LINK, "", f"to.{shard}"))
        link = RelayLink(id=f"to.{shard}") if record is None else records.decode_item(record)
        assert isinstance(link, RelayLink)
        return link
