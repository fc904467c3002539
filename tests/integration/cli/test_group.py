"""Groups from the command line: begun, filled, sealed, shown and cancelled."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from codeq_cluster.cli.main import main
from codeq_cluster.client import Task
from codeq_cluster.testing.broker import LocalBroker


def test_a_group_is_worked_through_by_commands(
    broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """The completion task has the payload that the command said, and true counts."""
    seen: list[Any] = []
    worker = broker.worker()

    @worker.task("cli.member", "cli.then")
    async def handler(task: Task[Any]) -> int:
        if task.record.group is not None:
            seen.append((task.payload, task.record.group.completed))
        return 1

    def ran(*words: str) -> str:
        assert 0 == main(["group", *words])
        return capsys.readouterr().out.strip()

    then = ("--then", "cli.then", "--then-payload", '{"of": 7}', "--then-if", "succeeded")
    assert "cli-7 OPEN" == ran("create", "cli-7", *then)
    for payload in ("1", "2"):
        assert "cli-7 OPEN" == ran("add", "cli-7", "--command", "cli.member", "--payload", payload)
    assert "cli-7 SEALED" == ran("seal", "cli-7")
    assert ["members"] == json.loads(ran("show", "cli-7", "--json"))["waitsFor"]
    asyncio.run(worker.serve(tasks_max=3))

    assert [({"of": 7}, 2)] == seen
    assert "COMPLETED" == json.loads(ran("show", "cli-7", "--json"))["status"]
    [shown] = [each for each in json.loads(ran("ls", "--json"))["groups"] if each["id"] == "cli-7"]
    assert ("COMPLETED", 2) == (shown["status"], shown["completed"])
    assert "cli-7" in ran("ls", "--quiet").splitlines()
    members = json.loads(ran("results", "cli-7", "--json"))["members"]
    assert ["COMPLETED"] * 2 == [each["status"] for each in members]


def test_a_group_is_cancelled_by_a_command(
    broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without members it has ended at once; a name is drawn if none is given."""
    assert 0 == main(["group", "create", "--json"])
    made = json.loads(capsys.readouterr().out)
    assert 0 == main(["group", "cancel", made["id"]])

    assert f"{made['id']} COMPLETED\n" == capsys.readouterr().out
