"""Groups: the clients that begin, fill and seal groups, and those that work off the members."""

from __future__ import annotations

import asyncio
import itertools

from msgspec.structs import replace

from jepsen_lite.asking import Asker, Process, content_of
from jepsen_lite.clients import LEASE_S, PAUSE_S, TRIES, WorkedOff
from jepsen_lite.history import Args, F, Follow, Type

MEMBER_COMMAND = "member"
THEN_COMMAND = "then"
WORKERS = 6
ATTEMPTS_MAX = 3


class Groups(WorkedOff):
    """The clients of a run's groups.

    Members are worked off outside of the history: a list of them at rest shows all. Some add to
    their group with their result, and some die of their attempts.
    """

    def __init__(self, client: Asker, *, seed: int, rate: float) -> None:
        super().__init__(client, seed=seed, rate=rate)
        self._numbers = itertools.count()
        self._names: list[str] = []

    async def run(self, stop: asyncio.Event) -> None:
        """Begin, fill and seal until `stop` is set, and let workers go on beside."""
        self._stop = stop
        async with asyncio.TaskGroup() as clients:
            for n in range(3):
                clients.create_task(self._author(n))
            for n in range(WORKERS):
                clients.create_task(self._work("member-worker", n, (0.0, 0.0, 0.1, 0.5, 3.0)))

    async def end(self, *, within_s: float) -> bool:
        """Seal all groups and work off their members; return whether all of them have ended."""
        process = Process("sealer", self._seed)
        waiting = []
        for name in self._names:
            answer = await self._client.retried(
                process, F.SEAL_GROUP, Args(group=name), tries=TRIES
            )
            if answer.type is Type.OK:
                waiting.append(name)
            elif answer.out.http != 404:
                return False
        deadline = asyncio.get_running_loop().time() + within_s
        while waiting:
            if asyncio.get_running_loop().time() > deadline:
                return False
            if await self._worked_off(process, "worker-0", wait_s=0.0):
                continue
            look = Args(group=waiting[0])
            answer = await self._client.unrecorded(process, F.GROUP, look, worker="worker-0")
            if answer.out.tally is not None and answer.out.tally.status in _ENDED:
                del waiting[0]
            else:
                await asyncio.sleep(PAUSE_S)
        return True

    async def read_all(self, *, silent_s: float) -> bool:
        """Read every group, member and completion task at rest; return whether all answered."""
        process = Process("roll-call", self._seed)
        tries = max(2, int(silent_s))
        asked = [(F.GROUP, Args(group=name, final=True)) for name in self._names]
        asked += [
            (F.PARTS, Args(command=command, final=True))
            for command in (MEMBER_COMMAND, THEN_COMMAND)
        ]
        answers = [await self._client.retried(process, f, args, tries=tries) for f, args in asked]
        return all(each.type is Type.OK or each.out.http == 404 for each in answers)

    async def _author(self, n: int) -> None:
        process = Process(f"grouper-{n}", self._seed)
        rng = process.random
        while not await self._paused(rng.uniform(0.5, 1.5) * 3 / self._rate):
            name = f"g{n}-{next(self._numbers)}"
            self._names.append(name)
            begin = Args(group=name, next=self._tasks(process, name, rng.randint(0, 6)))
            await self._client.retried(process, F.BEGIN_GROUP, begin, tries=TRIES)
            for position in range(rng.randint(0, 3)):
                tasks = self._tasks(process, name, rng.randint(1, 8))
                add = Args(group=name, next=tasks, idempotency_key=f"{name}.{position}")
                await self._client.retried(process, F.ADD_MEMBERS, add, tries=TRIES)
                await self._paused(rng.uniform(0, 1.0))
            if rng.random() < 0.8:  # The others are sealed at the end.
                await self._client.retried(process, F.SEAL_GROUP, Args(group=name), tries=TRIES)

    def _tasks(self, process: Process, name: str, count: int) -> tuple[Follow, ...]:
        """Draw members; one with an idempotency key may belong on another shard."""
        made = []
        for _ in range(count):
            number = next(self._numbers)
            key = f"{name}/{number}" if process.random.random() < 0.3 else ""
            made.append(Follow(content=content_of({"group": name, "n": number}), key=key))
        return tuple(made)

    async def _worked_off(self, process: Process, worker: str, *, wait_s: float) -> bool:
        """Claim a task and end it, outside of the history; return whether there was one."""
        rng = process.random
        for command in (MEMBER_COMMAND, THEN_COMMAND):
            claim = Args(command=command, lease_ms=1000 * LEASE_S)
            claimed = await self._asked(process, F.CLAIM, claim, worker)
            if claimed.type is not Type.OK or not claimed.out.task:
                continue
            await self._paused(wait_s)
            held = Args(task=claimed.out.task, token=claimed.out.token)
            drawn = rng.random()
            if command == MEMBER_COMMAND and drawn < 0.15:
                await self._asked(process, F.ABANDON, held, worker)
                return True
            failed = drawn < 0.3
            done = replace(
                held,
                status="FAILED" if failed else "COMPLETED",
                content="broken" if failed else "{}",
            )
            await self._asked(process, F.RESULT, done, worker)
            return True
        return False


_ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED"})
