"""Deliveries: the messages that a channel holds, from their claim to their acknowledgement."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from math import inf
from typing import Any, Final

from codeq_cluster.client import TOO_EARLY, ConnectionGone, Refused, TaskRecord, Unreachable
from codeq_cluster.errors import CodeqError
from codeq_cluster.integrations.holding import END_WITHIN_S, WAIT_S, Holding, has_lease, tag_of
from codeq_cluster.integrations.link import Link, may_pass

_PAUSE_S: Final = 1.0  # After a claim that was refused.

log = logging.getLogger(__name__)


class Deliveries:
    """The claimed tasks of one channel; its methods are for threads, and none waits but `close`.

    A task is held from its claim until the broker has taken its end, and its lease is renewed as
    long: while it is prefetched, while it runs, and while it waits for its hour in a worker.
    """

    def __init__(self, link: Link, *, lease_s: int, wake: threading.Event, worker: str) -> None:
        """Prepare it; nothing is claimed yet.

        Args:
            lease_s: How long a message stays away after its worker has died.
            wake: Set whenever there is a message, room for one, or an error.
            worker: What the broker calls this consumer, for people.
        """
        self._link = link
        self._holding = Holding(link.leases, lease_s=lease_s, worker_name=worker)
        self._wake = wake
        self._arrived: deque[TaskRecord] = deque()
        self._arrived_s = 0.0
        self._unacknowledged: dict[str, TaskRecord] = {}
        self._claiming: Future[None] | None = None
        self._claims: set[asyncio.Task[None]] = set()
        self._failure: CodeqError | None = None
        self._closed = False

    @property
    def unacknowledged(self) -> int:
        """How many messages were claimed and not acknowledged or rejected."""
        return len(self._unacknowledged)

    def arrived_for_s(self) -> float:
        """Return for how long a claimed task that was not handed out is here; endless for none."""
        return time.monotonic() - self._arrived_s if self._arrived else inf

    def next(self) -> TaskRecord | None:
        """Return a claimed task that was not handed out yet, or None.

        Raises:
            CodeqError: The broker refuses claims, and a repetition would not help.
        """
        with suppress(IndexError):
            return self._arrived.popleft()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return None

    def fetch(self, commands: Sequence[str], *, count: int) -> None:
        """Claim tasks in the background, unless those of another claim are awaited or here."""
        if self._arrived or self._failure or (self._claiming and not self._claiming.done()):
            return
        self._claiming = self._link.start(self._fetch(commands, count=count))

    def get(self, command: str) -> TaskRecord | None:
        """Return a task of a command that was not handed out yet or can be claimed now, or None.

        Raises:
            CodeqError: The broker does not answer, or refuses.
        """
        for task in tuple(self._arrived):
            if task.command.lower() == command.lower():
                self._arrived.remove(task)
                return task
        return next(iter(self._link.run(self._claim([command], count=1, wait_s=0))), None)

    def acknowledge(self, tag: str, *, wait: bool = False) -> None:
        """End a task as completed; `wait` for the broker to have taken it."""
        self._end(
            tag,
            lambda task: self._link.ends.acknowledge(task, within_s=END_WITHIN_S),
            wait=wait,
        )

    def reject(self, tag: str, reason: str = "its worker rejected the message") -> None:
        """Make a task a dead letter, or let it fail before the cluster knows rejects."""
        self._end(tag, lambda task: self._rejected(task, reason))

    def give_back(self, tag: str) -> None:
        """Return a task to its queue, for any worker."""
        self._end(tag, lambda task: self._link.leases.abandon(task, within_s=END_WITHIN_S))

    def give_all_back(self) -> None:
        """Return every task that is not acknowledged to its queue."""
        self._arrived.clear()
        for tag in tuple(self._unacknowledged):
            self.give_back(tag)

    def close(self) -> None:
        """Return what is not acknowledged, and wait for all ends, within a bound."""
        if self._closed or not self._link.ours:
            return
        self._closed = True
        self._link.run(self._stop())

    def drop(self) -> None:
        """Begin to return what is not acknowledged, and wait for nothing: nobody can any more."""
        if self._closed or not self._link.ours:
            return
        self._closed = True
        with suppress(ConnectionGone):
            self._link.start(self._stop())

    def _end(
        self,
        tag: str,
        request: Callable[[TaskRecord], Coroutine[Any, Any, object]],
        *,
        wait: bool = False,
    ) -> None:
        task = self._unacknowledged.pop(tag, None)
        if task is None:
            if has_lease(tag):
                log.warning("message %s: not held here, so its end is not sent", tag)
            return
        self._wake.set()
        ending = self._link.send_off(self._ended(tag, task, request))
        if wait:
            ending.result()

    async def _fetch(self, commands: Sequence[str], *, count: int) -> None:
        try:
            tasks = await self._claim(commands, count=count, wait_s=WAIT_S)
        except (Refused, Unreachable) as error:
            if may_pass(error):
                log.warning("no messages, trying again: %s", error)
                await asyncio.sleep(_PAUSE_S)
            else:
                self._failure = error
        else:
            self._arrived_s = time.monotonic()
            self._arrived.extend(tasks)
        self._wake.set()

    async def _claim(
        self, commands: Sequence[str], *, count: int, wait_s: int
    ) -> Sequence[TaskRecord]:
        under_way = asyncio.current_task()
        assert under_way is not None
        self._claims.add(under_way)
        try:
            tasks = await self._holding.claim(commands, count=count, wait_s=wait_s)
        finally:
            self._claims.discard(under_way)
        self._unacknowledged.update((tag_of(task), task) for task in tasks)
        return tasks

    async def _rejected(self, task: TaskRecord, reason: str) -> None:
        leases, error = self._link.leases, f"REJECTED: {reason}"
        try:
            await leases.reject(task, error, within_s=END_WITHIN_S)
        except Refused as refused:
            if refused.code != TOO_EARLY:
                raise
            await leases.fail(task, error, within_s=END_WITHIN_S)

    async def _ended(
        self,
        tag: str,
        task: TaskRecord,
        request: Callable[[TaskRecord], Coroutine[Any, Any, object]],
    ) -> None:
        try:
            if not await self._holding.end(task, request):
                log.warning("message %s: its lease was lost; it may be delivered again", tag)
        except (Refused, Unreachable) as error:
            self._holding.leave(task)
            log.warning("message %s: its end was not taken: %s", tag, error)

    async def _stop(self) -> None:
        claims = tuple(self._claims)
        for each in claims:
            each.cancel()
        if claims:
            await asyncio.wait(claims)
        back = tuple(self._unacknowledged.values())
        self._arrived.clear()
        self._unacknowledged.clear()
        await self._holding.give_back(back)
        await self._holding.close()
