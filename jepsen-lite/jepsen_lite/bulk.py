"""Bulk: the clients that create the tasks of a field, and begin one bulk job about it."""

from __future__ import annotations

import asyncio
import itertools

from jepsen_lite.asking import Asker, Process, content_of
from jepsen_lite.clients import PAUSE_S, TRIES, Clients
from jepsen_lite.history import Args, F, Type

AUTHORS = 2  # Fewer than the jobs that a tenant may have at once.
AT_ONCE = 12
TAG_NAME = "field"


class Bulk(Clients):
    """The clients of a run's bulk jobs.

    A field is a queue of its own. Its job cancels its tasks by a tag, which some of them lack, or
    all of the queue, which walks over every task of the cluster. Nobody else ends them.
    """

    def __init__(self, client: Asker, *, seed: int, rate: float) -> None:
        super().__init__(client, seed=seed)
        self._rate = rate
        self._numbers = itertools.count()
        self._swept: list[str] = []

    async def run(self, stop: asyncio.Event) -> None:
        """Create tasks and begin jobs until `stop` is set."""
        self._stop = stop
        async with asyncio.TaskGroup() as clients:
            for n in range(AUTHORS):
                clients.create_task(self._author(n))

    async def end(self, *, within_s: float) -> bool:
        """Wait until every job has ended; return whether all have."""
        process = Process("bulk-ender", self._seed)
        deadline = asyncio.get_running_loop().time() + within_s
        waiting = list(self._swept)
        while waiting and asyncio.get_running_loop().time() < deadline:
            if await self._has_ended(process, waiting[0]):
                del waiting[0]
            else:
                await asyncio.sleep(PAUSE_S)
        return not waiting

    async def read_all(self, *, silent_s: float) -> bool:
        """Read every job and list the tasks of its field at rest; return whether all answered."""
        process = Process("bulk-list", self._seed)
        answers = [
            await self._client.retried(
                process, f, Args(command=field, final=True), tries=max(2, int(silent_s))
            )
            for field in self._swept
            for f in (F.SWEPT, F.PARTS)
        ]
        return all(each.type is Type.OK for each in answers)

    async def _author(self, n: int) -> None:
        processes = [Process(f"sower-{n}-{part}", self._seed) for part in range(AT_ONCE)]
        process = Process(f"sweeper-{n}", self._seed)
        rng = process.random
        while not await self._paused(rng.uniform(0.5, 1.5) * AUTHORS / self._rate):
            field = f"field-{n}-{next(self._numbers)}"
            tag = field if rng.random() < 0.5 else ""
            await self._sow(processes, field, rng.randint(1, 10))
            sweep = Args(command=field, tag=tag)
            async with asyncio.TaskGroup() as both:
                asked = both.create_task(self._client.retried(process, F.SWEEP, sweep, tries=TRIES))
                both.create_task(self._sow(processes, field, rng.randint(0, 2)))
            if asked.result().type is not Type.OK:
                continue  # What it has begun nobody can tell.
            self._swept.append(field)
            # The job goes on meanwhile; a leader that dies leaves it to the next one.
            await self._sow(processes, field, rng.randint(1, 3))
            while not await self._has_ended(process, field):
                if await self._paused(PAUSE_S):
                    return

    async def _sow(self, processes: list[Process], field: str, rounds: int) -> None:
        """Create tasks, a few at once; one of eight lacks the tag."""

        async def create(process: Process) -> None:
            for _ in range(rounds):
                number = next(self._numbers)
                tag = field if process.random.random() < 7 / 8 else "other"
                content = content_of({"field": field, "n": number})
                await self._client.invoke(
                    process, F.SOW, Args(command=field, content=content, tag=tag)
                )

        await asyncio.gather(*map(create, processes))

    async def _has_ended(self, process: Process, field: str) -> bool:
        look = Args(command=field)
        answer = await self._client.unrecorded(process, F.SWEPT, look, worker="")
        return answer.out.swept is not None and answer.out.swept.status == "DONE"
