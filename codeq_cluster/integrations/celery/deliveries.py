"""Deliveries: the messages that a channel holds, from their claim to their acknowledgement."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final

from codeq_cluster.client import TOO_EARLY, Refused, TaskRecord, Unreachable
from codeq_cluster.errors import CodeqError
from codeq_cluster.integrations.holding import (
    END_WITHIN_S,
    LOST,
    RENEWALS_A_LEASE,
    RETURN_WITHIN_S,
    WAIT_S,
    tag_of,
)
from codeq_cluster.integrations.link import Forked, Link, may_pass

_RENEWED_AT_ONCE: Final = 50
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
            link: The cluster.
            lease_s: How long a message stays away after its worker has died.
            wake: Set whenever there is a message, room for one, or an error.
            worker: What the broker calls this consumer, for people.
        """
        self._link = link
        self._lease_s = lease_s
        self._wake = wake
        self._worker = worker
        self._arrived: deque[TaskRecord] = deque()
        self._held: dict[str, TaskRecord] = {}
        self._unacknowledged: set[str] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._claiming: Future[None] | None = None
        self._claims: set[asyncio.Task[None]] = set()
        self._renewing: asyncio.Task[None] | None = None
        self._failure: CodeqError | None = None
        self._closed = False

    @property
    def unacknowledged(self) -> int:
        """How many messages were claimed and not acknowledged or rejected."""
        return len(self._unacknowledged)

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
        self._claiming = self._link.start(self._claim(commands, count=count, wait_s=WAIT_S))

    def get(self, command: str) -> TaskRecord | None:
        """Claim one task now, or return None."""
        self._link.run(self._claim([command], count=1, wait_s=0))
        return self.next()

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
        with suppress(Forked):
            self._link.start(self._stop())

    def _end(
        self,
        tag: str,
        request: Callable[[TaskRecord], Coroutine[Any, Any, object]],
        *,
        wait: bool = False,
    ) -> None:
        if tag not in self._unacknowledged:
            return
        task = self._held.get(tag)
        self._unacknowledged.discard(tag)
        self._wake.set()
        if task is None:
            log.warning("message %s: its lease was lost; it may be delivered again", tag)
            return
        ending = self._link.send_off(self._ended(tag, task, request))
        if wait:
            ending.result()

    async def _claim(self, commands: Sequence[str], *, count: int, wait_s: int) -> None:
        under_way = _under_way()
        self._claims.add(under_way)
        try:
            tasks = await self._link.leases.claim(
                commands,
                count=count,
                lease_s=self._lease_s,
                wait_s=wait_s,
                worker_name=self._worker,
            )
        except (Refused, Unreachable) as error:
            if wait_s == 0 or not may_pass(error):
                self._failure = error
            else:
                log.warning("no messages, trying again: %s", error)
                await asyncio.sleep(_PAUSE_S)
            tasks = ()
        finally:
            self._claims.discard(under_way)
        for task in tasks:
            tag = tag_of(task)
            self._held[tag] = task
            self._unacknowledged.add(tag)
            self._arrived.append(task)
        if tasks and self._renewing is None:
            self._renewing = asyncio.create_task(self._renew())
        self._wake.set()

    async def _renew(self) -> None:
        """Renew the lease of everything held, three times a lease, until the channel closes."""
        at_once = asyncio.Semaphore(_RENEWED_AT_ONCE)
        while True:
            await asyncio.sleep(self._lease_s / RENEWALS_A_LEASE)
            async with asyncio.TaskGroup() as group:
                for tag in tuple(self._held):
                    group.create_task(self._renewed(tag, at_once))

    async def _renewed(self, tag: str, at_once: asyncio.Semaphore) -> None:
        async with at_once:
            task = self._held.get(tag)
            if task is None:
                return
            try:
                await self._link.leases.heartbeat(
                    task, extend_s=self._lease_s, within_s=self._lease_s / RENEWALS_A_LEASE
                )
            except (Refused, Unreachable) as error:
                if isinstance(error, Refused) and error.code in LOST:
                    # An end that is under way has taken the lease itself.
                    if self._held.pop(tag, None) and tag in self._unacknowledged:
                        log.warning("message %s: its lease was lost: %s", tag, error)
                else:
                    log.warning("message %s: its lease was not renewed: %s", tag, error)

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
        under_way = _under_way()
        self._ending.add(under_way)
        try:
            await request(task)
        except (Refused, Unreachable) as error:
            log.warning("message %s: its end was not taken: %s", tag, error)
        finally:
            self._held.pop(tag, None)
            self._ending.discard(under_way)

    async def _stop(self) -> None:
        running = {*self._claims, *([self._renewing] if self._renewing else ())}
        for each in running:
            each.cancel()
        if running:
            await asyncio.wait(running)
        back = [self._held[tag] for tag in self._unacknowledged if tag in self._held]
        self._arrived.clear()
        self._unacknowledged.clear()
        await asyncio.gather(*map(self._returned, back), *self._ending)
        self._held.clear()

    async def _returned(self, task: TaskRecord) -> None:
        try:
            await self._link.leases.abandon(task, within_s=RETURN_WITHIN_S)
        except (Refused, Unreachable) as error:
            log.warning("message %s: returns when its lease ends: %s", tag_of(task), error)


def _under_way() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return task
