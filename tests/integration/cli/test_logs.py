"""Logs of tasks, from the command line."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from codeq_cluster.cli.main import main
from codeq_cluster.client import TaskRecord
from codeq_cluster.testing.broker import LocalBroker


def test_a_log_is_printed_and_followed_until_the_task_ends(
    broker: LocalBroker, capfd: pytest.CaptureFixture[str]
) -> None:
    """A line each, with its attempt, and no control character; what is gone is said."""

    def ran(*words: str) -> tuple[list[str], str]:
        assert 0 == main(["task", *words])
        said = capfd.readouterr()
        return said.out.strip().splitlines(), said.err

    async def begin() -> TaskRecord:
        async with broker.leases() as leases:
            [task] = await leases.claim(["logged"], lease_s=60)
            lines = ["\x1b[31mred", "", "three"]
            await leases.heartbeat(task, extend_s=60, report={"log": lines})
            return task

    async def end(task: TaskRecord) -> None:
        async with broker.leases() as leases:
            for part in range(11):
                lines = [str(20 * part + n) for n in range(1, 21)]
                await leases.heartbeat(task, extend_s=60, report={"log": lines})
            await leases.complete(task, b"{}")

    ran("create", "--command", "logged", "--payload", "1")
    task = asyncio.run(begin())
    plain, _ = ran("log", task.id)
    [as_json], _ = ran("log", task.id, "--json")
    ending = threading.Thread(target=asyncio.run, args=(end(task),))
    ending.start()
    followed, _ = ran("log", task.id, "--follow", "--json")
    ending.join()
    after, said = ran("log", task.id, "--follow")

    assert ["1   [31mred", "1", "1  three"] == [line.split("  ", 1)[1] for line in plain]
    assert ["\x1b[31mred", "", "three"] == [line["text"] for line in json.loads(as_json)["lines"]]
    found = [json.loads(line) for line in followed]
    assert ("220", 223, 1) == (found[-1]["text"], found[-1]["number"], found[-1]["attempt"])
    numbers = [line["number"] for line in found]
    assert sorted(set(numbers)) == numbers
    assert "23 lines are gone" in said
    assert ["1  21", "1  220"] == [line.split("  ", 1)[1] for line in (after[0], after[-1])]
