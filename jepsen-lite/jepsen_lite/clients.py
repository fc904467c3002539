"""Clients: what the clients of one part of a run have in common, until they are to stop."""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from jepsen_lite.asking import Answer, Asker, Process, content_of
from jepsen_lite.history import Args, F, Part, Type

PAUSE_S = 0.2
TRIES = 40
LEASE_S = 2
_ATTEMPTS_MAX = 500  # So many that no task dies.


class Clients:
    """The clients of one part of a run.

    Args:
        client: Sends their operations.
        seed: Of the run.
    """

    def __init__(self, client: Asker, *, seed: int) -> None:
        self._client = client
        self._seed = seed
        self._stop = asyncio.Event()

    async def _paused(self, s: float) -> bool:
        """Wait for `s` seconds or until the stop; return whether the stop came."""
        try:
            async with asyncio.timeout(s):
                await self._stop.wait()
        except TimeoutError:
            return False
        return True

    async def _all_ended(
        self,
        process: Process,
        command: str,
        worked_off: Callable[[], Awaitable[bool]],
        *,
        within_s: float,
    ) -> Sequence[Part] | None:
        """Work off a queue until all its tasks have ended; return them, or None if it is late."""
        deadline = asyncio.get_running_loop().time() + within_s
        while asyncio.get_running_loop().time() < deadline:
            if await worked_off():
                continue
            look = Args(command=command)
            answer = await self._client.unrecorded(process, F.PARTS, look, worker="")
            if answer.type is Type.OK and all(each.ended for each in answer.out.parts):
                return answer.out.parts
            await asyncio.sleep(PAUSE_S)
        return None


class WorkedOff(Clients, ABC):
    """Clients of a part whose tasks are worked off outside of the history of the others' tasks."""

    def __init__(self, client: Asker, *, seed: int, rate: float) -> None:
        super().__init__(client, seed=seed)
        self._rate = rate

    @abstractmethod
    async def run(self, stop: asyncio.Event) -> None:
        """Go on until `stop` is set."""

    @abstractmethod
    async def end(self, *, within_s: float) -> bool:
        """Let everything end; return whether it has."""

    @abstractmethod
    async def read_all(self, *, silent_s: float) -> bool:
        """Read everything at rest; return whether all nodes answered."""

    @abstractmethod
    async def _worked_off(self, process: Process, worker: str, *, wait_s: float) -> bool:
        """Claim a task and end it, `wait_s` later; return whether there was one."""

    async def _work(self, name: str, n: int, waits_s: Sequence[float]) -> None:
        """Work off tasks until the stop; each takes one of these times."""
        process = Process(f"{name}-{n}", self._seed)
        while not self._stop.is_set():
            wait_s = process.random.choice(waits_s)
            if not await self._worked_off(process, f"worker-{n}", wait_s=wait_s):
                await self._paused(PAUSE_S)

    async def _all_worked_off(self, process: Process, *, within_s: float) -> bool:
        """Work off tasks until a lease has run out without another one."""
        deadline = asyncio.get_running_loop().time() + within_s
        idle = 0
        while idle < 2 * LEASE_S / PAUSE_S:
            if asyncio.get_running_loop().time() > deadline:
                return False
            found = await self._worked_off(process, "worker-0", wait_s=0.0)
            idle = 0 if found else idle + 1
            if not found:
                await asyncio.sleep(PAUSE_S)
        return True

    async def _asked(self, process: Process, f: F, args: Args, worker: str) -> Answer:
        return await self._client.unrecorded(process, f, args, worker=worker)


class OfOneQueue(WorkedOff):
    """Clients whose tasks are all of one queue, and none of which dies of its attempts.

    Attributes:
        queue: Its command.
        offer: The operation that creates a task.
        producers: How many clients create them.
    """

    queue: ClassVar[str]
    offer: ClassVar[F]
    producers: ClassVar[int]

    def __init__(self, client: Asker, *, seed: int, rate: float) -> None:
        super().__init__(client, seed=seed, rate=rate)
        self._numbers = itertools.count()
        self._ids: list[str] = []

    async def _produce(self, process: Process) -> None:
        """Create tasks until the stop, each once."""
        rng = process.random
        while not await self._paused(rng.uniform(0.5, 1.5) * self.producers / self._rate):
            number = next(self._numbers)
            args = Args(
                command=self.queue,
                content=content_of({self.queue: number}),
                idempotency_key=f"{self.queue} {number}",
                attempts_max=_ATTEMPTS_MAX,
            )
            answer = await self._client.retried(process, self.offer, args, tries=TRIES)
            self._ids += [answer.out.task] if answer.type is Type.OK else []

    async def _ended(self, process: Process, *, within_s: float) -> Sequence[Part] | None:
        """Work off all tasks; return them, or None if some have not ended in time."""

        async def work() -> bool:
            return await self._worked_off(process, "worker-0", wait_s=0.0)

        return await self._all_ended(process, self.queue, work, within_s=within_s)
