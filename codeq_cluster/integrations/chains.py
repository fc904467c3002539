"""Chains: messages that every listener of a name hears, each in the order of all of them.

The messages of a name are a chain. Its n-th entry is the sealed group `NAME.DAY.n`, with one task
that is never due. A listener waits for the end of the last entry's task; a speaker writes the next
entry, then cancels the last one, which wakes all listeners. A group's name is taken once, so two
speakers never share an entry, and a listener that is not woken finds the next entry by itself.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import msgspec
from msgspec import Raw, Struct

from codeq_cluster.client import Client, NotFinished, Refused, State, TaskRecord, Unreachable
from codeq_cluster.integrations.numbered import NOT_FOUND, last_of, read, task_of

_DAY_S: Final = 86_400
_KEPT_S: Final = 3 * _DAY_S  # Only an entry that everybody has left gets so old.
_NEVER_S: Final = 2 * _KEPT_S
WAIT_S: Final = 30.0  # Then an entry is looked for whose speaker died before it woke anybody.
_ATTEMPTS_MAX: Final = 200  # Each is another speaker that came first.
_ENDED: Final = frozenset({"already-terminal", "not-found"})


def today() -> int:
    """Return the number of this day, in UTC."""
    return int(time.time()) // _DAY_S


class _Said(Struct, omit_defaults=True):
    """What an entry's task carries beside a message.

    Attributes:
        write: Another one for each entry, so that only a repetition is the same.
        silent: There is no message.
        closed: The chain goes on with the next day's.
    """

    write: str = ""
    silent: bool = False
    closed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry of a chain, with what `_Said` says of it.

    Attributes:
        live: Its task has not ended: no other entry follows yet.
    """

    day: int
    number: int
    task_id: str
    live: bool
    write: str
    silent: bool
    closed: bool


