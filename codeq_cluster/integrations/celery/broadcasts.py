"""Broadcasts: what the consumers of one channel hear of fanout exchanges, and of events."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from codeq_cluster.client import ConnectionGone, Refused, TaskRecord, Unreachable
from codeq_cluster.integrations.celery import events
from codeq_cluster.integrations.chains import Chain, Entry
from codeq_cluster.integrations.link import Link, may_pass

# No queue of Kombu's has this name: a colon of theirs is written otherwise.
QUEUE: Final = "celery:broadcasts"
HEARD_MAX: Final = 1000  # Messages that wait in a consumer; the next ones are not delivered.

_PAUSE_S: Final = 1.0

log = logging.getLogger(__name__)


class Ears:
    """What one channel listens to, broadcasts and events; its methods are for threads."""

    def __init__(self, link: Link, wake: threading.Event) -> None:
        """Prepare it; nothing is heard yet.

        Args:
            wake: Set whenever there is a message.
        """
        self._link = link
        self._wake = wake
        self._listening: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._heard: dict[str, deque[TaskRecord]] = {}
        # Those that were woken, and have not read yet what was said.
        self._reading: set[tuple[str, str]] = set()

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

    def hears_more(self) -> bool:
        """Return whether a broadcast is here, or known to have been said."""
        # In this order: a listener keeps what it has read before it is one that reads no more.
        return bool(self._reading) or any(tuple(self._heard.values()))

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
            with suppress(ConnectionGone):
                self._link.start(self._end(list(self._heard)))

    async def _begin(self, queue: str, name: str) -> None:
        chain = Chain(self._link.client, name, queue=QUEUE)
        last = await chain.open()
        self._heard.setdefault(queue, deque())
        listening = self._listen((queue, name), chain, last)
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
                await Chain(self._link.client, each[1], queue=QUEUE).close()
        for queue in queues:
            self._heard.pop(queue, None)

    async def _listen(self, listener: tuple[str, str], chain: Chain, last: Entry) -> None:
        queue, _ = listener
        try:
            while True:
                try:
                    last, record = await chain.after(
                        last, on_woken=lambda: self._reading.add(listener)
                    )
                except (Refused, Unreachable) as error:
                    if not may_pass(error):
                        log.exception("queue %s: broadcasts are heard no more", queue)
                        return
                    log.warning("queue %s: broadcasts are late: %s", queue, error)
                    await asyncio.sleep(_PAUSE_S)
                    continue
                if record is not None:
                    self._hear(queue, record)
                if last.live:
                    self._reading.discard(listener)
                self._wake.set()
        finally:
            self._reading.discard(listener)
            self._wake.set()

    def _hear(self, queue: str, record: TaskRecord) -> None:
        heard = self._heard[queue]
        if len(heard) < HEARD_MAX:
            heard.append(record)
        else:
            log.error("queue %s: a broadcast is dropped, because %d wait", queue, HEARD_MAX)
