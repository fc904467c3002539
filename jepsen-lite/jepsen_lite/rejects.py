"""Rejects: the clients whose workers write a log, and reject some of their tasks."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from jepsen_lite.asking import Asker, Process
from jepsen_lite.clients import LEASE_S, OfOneQueue
from jepsen_lite.history import Args, F, Type

REJECT_COMMAND = "rejected"
WORKERS = 4
BEATS = 4  # Of one delivery, at most; each writes a line.
LINES_MAX = 200  # As the broker keeps them; the tasks of these clients have fewer.
LOGS = 60  # Of so many tasks, drawn, the logs are read at the end.


class Rejects(OfOneQueue):
    """The clients of a run's tasks that are rejected, and of their logs."""

    queue = REJECT_COMMAND
    offer = F.OFFER
    producers = 2

    def __init__(self, client: Asker, *, seed: int, rate: float) -> None:
        super().__init__(client, seed=seed, rate=rate)
        self._rejected: list[str] = []

    async def run(self, stop: asyncio.Event) -> None:
        """Create and requeue until `stop` is set, and let workers go on beside."""
        self._stop = stop
        async with asyncio.TaskGroup() as clients:
            for n in range(self.producers):
                clients.create_task(self._produce(Process(f"rejected-producer-{n}", self._seed)))
            for n in range(WORKERS):
                clients.create_task(self._work("rejecting-worker", n, (0.1, 0.3)))
            clients.create_task(self._revive())

    async def end(self, *, within_s: float) -> bool:
        """Work off all tasks; return whether that succeeded."""
        process = Process("rejected-drainer", self._seed)
        return await self._ended(process, within_s=within_s) is not None

    async def read_all(self, *, silent_s: float) -> bool:
        """List all tasks at rest, and read logs; return whether the list was answered."""
        process = Process("rejected-reader", self._seed)
        args = Args(command=REJECT_COMMAND, final=True)
        tries = max(2, int(silent_s))
        listed = await self._client.retried(process, F.LAST, args, tries=tries)
        for task in process.random.sample(self._ids, min(LOGS, len(self._ids))):
            args = Args(task=task, final=True)
            await self._client.retried(process, F.LOG, args, tries=tries)
        return listed.type is Type.OK

    async def _revive(self) -> None:
        """Requeue rejected tasks."""
        process = Process("rejected-operator", self._seed)
        rng = process.random
        while not await self._paused(rng.uniform(0.5, 1.5) * 2 / self._rate):
            if self._rejected:
                task = self._rejected.pop(rng.randrange(len(self._rejected)))
                args = Args(command=REJECT_COMMAND, task=task)
                await self._client.invoke(process, F.REVIVE, args)

    async def _worked_off(self, process: Process, worker: str, *, wait_s: float) -> bool:
        """Claim a task, write into its log, and end it; return whether there was one."""
        rng = process.random
        claim = Args(command=REJECT_COMMAND, lease_ms=1000 * LEASE_S)
        taken = await self._client.invoke(process, F.ACCEPT, claim, worker=worker)
        if taken.type is not Type.OK or not taken.out.task:
            return False
        held = Args(task=taken.out.task, token=taken.out.token)
        said = f"{held.task}/{held.token}"
        for n in range(rng.randint(1, BEATS) if wait_s else 0):
            await self._paused(wait_s)
            args = replace(held, lease_ms=1000 * LEASE_S, content=f"{said}/{n}")
            await self._client.invoke(process, F.BEAT, args, worker=worker)
        drawn = rng.random()
        if wait_s and drawn < 0.1:
            return True  # Its lease brings it back.
        if wait_s and drawn < 0.5:
            args = replace(held, content=f"no use: {said}")
            rejected = await self._client.invoke(process, F.REJECT, args, worker=worker)
            self._rejected += [held.task] if rejected.type is Type.OK else []
            if drawn < 0.3:
                return True
            # What is handed in after a reject must be refused.
        done = replace(held, status="COMPLETED", content=f'"{said}"')
        await self._client.invoke(process, F.HAND_IN, done, worker=worker)
        return True
