"""Holding: the tasks that a worker of another framework has claimed, from claim to end."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from codeq_cluster.client import Leases, Refused, TaskRecord, Unreachable

LEASE_S: Final = 60
CLAIM_MAX: Final = 100  # The broker's bound on one claim.
WAIT_S: Final = 10  # Of one claim, for a task to come.

RENEWALS_A_LEASE: Final = 3  # After one that failed there is time for another.
_RENEWED_AT_ONCE: Final = 1000  # The broker's bound on one request.
END_WITHIN_S: Final = 120.0  # Of an end that nobody awaits; the lease is renewed meanwhile.
RETURN_WITHIN_S: Final = 5.0  # When it closes; then the lease's end returns the task.
LOST: Final = frozenset({"lease-lost", "not-in-progress", "not-found", "not-owner"})

_NO_NAME: Final = re.compile(r"[^A-Za-z0-9._:@-]")

log = logging.getLogger(__name__)


class Holding:
    """Claimed tasks, whose leases are renewed until the broker has taken their end.

    All of its calls are for one event loop.
    """

    def __init__(self, leases: Leases, *, lease_s: int, worker_name: str) -> None:
        """Prepare it; nothing is claimed yet.

        Args:
            lease_s: How long a task stays away after its worker has died.
            worker_name: What the broker calls this worker, for people.
        """
        self._leases = leases
        self._lease_s = lease_s
        self._worker_name = worker_name
        self._held: dict[str, TaskRecord] = {}
        # Those whose end is asked for, each with the task of the loop that asks.
        self._ending: dict[str, asyncio.Task[Any]] = {}
        self._renewing: asyncio.Task[None] | None = None

    def count(self, command: str) -> int:
        """Return how many tasks of a queue are held whose end was not asked for yet."""
        folded = command.lower()
        # A copy, because another thread may ask.
        return sum(
            task.command.lower() == folded and tag not in self._ending
            for tag, task in tuple(self._held.items())
        )

    async def claim(
        self, commands: Sequence[str], *, count: int, wait_s: int = WAIT_S
    ) -> Sequence[TaskRecord]:
        """Claim up to `count` tasks, and wait for the first one.

        Raises:
            Refused: The broker refuses claims.
            Unreachable: No node answered.
        """
        tasks = await self._leases.claim(
            commands,
            count=min(count, CLAIM_MAX),
            lease_s=self._lease_s,
            wait_s=wait_s,
            worker_name=self._worker_name,
        )
        self._held.update((tag_of(task), task) for task in tasks)
        if tasks and self._renewing is None:
            self._renewing = asyncio.create_task(self._renew())
        return tasks

    async def end(
        self, task: TaskRecord, request: Callable[[TaskRecord], Coroutine[Any, Any, object]]
    ) -> bool:
        """End a task by a request of `Leases`; return False if it was no longer this worker's.

        Raises:
            Refused: The broker refused this end; the task is still held.
            Unreachable: No node took it; the task is still held.
        """
        tag = tag_of(task)
        if tag not in self._held:
            return False
        under_way = asyncio.current_task()
        assert under_way is not None
        self._ending[tag] = under_way
        try:
            await request(task)
        except Refused as error:
            if error.code not in LOST:
                raise
            self._held.pop(tag, None)
            return False
        finally:
            self._ending.pop(tag, None)
        self._held.pop(tag, None)
        return True

    def leave(self, task: TaskRecord) -> None:
        """Renew a task's lease no more, so that the task returns when it ends."""
        self._held.pop(tag_of(task), None)

    async def give_back(self, tasks: Sequence[TaskRecord], *, reason: str = "") -> None:
        """Return tasks to their queues, within a bound; what is not taken returns by its lease.

        Args:
            tasks: Those that are not held any more are left alone.
            reason: If there is one, a task waits for its queue's back-off, and shows it.
        """
        await asyncio.gather(*(self._returned(task, reason) for task in tasks))

    async def set_aside(self, task: TaskRecord, reason: str) -> None:
        """Make a task a dead letter, within a bound; one that is not taken returns by its lease."""
        leases = self._leases
        await self._ended(task, lambda held: leases.reject(held, reason, within_s=RETURN_WITHIN_S))

    async def close(self) -> None:
        """Return everything that is held once what ends has ended, and renew nothing any more."""
        if self._ending:
            await asyncio.wait(tuple(self._ending.values()), timeout=self._lease_s)
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait({self._renewing})
            self._renewing = None
        await self.give_back(tuple(self._held.values()))

    async def _renew(self) -> None:
        """Renew every lease, three times a lease, until it closes."""
        while True:
            await asyncio.sleep(self._lease_s / RENEWALS_A_LEASE)
            held = tuple(self._held.values())
            parts = range(0, len(held), _RENEWED_AT_ONCE)
            await asyncio.gather(*(self._renewed(held[n : n + _RENEWED_AT_ONCE]) for n in parts))

    async def _renewed(self, tasks: Sequence[TaskRecord]) -> None:
        try:
            answers = await self._leases.heartbeats(
                [(task, self._lease_s) for task in tasks],
                within_s=self._lease_s / RENEWALS_A_LEASE,
            )
        except (Refused, Unreachable) as error:
            log.warning("%d leases were not renewed: %s", len(tasks), error)
            return
        for task, kept in zip(tasks, answers, strict=True):
            tag = tag_of(task)
            # An end that is under way may have taken the lease itself, and hears if it did not.
            if not kept.code or tag in self._ending:
                continue
            if kept.code not in LOST:
                log.warning("task %s: its lease was not renewed: %s", task.id, kept.error)
            elif self._held.pop(tag, None) is not None:
                log.warning("task %s: its lease was lost: %s", task.id, kept.error)

    async def _returned(self, task: TaskRecord, reason: str) -> None:
        leases = self._leases
        if reason:
            await self._ended(
                task, lambda held: leases.nack(held, reason, within_s=RETURN_WITHIN_S)
            )
        else:
            await self._ended(task, lambda held: leases.abandon(held, within_s=RETURN_WITHIN_S))

    async def _ended(
        self, task: TaskRecord, request: Callable[[TaskRecord], Coroutine[Any, Any, object]]
    ) -> None:
        try:
            await self.end(task, request)
        except (Refused, Unreachable) as error:
            self.leave(task)
            log.warning("task %s: returns when its lease ends: %s", task.id, error)


def tag_of(task: TaskRecord) -> str:
    """Return the name of a delivery of a task: another one for each claim."""
    return f"{task.id}.{task.lease_token}"


def has_lease(tag: str) -> bool:
    """Return whether a delivery was claimed; a broadcast was not, and has no end."""
    return not tag.endswith(".0")


def this_worker() -> str:
    """Return what the broker calls this process, for people."""
    return f"{_NO_NAME.sub('-', socket.gethostname())[:100]}:{os.getpid()}"
