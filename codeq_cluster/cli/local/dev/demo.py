"""Demo: work on a development cluster, while the leader's process is killed again and again."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import uvloop

from codeq_cluster.cli.local.dev.demo_checks import (
    BURST,
    RATE_COUNT,
    RATE_S,
    TICK_S,
    Row,
    Seen,
    completed_once,
    ended_once,
    fired_once,
    one_at_a_time,
    within_rate,
)
from codeq_cluster.cli.local.dev.plan import PlannedNode
from codeq_cluster.cli.local.dev.readiness import all_ready
from codeq_cluster.cli.local.dev.supervisor import Supervisor
from codeq_cluster.cli.local.serve import until_signal
from codeq_cluster.cli.support.checks import Check
from codeq_cluster.cli.support.dev_cluster import TOKEN, published
from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.cli.support.output import document
from codeq_cluster.client import Client, NewTask, Operator, Task, Worker
from codeq_cluster.errors import CodeqError

MEMBERS = 1000
KEYS = 5

_KILL_EVERY_S = 5
_ADDED_AT_ONCE = 50
_KEYED_EVERY_S = 0.1
_IN_A_ROW = 4  # Of one key, more than may go at once.
_REST_S = 12.0  # A node that was killed is left alone for so long, if another leads a shard.
_DEADLINE_S = 60.0  # Of one call, over the deaths of leaders.
_LEASE_S = 5
_ENDED_WITHIN_S = 120.0
_LOOK_S = 0.2


def demonstrate(
    nodes: Sequence[PlannedNode],
    directory: Path,
    *,
    seconds: int,
    say: Callable[[str], None],
    as_json: bool,
) -> Exit:
    """Run a cluster and the demo on it, print the verdict, and return 0 if all promises hold."""
    demo = Demo(nodes, directory, seconds=seconds, say=say)
    judged: list[Check] = []

    async def play() -> None:
        supervisor = Supervisor(nodes, directory, restart=True, say=say)
        async with asyncio.TaskGroup() as group:
            cluster = group.create_task(supervisor.run(f"READY: {len(nodes)} nodes; {seconds} s"))
            await all_ready(nodes)
            judged.extend(await demo.run())
            cluster.cancel()

    uvloop.run(until_signal(play()))
    if not judged:
        return Exit.INTERRUPTED
    holds = all(each.holds for each in judged)
    if as_json:
        checks = [each.document() for each in judged]
        document({"holds": holds, "kills": demo.kills, "checks": checks}, compact=True)
    else:
        print(f"\nkilled the leader {demo.kills} times", *judged, sep="\n")
        print("every promise holds" if holds else "a promise is broken or unknown")
    return Exit.OK if holds else Exit.ERROR


class Demo:
    """One run of the demo: a schedule, a group, and serial keys with a rate.

    Args:
        nodes: Of the cluster, which runs and starts again what dies.
        seconds: How long leaders are killed.
        say: Told of each death.
    """

    def __init__(
        self,
        nodes: Sequence[PlannedNode],
        directory: Path,
        *,
        seconds: int,
        say: Callable[[str], None],
    ) -> None:
        self._nodes = nodes
        self._directory = directory
        self._seconds = seconds
        self._say = say
        self._seen = Seen()
        self._killed: dict[str, float] = {}
        self.kills = 0
        urls = [node.url for node in nodes]
        self._client = Client(urls, token=TOKEN, deadline_s=_DEADLINE_S)
        self._operator = Operator(urls, token=TOKEN, deadline_s=_DEADLINE_S)
        self._worker = Worker(
            urls, token=TOKEN, concurrency=32, lease_s=_LEASE_S, wait_s=2, ended=self._seen.ended
        )
        self._name = f"demo-{uuid4().hex[:8]}"
        self._commands = [f"{self._name}.{what}" for what in ("member", "report", "keyed", "tick")]
        self._worker.task(*self._commands)(_work)

    async def run(self) -> list[Check]:
        """Play it and judge it.

        Raises:
            CodeqError: The work did not end in time, or the broker does not take it.
        """
        async with self._client, self._operator:
            await self._begin()
            async with asyncio.TaskGroup() as beside:
                worker = beside.create_task(self._worker.serve())
                stop = asyncio.Event()
                async with asyncio.TaskGroup() as load:
                    load.create_task(self._group())
                    load.create_task(self._create_keyed(stop))
                    await self._kill()
                    stop.set()
                await all_ready(self._nodes)
                await self._operator.pause_schedule(self._name)
                await self._ended()
                self._worker.stop()
                await worker
            return await self._judge()

    async def _begin(self) -> None:
        _, _, keyed, tick = self._commands
        rate = {"count": RATE_COUNT, "perSeconds": RATE_S, "burst": BURST}
        rule = {"perKey": {"maxRunning": 1, "rate": rate}}
        topic: Mapping[str, Any] = await self._operator.put_topic(keyed, {"flow": rule})
        while "settling" in topic:
            await asyncio.sleep(_LOOK_S)
            topic = await self._operator.topic(keyed)
        await self._operator.put_schedule(
            {
                "id": self._name,
                "every": f"{TICK_S}s",
                "task": {"command": tick, "payload": {"ms": 20}},
                "overlap": "allow",
                "missed": {"policy": "all", "windowSeconds": 3600},
            }
        )

    async def _group(self) -> None:
        """Begin a group and add its members over most of the time."""
        member, report, *_ = self._commands
        rounds = MEMBERS // _ADDED_AT_ONCE
        async with self._client.group(self._name, then=NewTask(report, {"ms": 20})) as group:
            for _ in range(rounds):
                await asyncio.sleep(self._seconds * 0.7 / rounds)
                added = await group.add(*[NewTask(member, {"ms": 20})] * _ADDED_AT_ONCE)
                self._seen.acknowledged |= {each.id for each in added.tasks}

    async def _create_keyed(self, stop: asyncio.Event) -> None:
        """Create tasks of a few keys, a little slower than the rate lets them go."""
        number = 0
        while not stop.is_set():
            number += 1
            key = f"key-{number // _IN_A_ROW % KEYS}"
            made = await self._client.create(self._commands[2], {"ms": 150}, key=key)
            self._seen.acknowledged.add(made.id)
            await asyncio.sleep(_KEYED_EVERY_S)

    async def _kill(self) -> None:
        begun_s = time.monotonic()
        for at_s in range(_KILL_EVERY_S, self._seconds + 1, _KILL_EVERY_S):
            await asyncio.sleep(begun_s + at_s - time.monotonic())
            await self._kill_a_leader()
        await asyncio.sleep(begun_s + self._seconds - time.monotonic())

    async def _kill_a_leader(self) -> None:
        """Kill the leader of some shard, rather one that has not been killed a moment ago."""
        pids = {row["id"]: row["pid"] for row in published(self._directory)}
        status = await self._operator.raft_status()
        leaders = [group["leaderId"] for group in status["groups"]]
        running = [each for each in leaders if pids.get(each) is not None]
        now_s = time.monotonic()
        rested = [each for each in running if now_s - self._killed.get(each, 0.0) > _REST_S]
        for victim in (rested or running)[:1]:
            with suppress(ProcessLookupError):
                os.kill(int(str(pids[victim])), signal.SIGKILL)
            self._killed[victim] = now_s
            self.kills += 1
            self._say(f"kill -9 {victim}, which led shard {leaders.index(victim)}")

    async def _ended(self) -> None:
        """Wait until nothing of the demo is left to do."""
        until_s = time.monotonic() + _ENDED_WITHIN_S
        while True:
            group = await self._client.group_record(self._name)
            depths = [await self._operator.queue(command) for command in self._commands]
            left = sum(
                depth.get(place, 0)
                for depth in depths
                for place in ("ready", "delayed", "inProgress", "held")
            )
            if group.ended_at is not None and not left:
                return
            if time.monotonic() > until_s:
                raise CodeqError(f"{left} tasks did not end within {_ENDED_WITHIN_S:g} s")
            await asyncio.sleep(_LOOK_S)

    async def _judge(self) -> list[Check]:
        members, reports, keyed, ticks = [await self._rows(each) for each in self._commands]
        group = await self._client.group_record(self._name)
        schedule = await self._operator.schedule(self._name)
        await self._operator.delete_schedule(self._name)
        await self._operator.delete_topic(self._commands[2])
        return [
            ended_once(self._seen, (*members, *reports, *keyed, *ticks)),
            completed_once(group, members, reports),
            one_at_a_time(keyed),
            within_rate(keyed),
            fired_once(schedule, ticks),
        ]

    async def _rows(self, command: str) -> list[Row]:
        rows: list[Row] = []
        cursor = ""
        while True:
            page = await self._operator.tasks(command=command, cursor=cursor)
            rows += page.rows
            cursor = page.cursor
            if not cursor:
                return rows


async def _work(task: Task[Any]) -> Mapping[str, str]:
    await asyncio.sleep(task.payload["ms"] / 1000)
    return {"of": task.id}
