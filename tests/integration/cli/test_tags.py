"""Tags from the command line, in handlers and in the client without a loop."""

from __future__ import annotations

import asyncio
import json

import pytest

from codeq_cluster.cli.main import main
from codeq_cluster.client import Client, Operator, SyncClient, SyncOperator, Task, Worker
from codeq_cluster.testing.broker import LocalBroker


def test_tags_are_said_changed_and_listed_by_commands(
    broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each prints what the API answers."""

    def ran(*words: str, code: int = 0) -> str:
        assert code == main(["task", *words])
        return capsys.readouterr().out.strip()

    new = ("create", "--command", "tagged", "--payload", "1", "--json")
    said = ("--tag", "user=42", "--tag", "env=a=b", "--metadata", '{"shop":7}')
    task = json.loads(ran(*new, *said))
    ran(*new, "--tag", "user=43")
    [listed] = json.loads(ran("list", "--tag", "user:42", "--tag", "env:a=b", "--json"))["tasks"]
    changed = json.loads(ran("tag", task["id"], "--set", "env=prod", "--remove", "user", "--json"))
    gone = json.loads(ran("list", "--tag", "user:42", "--json"))["tasks"]
    early = ran("list", "--tag", "env:prod", "--created-after", task["createdAt"], "-q")

    assert ({"env": "a=b", "user": "42"}, {"shop": 7}) == (task["tags"], task["metadata"])
    assert task["id"] == listed["id"]
    assert {"id": task["id"], "tags": {"env": "prod"}} == changed
    assert [] == gone
    assert task["id"] == early
    assert 2 == main(["task", "tag", task["id"]])


def test_what_is_no_tag_is_a_wrong_use(
    broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message says the form."""
    with pytest.raises(SystemExit, match="2"):
        main(["task", "list", "--tag", "user"])

    assert "user: must be NAME=VALUE" in capsys.readouterr().err


def test_a_handler_reads_what_the_producer_said(broker: LocalBroker) -> None:
    """Tags and metadata beside the payload; None and nothing without them."""
    urls, token = [broker.url], broker.token
    seen: dict[int, tuple[dict[str, str], object]] = {}
    worker = Worker(urls, token=token)

    @worker.task("told")
    async def told(task: Task[int]) -> None:
        seen[task.payload] = dict(task.tags), task.metadata
        if len(seen) == 2:
            worker.stop()

    with (
        SyncClient(Client(urls, token=token)) as client,
        SyncOperator(Operator(urls, token=token)) as operator,
    ):
        task = client.create("told", 1, tags={"user": "a/b"}, metadata={"n": [1]})
        client.create("told", 2)
        changed = client.tag(task.id, {"env": "x"})
        page = operator.tasks(tags={"user": "a/b", "env": "x"})
        asyncio.run(worker.serve())
        ended = client.wait(task.id).task

    assert {1: ({"env": "x", "user": "a/b"}, {"n": [1]}), 2: ({}, None)} == seen
    assert {"env": "x", "user": "a/b"} == changed == ended.tags
    assert [task.id] == [row["id"] for row in page.rows]
