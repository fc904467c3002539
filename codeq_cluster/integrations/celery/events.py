"""Events: what Celery's workers and producers tell of themselves, while somebody listens.

A listener begins an empty group for each minute, and a speaker looks for that of its own minute. If
it is there, the speaker writes what it has collected as one cancelled task; the broker's own events
of that queue lead every listener to it. So speakers never wait for each other, as those of a
broadcast do.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import re
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import aclosing, suppress
from typing import Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from codeq_cluster.client import Client, ConnectionGone, EventKind, Refused, TaskRecord, Unreachable
from codeq_cluster.integrations.link import Link, may_pass
from codeq_cluster.integrations.numbered import NOT_FOUND, read

# The exchange that Celery's `event_exchange` names, unless an application says otherwise.
EXCHANGE: Final = "celeryev"
# No queue of Kombu's has this name: a colon of theirs is written otherwise.
QUEUE: Final = "celery:events"
HEARD_MAX: Final = 10_000  # Events that wait in a listener; the next ones are dropped.

_WAITING_MAX: Final = 10_000  # Events that a speaker has not written; the oldest are dropped.
_WRITTEN_MAX: Final = 500  # Events of one task,
_BYTES_MAX: Final = 256 * 1024  # and their size, a quarter of a payload's bound.
_COLLECTED_S: Final = 0.5
_MINUTE_S: Final = 60
_AGAIN_S: Final = 10.0  # Between two looks for a listener.
_ANNOUNCED_EVERY_S: Final = 20.0  # Also for the next minute, so clocks may differ by that much.
_PAUSE_S: Final = 1.0
_LAST_WITHIN_S: Final = 5.0
_NEVER_S: Final = 6 * 86_400
_KEPT_S: Final = 3 * 86_400  # Only the task of a speaker that died before its cancel gets so old.
_SEEN_MAX: Final = 100  # A stream that goes on elsewhere repeats its last events.
_GONE: Final = 410

log = logging.getLogger(__name__)


class _Delivery(Struct):
    routing_key: str


class _Properties(Struct):
    delivery_info: _Delivery


class _Event(Struct):
    """The part of a message that routes it."""

    properties: _Properties


class _Told(Struct):
    """A task of the queue: messages as `payload_of` makes them."""

    events: list[Raw]


class Speaker:
    """The events that one channel publishes; its methods are for threads, only `close` waits."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._waiting: deque[bytes] = deque(maxlen=_WAITING_MAX)
        self._lost = 0
        self._minute = -1  # The last one in which somebody listened.
        self._speaking: Future[None] | None = None

    def say(self, message: bytes) -> None:
        """Tell all listeners of an event within about a second; nobody keeps it if there is none.

        Args:
            message: As `payload_of` makes it.
        """
        if len(self._waiting) == _WAITING_MAX:
            self._lost += 1
        self._waiting.append(message)
        if self._speaking is None:
            self._speaking = self._link.start(self._speak())
            atexit.register(self.close)  # Celery leaves its producers' connections open.

    def close(self) -> None:
        """Write what was said, within a bound."""
        if (ending := self._ending()) is not None:
            ending.result()

    def drop(self) -> None:
        """Begin to write what was said, and wait for nothing."""
        self._ending()

    def _ending(self) -> Future[None] | None:
        speaking, self._speaking = self._speaking, None
        atexit.unregister(self.close)
        if speaking is None or not self._link.ours:
            return None
        with suppress(ConnectionGone):
            return self._link.start(self._end(speaking))
        return None

    async def _speak(self) -> None:
        while True:
            await asyncio.sleep(_COLLECTED_S)
            if not self._waiting:
                continue
            try:
                written = await self._write()
            except (Refused, Unreachable) as error:
                if not may_pass(error):
                    log.warning("no events: %s", error)
                    return
                log.warning("events are late: %s", error)
                written = False
            if not written:
                await asyncio.sleep(_AGAIN_S)

    async def _write(self) -> bool:
        """Write what waits; return whether anybody listens."""
        minute = _minute()
        if minute != self._minute and not await _attended(self._link.client, minute):
            self._waiting.clear()
            self._lost = 0
            return False
        self._minute = minute
        if self._lost:
            log.error("%d events are dropped, because %d waited", self._lost, _WAITING_MAX)
            self._lost = 0
        while self._waiting:
            await _written(self._link.client, self._some())
        return True

    def _some(self) -> list[Raw]:
        some: list[Raw] = []
        size = 0
        while self._waiting and len(some) < _WRITTEN_MAX and size < _BYTES_MAX:
            some.append(Raw(self._waiting.popleft()))
            size += len(some[-1])
        return some

    async def _end(self, speaking: Future[None]) -> None:
        speaking.cancel()
        if not self._waiting:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WITHIN_S):
                try:
                    await self._write()
                except (Refused, Unreachable) as error:
                    log.warning("the last events are lost: %s", error)


