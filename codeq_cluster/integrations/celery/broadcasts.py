"""Broadcasts: messages that every listener of a name hears, each in the order of all of them.

The messages of a name are a chain. Its n-th entry is the sealed group `NAME.DAY.n`, with one task
that is never due. A listener waits for the end of the last entry's task; a speaker writes the next
entry, then cancels the last one, which wakes all listeners. A group's name is taken once, so two
speakers never share an entry, and a listener that is not woken finds the next entry by itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import msgspec
from msgspec import Raw, Struct

from codeq_cluster.client import Client, NotFinished, Refused, State, TaskRecord, Unreachable
from codeq_cluster.integrations.celery import events
from codeq_cluster.integrations.link import Forked, Link, may_pass

# No queue of Kombu's has this name: a colon of theirs is written otherwise.
QUEUE: Final = "celery:broadcasts"
HEARD_MAX: Final = 1000  # Messages that wait in a consumer; the next ones are not delivered.

_DAY_S: Final = 86_400
_KEPT_S: Final = 3 * _DAY_S  # Only an entry that everybody has left gets so old.
_NEVER_S: Final = 2 * _KEPT_S
WAIT_S: Final = 30.0  # Then an entry is looked for whose speaker died before it woke anybody.
_PAUSE_S: Final = 1.0
_ATTEMPTS_MAX: Final = 200  # Each is another speaker that came first.
_NOT_FOUND: Final = 404

log = logging.getLogger(__name__)


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
class _Entry:
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

    def __init__(self, client: Client, name: str, *, today: Callable[[], int] = today) -> None:
        """Prepare it; nothing is sent yet.

        Args:
            client: Of a producer.
            name: Of the chain.
            today: The day by the caller's clock; those of others may differ by less than a day.
        """
        self._client = client
        self._today = today
        self._name = f"celery-{hashlib.sha256(name.encode()).hexdigest()[:40]}"

    async def say(self, message: bytes, *, write: str, if_heard: bool = False) -> None:
        """Add a message, a JSON object; once it returned, all listeners will get it.

        Args:
            message: As `payload_of` makes it.
            write: Identifies it, over its repetitions.
            if_heard: Say nothing if there is no listener, or if it has closed the chain.

        Raises:
            Unreachable: Others were always first; it was not said.
        """
        payload = b'{"write":%b,' % msgspec.json.encode(write) + message[1:]
        for _ in range(_ATTEMPTS_MAX):
            last = await self._last()
            if if_heard and not (last and last.live):
                return
            last = last or await self._begun(self._today())
            if last.write == write:
                await self._wake(last.day, last.number - 1)
                return
            if last.day < self._today():
                await self._append(last, _said(closed=True))
            elif await self._append(last, payload):
                return
        raise Unreachable(f"{_ATTEMPTS_MAX} others spoke first")

    async def open(self) -> _Entry:
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
            await self._wake(last.day, last.number)

    async def after(
        self, last: _Entry, *, wait_s: float = WAIT_S
    ) -> tuple[_Entry, TaskRecord | None]:
        """Return the next entry with its message, or without one after a while."""
        ended = await self._ended(last, wait_s=wait_s)
        found = await self._task_of(last.day, last.number + 1)
        if found is None:
            if last.day < self._today():
                await self._append(last, _said(closed=True))
            elif ended:
                # Somebody has cancelled what its listeners wait for.
                await self._append(last, _said(silent=True))
            return last, None
        record = await self._read(found)
        entry = _entry(last.day, last.number + 1, record)
        if entry.closed:
            return await self._begun(last.day + 1), None
        return entry, None if entry.silent else record

    async def _last(self) -> _Entry | None:
        # The clock of whoever wrote the last entry may be behind this one, by less than a day.
        day = self._today() - 1
        while True:
            number, task_id = await self._end_of(day)
            if number >= 0:
                entry = _entry(day, number, await self._read(task_id))
                if not entry.closed:
                    return entry
            elif day > self._today():
                return await self._begun(day)  # Of which the closed one speaks.
            elif day == self._today():
                return None
            day += 1

    async def _end_of(self, day: int) -> tuple[int, str]:
        """Return the last entry of a day and its task, or -1; numbers have no gaps."""
        number, found, step = -1, "", 1
        while (task_id := await self._task_of(day, number + step)) is not None:
            number, found = number + step, task_id
            step = number + 1
        while step > 1:
            step //= 2
            if (task_id := await self._task_of(day, number + step)) is not None:
                number, found = number + step, task_id
        return number, found

    async def _begun(self, day: int) -> _Entry:
        """Begin the chain of a day; whoever does it again changes nothing."""
        await self._put(day, 0, msgspec.json.encode(_Said(silent=True)))
        return _entry(day, 0, await self._read(await self._task_of(day, 0) or ""))

    async def _append(self, last: _Entry, payload: bytes) -> bool:
        """Write the entry after `last` and wake the listeners; False if another one is there."""
        try:
            await self._put(last.day, last.number + 1, payload)
        except Refused as error:
            if error.code != "idempotency-conflict":
                raise
            return False
        await self._wake(last.day, last.number)
        return True

    async def _put(self, day: int, number: int, payload: bytes) -> None:
        task = {
            "command": QUEUE,
            "payload": Raw(payload),
            "delaySeconds": _NEVER_S,
            "ttlSeconds": _KEPT_S,
        }
        body = {"id": self._group(day, number), "tasks": [task], "seal": True}
        await self._client.begin_group(body)

    async def _wake(self, day: int, number: int) -> None:
        await self._client.cancel_group(self._group(day, number))

    async def _ended(self, entry: _Entry, *, wait_s: float) -> bool:
        """Return whether an entry has ended, after a wait for it."""
        if not entry.live:
            return True
        try:
            await self._client.wait(entry.task_id, timeout_s=wait_s)
        except NotFinished:
            return False
        except Refused as error:
            if error.status != _NOT_FOUND:
                raise
        return True

    async def _read(self, task_id: str) -> TaskRecord | None:
        try:
            return await self._client.task(task_id) if task_id else None
        except Refused as error:
            if error.status != _NOT_FOUND:
                raise
            return None  # Its retention is over.

    async def _task_of(self, day: int, number: int) -> str | None:
        """Return the task of an entry, an empty text if it is gone, or None for no such entry."""
        try:
            page = await self._client.group_results(self._group(day, number))
        except Refused as error:
            if error.status != _NOT_FOUND:
                raise
            return None
        return page.members[0].task_id if page.members else ""

    def _group(self, day: int, number: int) -> str:
        return f"{self._name}.{day}.{number}"


class Ears:
    """What one channel listens to, broadcasts and events; its methods are for threads."""

    def __init__(self, link: Link, wake: threading.Event) -> None:
        """Prepare it; nothing is heard yet.

        Args:
            link: The cluster.
            wake: Set whenever there is a message.
        """
        self._link = link
        self._wake = wake
        self._listening: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._heard: dict[str, deque[TaskRecord]] = {}

    def listen(self, queue: str, name: str) -> None:
        """Let a queue have all that is said under a name from now on.

        Raises:
            CodeqError: The broker does not answer, or refuses.
        """
        if (queue, name) not in self._listening:
            self._link.run(self._begin(queue, name))

    def listen_to_events(self, queue: str, pattern: str) -> None:
        """Let a queue have Celery's events from now on whose routing keys match.

        Raises:
            CodeqError: As for `listen`.
        """
        if (queue, events.EXCHANGE) not in self._listening:
            self._link.run(self._begin_events(queue, pattern))

    def next(self, queues: Iterable[str]) -> tuple[str, TaskRecord] | None:
        """Return a message of these queues with its queue, or None."""
        for queue in queues:
            if heard := self._heard.get(queue):
                return queue, heard.popleft()
        return None

    def leave(self, queue: str, *, alone: bool = False) -> None:
        """Listen no more for a queue; `alone`: nobody else does, so the chain ends."""
        if self._link.ours:
            self._link.run(self._end([queue], alone=alone))

    def close(self) -> None:
        """Listen no more."""
        if self._link.ours:
            self._link.run(self._end(list(self._heard)))

    def drop(self) -> None:
        """Begin to listen no more, and wait for nothing: nobody can any more."""
        if self._link.ours and self._heard:
            with suppress(Forked):
                self._link.start(self._end(list(self._heard)))

    async def _begin(self, queue: str, name: str) -> None:
        chain = Chain(self._link.client, name)
        last = await chain.open()
        heard = self._heard.setdefault(queue, deque())
        listening = _listen(chain, last, heard, self._wake, queue)
        self._listening[queue, name] = asyncio.create_task(listening)

    async def _begin_events(self, queue: str, pattern: str) -> None:
        client = self._link.client
        cursor = await client.events_cursor()
        await events.announce(client)
        heard = self._heard.setdefault(queue, deque())

        def hear(record: TaskRecord) -> bool:
            if len(heard) >= events.HEARD_MAX:
                return False
            heard.append(record)
            self._wake.set()
            return True

        listening = events.listen(client, cursor, pattern, hear, queue)
        self._listening[queue, events.EXCHANGE] = asyncio.create_task(listening)

    async def _end(self, queues: Sequence[str], *, alone: bool = False) -> None:
        for each in [each for each in self._listening if each[0] in queues]:
            listening = self._listening.pop(each)
            listening.cancel()
            await asyncio.wait([listening])
            if alone:
                await Chain(self._link.client, each[1]).close()
        for queue in queues:
            self._heard.pop(queue, None)


async def _listen(
    chain: Chain, last: _Entry, heard: deque[TaskRecord], wake: threading.Event, queue: str
) -> None:
    while True:
        try:
            last, record = await chain.after(last)
        except (Refused, Unreachable) as error:
            if not may_pass(error):
                log.exception("queue %s: broadcasts are heard no more", queue)
                return
            log.warning("queue %s: broadcasts are late: %s", queue, error)
            await asyncio.sleep(_PAUSE_S)
            continue
        if record is None:
            continue
        if len(heard) < HEARD_MAX:
            heard.append(record)
            wake.set()
        else:
            log.error("queue %s: a broadcast is dropped, because %d wait", queue, HEARD_MAX)


def _said(*, silent: bool = False, closed: bool = False) -> bytes:
    return msgspec.json.encode(_Said(write=uuid4().hex, silent=silent, closed=closed))


def _entry(day: int, number: int, record: TaskRecord | None) -> _Entry:
    """Return an entry; nothing was said by one whose task is gone."""
    said = _Said(silent=True)
    if record is not None:
        said = msgspec.json.decode(record.payload, type=_Said)
    return _Entry(
        day=day,
        number=number,
        task_id="" if record is None else record.id,
        live=record is not None and record.state is State.DELAYED,
        **msgspec.structs.asdict(said),
    )
