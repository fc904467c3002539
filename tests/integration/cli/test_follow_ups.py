"""Follow-ups: commands show what a result has made, and where a task comes from."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from codeq_cluster.cli.main import main
from codeq_cluster.client import Done, NewTask, Task
from codeq_cluster.testing.broker import LocalBroker


async def _chain(broker: LocalBroker) -> str:
    """Run a chain of three tasks; return the first one's id."""
    following = {"cli.first": ["cli.second"], "cli.second": ["cli.third"], "cli.third": []}
    worker = broker.worker()

    @worker.task(*following)
    async def handler(task: Task[int]) -> Done:
        return Done(next=[NewTask(command, 1) for command in following[task.command]])

    async with broker.client() as client:
        first = await client.create("cli.first", 1)
    await worker.serve(tasks_max=3)
    return first.id


@pytest.mark.parametrize("form", [["--json"], []])
def test_a_chain_is_walked_by_commands(
    broker: LocalBroker, capsys: pytest.CaptureFixture[str], form: list[str]
) -> None:
    """A result names the task that it made, and that task its parent and its root."""
    first = asyncio.run(_chain(broker))
    capsys.readouterr()

    def ran(*words: str) -> Any:
        assert 0 == main([*words, *form])
        return json.loads(capsys.readouterr().out)

    [second] = ran("task", "result", first)["result"]["next"]
    [third] = ran("task", "result", second["id"])["result"]["next"]
    task = ran("task", "get", third["id"])

    assert ["id"] == list(second)
    assert ("cli.third", second["id"], first) == (task["command"], task["parentId"], task["rootId"])
    assert not {"parentId", "rootId"} & ran("task", "get", first).keys()
    assert "next" not in ran("task", "result", third["id"])["result"]