async def _written(client: Client, events: list[Raw]) -> None:
    payload = Raw(msgspec.json.encode(_Told(events=events)))
    task = await client.create(QUEUE, payload, delay=_NEVER_S, ttl=_KEPT_S)
    await client.cancel(task.id)


async def _attended(client: Client, minute: int) -> bool:
    try:
        await client.group_record(_announcement(minute))
    except Refused as error:
        if error.status != NOT_FOUND:
            raise
        return False
    return True


async def announce(client: Client) -> None:
    """Let speakers know that somebody listens in this minute and the next one."""
    now = _minute()
    for minute in now, now + 1:
        await client.begin_group({"id": _announcement(minute), "seal": True})


async def listen(
    client: Client,
    cursor: str,
    pattern: str,
    hear: Callable[[TaskRecord], bool],
    queue: str,
) -> None:
    """Hear the events whose routing keys match, until it is cancelled.

    Args:
        client: Of a producer.
        cursor: Of the broker's events; what follows it is heard.
        hear: Takes a task with one message of Kombu; False if there is no room.
        queue: Of the listener, for the log.
    """
    async with asyncio.TaskGroup() as group:
        attending = group.create_task(_attend(client, queue))
        await _follow(client, cursor, re.compile(pattern), hear, queue)
        attending.cancel()


async def _attend(client: Client, queue: str) -> None:
    while True:
        await asyncio.sleep(_ANNOUNCED_EVERY_S)
        try:
            await announce(client)
        except (Refused, Unreachable) as error:
            log.warning("queue %s: events may stay away: %s", queue, error)


async def _follow(
    client: Client,
    cursor: str,
    pattern: re.Pattern[str],
    hear: Callable[[TaskRecord], bool],
    queue: str,
) -> None:
    seen: deque[str] = deque(maxlen=_SEEN_MAX)
    while True:
        try:
            told = client.events(command=QUEUE, kinds=[EventKind.DELAYED], after=cursor)
            async with aclosing(told) as events:
                async for event in events:
                    if event.task_id not in seen:
                        seen.append(event.task_id)
                        _tell(await read(client, event.task_id), pattern, hear, queue)
                    cursor = event.cursor
        except (Refused, Unreachable) as error:
            if isinstance(error, Refused) and error.status == _GONE:
                cursor = ""
            elif not may_pass(error):
                log.exception("queue %s: events are heard no more", queue)
                return
            log.warning("queue %s: events are late or missed: %s", queue, error)
            await asyncio.sleep(_PAUSE_S)


def _tell(
    record: TaskRecord | None,
    pattern: re.Pattern[str],
    hear: Callable[[TaskRecord], bool],
    queue: str,
) -> None:
    if record is None:
        return
    try:
        told = msgspec.json.decode(record.payload, type=_Told).events
        keys = [msgspec.json.decode(each, type=_Event).properties.delivery_info for each in told]
    except msgspec.DecodeError as error:
        log.error("task %s holds no events: %s", record.id, error)  # noqa: TRY400 - it says it all
        return
    dropped = sum(
        not hear(replace(record, payload=each))
        for each, key in zip(told, keys, strict=True)
        if pattern.match(key.routing_key)
    )
    if dropped:
        log.error("queue %s: %d events are dropped, because %d wait", queue, dropped, HEARD_MAX)


def _minute() -> int:
    return int(time.time()) // _MINUTE_S


def _announcement(minute: int) -> str:
    """Return the name of the group that says that somebody listens in a minute."""
    return f"celery-events.{minute}"
