"""Graces: the clients that cancel tasks of workers who are told of it, and heed it or not."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from jepsen_lite.asking import Process, content_of
from jepsen_lite.clients import LEASE_S, OfOneQueue
from jepsen_lite.history import Args, F, Type

GRACE_COMMAND = "graced"
CANCELLERS = 2
WORKERS = 6
GRACES_MS = (1000, 3000, 6000)
BEATS = 12  # Of one delivery; then its worker hands in what it has.
RECENT = 10  # As many tasks were made last as may be cancelled.


class Graces(OfOneQueue):
    """The clients of a run's tasks that are cancelled with a grace."""

    queue = GRACE_COMMAND
    offer = F.OFFER
    producers = 2

    async def run(self, stop: asyncio.Event) -> None:
        """Create and cancel until `stop` is set, and let workers go on beside."""
        self._stop = stop
        async with asyncio.TaskGroup() as clients:
            for n in range(self.producers):
                clients.create_task(self._produce(Process(f"graced-producer-{n}", self._seed)))
            for n in range(CANCELLERS):
                clients.create_task(self._cancel(n))
            for n in range(WORKERS):
                clients.create_task(self._work("graced-worker", n, (0.1, 0.4, 0.8)))

    async def end(self, *, within_s: float) -> bool:
        """Work off all tasks; return whether that succeeded."""
        process = Process("graced-drainer", self._seed)
        return await self._ended(process, within_s=within_s) is not None

    async def read_all(self, *, silent_s: float) -> bool:
        """List all tasks at rest; return whether that was answered."""
        process = Process("graced-reader", self._seed)
        args = Args(command=GRACE_COMMAND, final=True)
        tries = max(2, int(silent_s))
        return (await self._client.retried(process, F.LAST, args, tries=tries)).type is Type.OK

    async def _cancel(self, n: int) -> None:
        process = Process(f"canceller-{n}", self._seed)
        rng = process.random
        while not await self._paused(rng.uniform(0.5, 1.5) * CANCELLERS / self._rate):
            if not self._ids:
                continue
            task = rng.choice(self._ids[-RECENT:])
            args = Args(task=task, delay_ms=rng.choice(GRACES_MS))
            await self._client.invoke(process, F.STOP, args)

    async def _worked_off(self, process: Process, worker: str, *, wait_s: float) -> bool:
        """Claim a task and keep it for some heartbeats; return whether there was one."""
        claim = Args(command=GRACE_COMMAND, lease_ms=1000 * LEASE_S)
        taken = await self._client.invoke(process, F.ACCEPT, claim, worker=worker)
        if taken.type is not Type.OK or not taken.out.task:
            return False
        held = Args(task=taken.out.task, token=taken.out.token)
        for _ in range(BEATS if wait_s else 0):
            await self._paused(wait_s)
            drawn = process.random.random()
            if drawn < 0.03:
                return True  # Its lease brings it back, unless it is cancelled.
            args = replace(held, lease_ms=1000 * LEASE_S)
            beat = await self._client.invoke(process, F.BEAT, args, worker=worker)
            if beat.type is Type.FAIL and not beat.again:
                break  # What is handed in now must be refused, if the lease is lost.
            heeds = 0.5 if beat.out.until_ms else 0.1
            if drawn > 1 - heeds / 2:
                # Half of the workers go on after they have given it back.
                # The default pause is minutes after a few attempts, and a run ends before that.
                back = replace(held, delay_ms=1000)
                await self._client.invoke(process, F.RETURN, back, worker=worker)
                if process.random.random() < 0.5:
                    return True
            elif drawn > 1 - heeds:
                break
        content = content_of({"task": taken.out.task, "token": taken.out.token})
        done = replace(held, status="COMPLETED", content=content)
        await self._client.invoke(process, F.HAND_IN, done, worker=worker)
        return True