class Chain:
    """The chain of one name, from any process.

    A day's chain begins with an entry that is silent. The first listener or speaker of the next day
    closes it, so numbers stay small and what is old is forgotten.
    """

    def __init__(
        self, client: Client, name: str, *, queue: str, today: Callable[[], int] = today
    ) -> None:
        """Prepare it; nothing is sent yet.

        Args:
            client: Of a producer.
            queue: `FRAMEWORK:broadcasts`, which holds the entries for people to read.
            today: The day by the caller's clock; those of others may differ by less than a day.
        """
        self._client = client
        self._today = today
        framework = queue.partition(":")[0]
        self._queue = queue
        self._name = f"{framework}-{hashlib.sha256(name.encode()).hexdigest()[:40]}"

    async def say(self, message: bytes, *, write: str, if_heard: bool = False) -> bool:
        """Add a message, a JSON object; once it returned True, all listeners will get it.

        Args:
            message: With a name or more, none of them `write`, `silent` or `closed`.
            write: Identifies it, over its repetitions.
            if_heard: Say nothing, and return False, if nobody has listened or spoken for days, or
                if the listener has closed the chain.

        Raises:
            Unreachable: Others were always first; it was not said.
        """
        payload = b'{"write":%b,' % msgspec.json.encode(write) + message[1:]
        for _ in range(_ATTEMPTS_MAX):
            last = await self._last()
            if if_heard and not (last and last.live):
                return False
            last = last or await self._begun(self._today())
            if last.write == write:
                await self._end(last.day, last.number - 1)
                return True
            if last.day < self._today():
                await self._append(last, _said(closed=True))
            elif await self._append(last, payload):
                return True
        raise Unreachable(f"{_ATTEMPTS_MAX} others spoke first")

    async def open(self) -> Entry:
        """Return the entry after which all that is said from now on will stand.

        Raises:
            Unreachable: Others were always first.
        """
        for _ in range(_ATTEMPTS_MAX):
            last = await self._last() or await self._begun(self._today())
            if last.live:
                return last
            await self._append(last, _said(silent=True))
        raise Unreachable(f"{_ATTEMPTS_MAX} others spoke first")

    async def close(self) -> None:
        """End the last entry: its only listener goes, and nobody is left to do so."""
        if last := await self._last():
            await self._wake(last)

    async def after(
        self, last: Entry, *, wait_s: float = WAIT_S, on_woken: Callable[[], object] | None = None
    ) -> tuple[Entry, TaskRecord | None]:
        """Return the next entry with its message, or without one after a while.

        Args:
            last: The entry before it.
            wait_s: How long to wait for it.
            on_woken: Called once the next entry is there, and has still to be read.
        """
        ended = await self._ended(last, wait_s=wait_s)
        if ended and on_woken:
            on_woken()
        found = await self._task_of(last.day, last.number + 1)
        if found is None:
            if last.day < self._today():
                await self._append(last, _said(closed=True))
            elif ended:
                # Somebody has cancelled what its listeners wait for.
                await self._append(last, _said(silent=True))
            return last, None
        record = await read(self._client, found)
        entry = _entry(last.day, last.number + 1, record)
        if entry.closed:
            return await self._begun(last.day + 1), None
        return entry, None if entry.silent else record

    async def _last(self) -> Entry | None:
        # The clock of whoever wrote the last entry may be behind this one, by less than a day.
        day = self._today() - 1
        while True:
            number, task_id = await last_of(self._client, f"{self._name}.{day}")
            if number >= 0:
                entry = _entry(day, number, await read(self._client, task_id))
                if not entry.closed:
                    return entry
            elif day > self._today():
                return await self._begun(day)  # Of which the closed one speaks.
            elif day == self._today():
                return None
            day += 1

    async def _begun(self, day: int) -> Entry:
        """Begin the chain of a day; whoever does it again changes nothing."""
        await self._put(day, 0, msgspec.json.encode(_Said(silent=True)))
        return _entry(day, 0, await read(self._client, await self._task_of(day, 0) or ""))

    async def _append(self, last: Entry, payload: bytes) -> bool:
        """Write the entry after `last` and wake the listeners; False if another one is there."""
        try:
            await self._put(last.day, last.number + 1, payload)
        except Refused as error:
            if error.code != "idempotency-conflict":
                raise
            return False
        await self._wake(last)
        return True

    async def _put(self, day: int, number: int, payload: bytes) -> None:
        task = {
            "command": self._queue,
            "payload": Raw(payload),
            "delaySeconds": _NEVER_S,
            "ttlSeconds": _KEPT_S,
        }
        body = {"id": self._group(day, number), "tasks": [task], "seal": True}
        await self._client.begin_group(body)

    async def _wake(self, entry: Entry) -> None:
        """End an entry's task; once it returned, the broker has answered who waits for it."""
        try:
            await self._client.cancel(entry.task_id)
        except Refused as error:
            if error.code == "outcome-unknown":
                await self._end(entry.day, entry.number)
            elif error.code not in _ENDED:
                raise

    async def _end(self, day: int, number: int) -> None:
        """End an entry's task soon; this may be repeated."""
        await self._client.cancel_group(self._group(day, number))

    async def _ended(self, entry: Entry, *, wait_s: float) -> bool:
        """Return whether an entry has ended, after a wait for it."""
        if not entry.live:
            return True
        try:
            await self._client.wait(entry.task_id, timeout_s=wait_s)
        except NotFinished:
            return False
        except Refused as error:
            if error.status != NOT_FOUND:
                raise
        return True

    async def _task_of(self, day: int, number: int) -> str | None:
        return await task_of(self._client, self._group(day, number))

    def _group(self, day: int, number: int) -> str:
        return f"{self._name}.{day}.{number}"


def _said(*, silent: bool = False, closed: bool = False) -> bytes:
    return msgspec.json.encode(_Said(write=uuid4().hex, silent=silent, closed=closed))


def _entry(day: int, number: int, record: TaskRecord | None) -> Entry:
    """Return an entry; nothing was said by one whose task is gone."""
    said = _Said(silent=True)
    if record is not None:
        said = msgspec.json.decode(record.payload, type=_Said)
    return Entry(
        day=day,
        number=number,
        task_id="" if record is None else record.id,
        live=record is not None and record.state is State.DELAYED,
        **msgspec.structs.asdict(said),
    )
