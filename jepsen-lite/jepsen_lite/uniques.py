"""Uniques: the clients that create tasks of a few unique keys, and those that work them off.

Some tasks are rejected, which lets go of their keys, and an operator requeues these dead letters.
"""

from __future__ import annotations

import asyncio
import itertools

from msgspec.structs import replace

from jepsen_lite.asking import Asker, Process, content_of
from jepsen_lite.clients import LEASE_S, PAUSE_S, TRIES, Clients
from jepsen_lite.history import Args, F, Merging, Type

UNIQUE_COMMAND = "unique"
PRODUCERS = 4
AT_ONCE = 4
WORKERS = 5
ATTEMPTS_MAX = 500  # So many that no task dies, which would let go of its key.
# Each create has one of these tags, which it gives to the task whose payload it replaces.
TAGS = ("r0", "r1", "r2")
TAG_NAME = "round"
# By key, what its creates do, and its debounce and longest wait in milliseconds.
KEYS = (
    Merging(key="u0", on="keepLast"),
    Merging(key="u1", on="replace"),
    Merging(key="u2", on="keepLast", debounce_ms=1000, max_wait_ms=2000),
    Merging(key="u3", on="replace", debounce_ms=1000, max_wait_ms=3000),
)


class Uniques(Clients):
    """The clients of a run's unique keys."""

    def __init__(self, client: Asker, *, seed: int, rate: float) -> None:
        super().__init__(client, seed=seed)
        self._rate = rate
        self._numbers = itertools.count()
        self._rejected: list[str] = []

    async def run(self, stop: asyncio.Event) -> None:
        """Create and requeue until `stop` is set, and let workers go on beside."""
        self._stop = stop
        async with asyncio.TaskGroup() as clients:
            for n in range(PRODUCERS):
                clients.create_task(self._produce(n))
            for n in range(WORKERS):
                clients.create_task(self._work(n))
            clients.create_task(self._revive())

    async def end(self, *, within_s: float) -> bool:
        """Work off all tasks; return whether that succeeded."""
        process = Process("unique-ender", self._seed)

        async def work() -> bool:
            return await self._worked_off(process, "worker-0")

        ended = await self._all_ended(process, UNIQUE_COMMAND, work, within_s=within_s)
        return ended is not None

    async def read_all(self, *, silent_s: float) -> bool:
        """List every task at rest; return whether that was answered."""
        process = Process("unique-list", self._seed)
        args = Args(command=UNIQUE_COMMAND, final=True)
        answer = await self._client.retried(process, F.PARTS, args, tries=max(2, int(silent_s)))
        for tag in TAGS:
            args = Args(command=UNIQUE_COMMAND, tag=tag, final=True)
            await self._client.retried(process, F.TAGGED, args, tries=max(2, int(silent_s)))
        return answer.type is Type.OK

    async def _produce(self, n: int) -> None:
        processes = [Process(f"merger-{n}-{part}", self._seed) for part in range(AT_ONCE)]
        rng = processes[0].random
        while not await self._paused(rng.uniform(0.5, 1.5) * PRODUCERS * AT_ONCE / self._rate):
            # Half of them come at once, through several nodes: a flood of one key.
            first = rng.choice(KEYS)
            is_flood = rng.random() < 0.5
            keys = [first if is_flood else rng.choice(KEYS) for _ in processes]
            async with asyncio.TaskGroup() as group:
                for process, merging in zip(processes, keys, strict=True):
                    group.create_task(self._merge(process, merging))

    async def _merge(self, process: Process, merging: Merging) -> None:
        number = next(self._numbers)
        args = Args(
            command=UNIQUE_COMMAND,
            content=content_of({"unique": merging.key, "n": number}),
            attempts_max=ATTEMPTS_MAX,
            merging=replace(merging, tag=TAGS[number % len(TAGS)]),
        )
        if process.random.random() < 0.5:
            await self._client.invoke(process, F.MERGE, args)
            return
        # Others of the same key may come between the first try and the next.
        args = replace(args, idempotency_key=f"{merging.key}/{number}")
        await self._client.retried(process, F.MERGE, args, tries=TRIES)

    async def _revive(self) -> None:
        """Requeue rejected tasks, whose keys others may have meanwhile."""
        process = Process("unique-operator", self._seed)
        rng = process.random
        while not await self._paused(rng.uniform(0.5, 1.5) * 2 / self._rate):
            if self._rejected:
                task = self._rejected.pop(rng.randrange(len(self._rejected)))
                args = Args(command=UNIQUE_COMMAND, task=task)
                answer = await self._client.invoke(process, F.REVIVE, args)
                self._rejected += [task] if answer.type is Type.FAIL else []

    async def _work(self, n: int) -> None:
        process = Process(f"unique-worker-{n}", self._seed)
        while not self._stop.is_set():
            if not await self._worked_off(process, f"worker-{n}", polite=False):
                await self._paused(PAUSE_S)

    async def _worked_off(self, process: Process, worker: str, *, polite: bool = True) -> bool:
        """Claim a task and end it, reject it or lose it; return whether there was one."""
        rng = process.random
        claim = Args(command=UNIQUE_COMMAND, lease_ms=1000 * LEASE_S)
        taken = await self._client.invoke(process, F.TAKE, claim, worker=worker)
        if taken.type is not Type.OK or not taken.out.task:
            return False
        held = Args(task=taken.out.task, token=taken.out.token)
        if not polite:
            await self._paused(rng.choice((0.0, 0.1, 0.3, 1.0, 3.0)))
            drawn = rng.random()
            if drawn < 0.15:
                return True  # Its lease brings it back.
            if drawn < 0.4:
                rejected = await self._client.invoke(process, F.REJECT, held, worker=worker)
                self._rejected += [held.task] if rejected.type is Type.OK else []
                return True
        done = replace(held, status="COMPLETED", content="{}")
        await self._client.invoke(process, F.FINISH, done, worker=worker)
        return True
