"""Bench load: tasks created, claimed and completed as fast as a cluster takes them."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import ceil

from codeq_cluster.cli.work.load_flags import tasks_of_others
from codeq_cluster.cli.work.whole_creates import CLEAN_S_MAX, WholeCreates
from codeq_cluster.client import (
    Client,
    Leases,
    NewTask,
    NotCreated,
    Refused,
    TaskRecord,
    Unreachable,
)
from codeq_cluster.errors import CodeqError, first_of

_CLAIMERS_MAX = 8
_CLAIM_MAX = 100  # The broker's own bound.
_WAITING_MAX = 4  # Tasks waiting to be claimed or completed, per task in flight.
_LEASE_S = 60
_CLAIM_WAIT_S = 1
_LOOK_S = 0.1
_DRAIN_S_MAX = 30.0
_FAILURES_MAX = 100  # With this many failures, the cluster cannot be measured.
_RESULT = b'{"done":true}'


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchLoad:
    """The load to apply.

    Attributes:
        queue: The queue, which nobody else uses.
        in_flight: Concurrent creates, and as many concurrent results.
        batch: Tasks per create.
    """

    queue: str
    seconds: float
    in_flight: int
    batch: int
    payload_bytes: int

    @property
    def payload(self) -> str:
        """Return a payload of the wanted size, the quotes of its JSON text included."""
        return "x" * max(0, self.payload_bytes - 2)


@dataclass(slots=True)
class Figures:
    """The measurements so far; times in seconds.

    Attributes:
        creating: Of each create, until its answer.
        completing: Of each task, from its create to the answer to its result.
        left: Tasks that could not be completed in time; they are cancelled.
    """

    creating: array[float] = field(default_factory=lambda: array("d"))
    completing: array[float] = field(default_factory=lambda: array("d"))
    created: int = 0
    load_s: float = 0.0
    whole_s: float = 0.0
    failures: int = 0
    first_failure: str = ""
    left: int = 0

    @property
    def completed(self) -> int:
        """The number of completed tasks."""
        return len(self.completing)

    def failed(self, error: CodeqError | str) -> None:
        """Count a failed request.

        Raises:
            CodeqError: The token is refused, or almost everything fails.
        """
        if isinstance(error, Refused) and error.status in (401, 403):
            raise error
        self.failures += 1
        self.first_failure = self.first_failure or str(error)
        if self.failures >= _FAILURES_MAX and self.failures > self.created:
            raise CodeqError(f"{self.failures} requests failed, the first: {self.first_failure}")


class Bench:
    """Loads a cluster once.

    Args:
        client: Creates.
        leases: Claims and completes.
        on_progress: Called now and then with the figures, to show progress.
    """

    def __init__(
        self,
        client: Client,
        leases: Leases,
        load: BenchLoad,
        *,
        on_progress: Callable[[Figures], None],
    ) -> None:
        self._client = client
        self._leases = leases
        self._load = load
        self._on_progress = on_progress
        self._figures = Figures()
        # By task: when its create began. Bounded, since creates wait for room.
        self._open: dict[str, float] = {}
        self._creates = WholeCreates()
        # By task: when it was completed, if its create is not answered yet.
        self._early: dict[str, float] = {}
        self._others: list[TaskRecord] = []  # Tasks that somebody else has created.
        self._room = asyncio.Semaphore(_WAITING_MAX * load.in_flight * load.batch)
        self._over = False
        self._is_enough = False

    async def run(self) -> Figures:
        """Create for the set time, complete the rest, cancel leftovers; return the figures.

        Raises:
            CodeqError: A token is refused, nearly every request fails, or others have tasks here.
        """
        began_s = time.monotonic()
        try:
            async with asyncio.TaskGroup() as working:
                claiming = [working.create_task(self._claimer()) for _ in range(self._claimers)]
                try:
                    async with asyncio.TaskGroup() as creating:
                        for _ in range(self._load.in_flight):
                            creating.create_task(self._creator())
                        creating.create_task(self._until(began_s + self._load.seconds))
                    self._figures.load_s = time.monotonic() - began_s
                    await self._drained(time.monotonic() + _DRAIN_S_MAX)
                    self._figures.whole_s = time.monotonic() - began_s
                finally:
                    # A cancellation can be lost when a request fails at the same moment; the flag
                    # ends the loop all the same.
                    self._is_enough = True
                    for each in claiming:
                        each.cancel()
        except BaseExceptionGroup as group:
            raise first_of(group) from group  # The others repeat it: all ask one cluster.
        finally:
            await self._creates.settle()
            self._figures.left = len(self._open)
            await self._clean()
        return self._figures

    @property
    def _claimers(self) -> int:
        return min(_CLAIMERS_MAX, self._load.in_flight)

    async def _until(self, ends_s: float) -> None:
        while (left_s := ends_s - time.monotonic()) > 0:
            self._on_progress(self._figures)
            await asyncio.sleep(min(_LOOK_S, left_s))
        self._over = True

    async def _drained(self, ends_s: float) -> None:
        while self._open and time.monotonic() < ends_s:
            self._on_progress(self._figures)
            await asyncio.sleep(_LOOK_S)

    async def _creator(self) -> None:
        while not self._over:
            for _ in range(self._load.batch):
                await self._room.acquire()
            await self._creates.run(self._create())

    async def _create(self) -> None:
        load, figures = self._load, self._figures
        began_s = time.monotonic()
        made: Sequence[TaskRecord | NotCreated] = ()
        try:
            if load.batch == 1:
                made = [await self._client.create(load.queue, load.payload)]
            else:
                tasks = [NewTask(load.queue, load.payload)] * load.batch
                made = await self._client.create_many(tasks)
        except (Refused, Unreachable) as error:
            figures.failed(error)
        else:
            figures.creating.append(time.monotonic() - began_s)
        for each in made:
            self._made(each, began_s)
        for _ in range(load.batch - len(made)):
            self._room.release()

    def _made(self, outcome: TaskRecord | NotCreated, began_s: float) -> None:
        if isinstance(outcome, NotCreated):
            self._room.release()
            self._figures.failed(outcome.error)
            return
        self._figures.created += 1
        ended_s = self._early.pop(outcome.id, None)
        if ended_s is None:
            self._open[outcome.id] = began_s
        else:
            self._ended(began_s, ended_s)

    def _ended(self, began_s: float, ended_s: float) -> None:
        self._figures.completing.append(ended_s - began_s)
        self._room.release()

    async def _claimer(self) -> None:
        count = min(_CLAIM_MAX, ceil(self._load.in_flight / self._claimers))
        while not self._is_enough:
            try:
                tasks = await self._leases.claim(
                    [self._load.queue], count=count, lease_s=_LEASE_S, wait_s=_CLAIM_WAIT_S
                )
            except (Refused, Unreachable) as error:
                self._figures.failed(error)
                await asyncio.sleep(_LOOK_S)
                continue
            others = [each for each in tasks if each.payload != f'"{self._load.payload}"']
            if others:
                self._others += others
                raise tasks_of_others(self._load.queue, others[0].id)
            await asyncio.gather(*(self._complete(task) for task in tasks))

    async def _complete(self, task: TaskRecord) -> None:
        try:
            await self._leases.complete(task, _RESULT)
        except (Refused, Unreachable) as error:
            self._figures.failed(error)
            return
        began_s = self._open.pop(task.id, None)
        if began_s is None:
            # The create's answer is still on its way or was lost; if it was lost, the task is not
            # counted.
            self._early[task.id] = time.monotonic()
        else:
            self._ended(began_s, time.monotonic())

    async def _clean(self) -> None:
        """Cancel the remaining tasks, which no worker would ever take; return those of others."""
        many = asyncio.Semaphore(self._load.in_flight)

        async def let_go(request: Callable[[], Awaitable[object]]) -> None:
            async with many:
                with suppress(Refused, Unreachable):  # Tasks that are left are counted in any case.
                    await request()

        with suppress(TimeoutError):
            async with asyncio.timeout(CLEAN_S_MAX), asyncio.TaskGroup() as cleaning:
                for task in self._others:
                    cleaning.create_task(let_go(partial(self._leases.abandon, task)))
                for task_id in self._open:
                    cleaning.create_task(let_go(partial(self._client.cancel, task_id)))
