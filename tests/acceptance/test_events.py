"""Events: a watcher of real nodes misses no end of a task, whichever node is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing

import pytest

from codeq_cluster.client import Client, Task, TaskEvent, Worker
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import PRODUCER_TOKEN, WORKER_TOKENS

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMMAND = "watched"
BEFORE, AFTER = 60, 60  # Tasks that end before and after the kill.
WITHIN_S = 60.0


class Watcher:
    """Collects events until a number of tasks has ended."""

    def __init__(self) -> None:
        self.found: list[TaskEvent] = []
        self.ended: set[str] = set()
        self.more = asyncio.Event()

    async def watch(self, client: Client, after: str, count: int) -> None:
        """Follow the queue."""
        async with aclosing(client.events(command=COMMAND, after=after)) as stream:
            async for event in stream:
                self.found.append(event)
                if event.is_end:
                    self.ended.add(event.task_id)
                self.more.set()
                if len(self.ended) >= count:
                    return

    async def has(self, count: int) -> None:
        """Wait until so many tasks have ended."""
        while len(self.ended) < count:
            self.more.clear()
            await self.more.wait()


async def test_a_watcher_goes_on_at_another_node_when_its_node_is_killed(
    cluster: LocalCluster,
) -> None:
    """It sees the end of every task, and the entries of each shard in order and without a gap."""
    urls = cluster.urls
    others = [urls["n2"], urls["n3"]]
    watcher = Watcher()
    worker = Worker(others, token=WORKER_TOKENS["worker-0"], concurrency=8)

    @worker.task(COMMAND)
    async def handle(task: Task[int]) -> int:
        return task.payload

    async with (
        asyncio.timeout(WITHIN_S),
        Client([urls["n1"], *others], token=PRODUCER_TOKEN) as watching,
        Client(others, token=PRODUCER_TOKEN) as producing,
        asyncio.TaskGroup() as group,
    ):
        after = await watching.events_cursor()
        watched = group.create_task(watcher.watch(watching, after, BEFORE + AFTER))
        working = group.create_task(worker.serve(tasks_max=BEFORE + AFTER))
        made = [await producing.create(COMMAND, n) for n in range(BEFORE)]
        await watcher.has(BEFORE // 2)
        seen_at_n1 = len(watcher.found)
        await cluster.kill("n1")
        made += [await producing.create(COMMAND, n) for n in range(AFTER)]
        await watched
        await working
        again = Watcher()
        await again.watch(producing, after, BEFORE + AFTER)
    expected = {task.id for task in made}

    assert expected == watcher.ended == again.ended
    assert 0 < seen_at_n1 < len(watcher.found)
    # Another watcher, from the beginning on another node, is told of the same entries.
    assert _entries(again) == _entries(watcher)
    for events in _of_tasks(watcher).values():
        assert "completed" == events[-1].kind
        assert sorted(event.index for event in events) == [event.index for event in events]


def _entries(watcher: Watcher) -> set[tuple[int, int, str, str]]:
    return {(each.shard, each.index, each.task_id, each.kind) for each in watcher.found}


def _of_tasks(watcher: Watcher) -> Mapping[str, list[TaskEvent]]:
    """Return the events of each task; one that came again after the reconnect stands once."""
    told: dict[str, dict[tuple[int, str], TaskEvent]] = {}
    for event in watcher.found:
        told.setdefault(event.task_id, {}).setdefault((event.index, event.kind), event)
    return {task_id: list(events.values()) for task_id, events in told.items()}
