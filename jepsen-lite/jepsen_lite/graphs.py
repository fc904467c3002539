"""Graphs: the clients that make tasks which wait for others, work them off and lose some."""

from __future__ import annotations

import asyncio
import itertools

from msgspec.structs import replace

from jepsen_lite.asking import Asker, Process, content_of
from jepsen_lite.clients import LEASE_S, TRIES, WorkedOff
from jepsen_lite.history import Args, F, Follow, Need, Out, Type

NODE_COMMAND = "node"
WORKERS = 6
ATTEMPTS_MAX = 2
LANES = 8
# As many tasks were made last as may get a dependent, or lose their dead letter.
RECENT = 40


class Graphs(WorkedOff):
    """The clients of a run's graphs.

    Tasks are handed out and ended in the history, under names of their own: what they were handed
    must be what others have returned. A list of them at rest shows how each has ended.
    """

    def __init__(self, client: Asker, *, seed: int, rate: float) -> None:
        super().__init__(client, seed=seed, rate=rate)
        self._numbers = itertools.count()
        self._ids: list[str] = []
        self._dead: list[str] = []

    async def run(self, stop: asyncio.Event) -> None:
        """Make graphs and dependents until `stop` is set, and let workers and an operator go on."""
        self._stop = stop
        async with asyncio.TaskGroup() as clients:
            for n in range(3):
                clients.create_task(self._author(n))
            for n in range(WORKERS):
                clients.create_task(self._work("node-worker", n, (0.0, 0.0, 0.1, 0.5, 3.0)))
            clients.create_task(self._operate())

    async def end(self, *, within_s: float) -> bool:
        """Work off what may run; return whether nothing is left of it."""
        return await self._all_worked_off(Process("node-drainer", self._seed), within_s=within_s)

    async def read_all(self, *, silent_s: float) -> bool:
        """List every task at rest; return whether that succeeded."""
        process = Process("surveyor", self._seed)
        listed = Args(command=NODE_COMMAND, final=True)
        tries = max(2, int(silent_s))
        answer = await self._client.retried(process, F.PARTS, listed, tries=tries)
        return answer.type is Type.OK

    async def _author(self, n: int) -> None:
        process = Process(f"grapher-{n}", self._seed)
        rng = process.random
        while not await self._paused(rng.uniform(0.5, 1.5) * 3 / self._rate):
            key = f"graph {n}-{next(self._numbers)}"
            if not self._ids or rng.random() < 0.5:
                f, next_ = F.MAKE_GRAPH, self._graph(process, key)
            else:
                node = Follow(content=self._content(key), needs=self._outside(process, 4))
                f, next_ = F.DEPEND, (node,)
            args = Args(command=NODE_COMMAND, next=next_, idempotency_key=key)
            answer = await self._client.retried(process, f, args, tries=TRIES)
            self._ids += [each.task for each in answer.out.next if each.task]

    def _graph(self, process: Process, key: str) -> tuple[Follow, ...]:
        """Draw tasks of which some wait for earlier ones, or for those of other graphs."""
        rng, made = process.random, []
        for place in range(rng.randint(2, 7)):
            inside = rng.sample(range(place), min(place, rng.randint(0, 2)))
            needs = [self._need(process, ref_of(each)) for each in inside]
            if rng.random() < 0.3:
                needs += self._outside(process, 1)
            # Its key may belong on another shard than the graph.
            lane = f"key {rng.randrange(LANES)}" if rng.random() < 0.3 else ""
            made.append(Follow(content=self._content(key), needs=tuple(needs), lane=lane))
        return tuple(made)

    def _outside(self, process: Process, most: int) -> tuple[Need, ...]:
        """Draw tasks that are there already, on any shard, ended or not."""
        known = self._ids[-RECENT:]
        wanted = process.random.sample(known, min(len(known), process.random.randint(1, most)))
        return tuple(self._need(process, each) for each in wanted)

    def _need(self, process: Process, parent: str) -> Need:
        rng = process.random
        return Need(
            parent=parent,
            run_if=rng.choice(("succeeded", "succeeded", "failed", "ended", "ended")),
            otherwise=rng.choice(("cancel", "cancel", "dead-letter")),
            on_dead=rng.choice(("hold", "fail")),
        )

    def _content(self, key: str) -> str:
        return content_of({"graph": key, "n": next(self._numbers)})

    async def _worked_off(self, process: Process, worker: str, *, wait_s: float) -> bool:
        rng = process.random
        claim = Args(command=NODE_COMMAND, lease_ms=1000 * LEASE_S)
        answer = await self._client.invoke(process, F.START, claim, worker=worker)
        if answer.type is not Type.OK or not answer.out.task:
            return False
        await self._paused(wait_s)
        drawn = rng.random()
        if drawn < 0.25:
            held = Args(task=answer.out.task, token=answer.out.token)
            answer = await self._asked(process, F.ABANDON, held, worker)
            self._dead += [held.task] if answer.out.dead else []
            return True
        ending = _ending(answer.out, failed=drawn < 0.4)
        await self._client.retried(process, F.END, ending, tries=4, worker=worker)
        return True

    async def _operate(self) -> None:
        """Cancel tasks, requeue dead letters and delete them."""
        process = Process("graph-operator", self._seed)
        rng = process.random
        while not await self._paused(rng.uniform(0.5, 1.5) / 2 / self._rate):
            known = self._dead if self._dead and rng.random() < 0.7 else self._ids
            if not known:
                continue
            args = Args(command=NODE_COMMAND, task=rng.choice(known[-RECENT:]))
            if known is self._ids and rng.random() < 0.5:
                await self._asked(process, F.CANCEL, args, "")
            else:
                f = rng.choice((F.REVIVE, F.REVIVE, F.BURY))
                await self._client.invoke(process, f, args)


def ref_of(place: int) -> str:
    """Return the name of a task in the request that makes it."""
    return f"n{place}"


def _ending(task: Out, *, failed: bool) -> Args:
    """Return a result that no other delivery has."""
    held = Args(task=task.task, token=task.token)
    told = content_of({"task": task.task, "token": task.token})
    if failed:
        return replace(held, status="FAILED", content=f"broken: {task.task} {task.token}")
    return replace(held, status="COMPLETED", content=told)
