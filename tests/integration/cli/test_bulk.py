"""Bulk jobs from the command line, and in the client without a loop."""

from __future__ import annotations

import json

import pytest

from codeq_cluster.cli.main import main
from codeq_cluster.client import (
    BulkAction,
    Client,
    Operator,
    SyncClient,
    SyncOperator,
    TaskSelection,
)
from codeq_cluster.testing.broker import LocalBroker


def test_commands_count_first_and_begin_with_yes(
    broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job is listed, shown and stopped by its name."""

    def ran(*words: str, code: int = 0) -> str:
        assert code == main(["bulk", *words])
        return capsys.readouterr().out.strip()

    with SyncClient(Client([broker.url], token=broker.token)) as client:
        made = [client.create("bulk-cli", n, tags={"cli": "1"}, delay=60) for n in range(3)]
    select = ("--tag", "cli=1", "--status", "PENDING")
    counted = ran("cancel", *select, code=2)
    dry = json.loads(ran("run-now", *select, "--dry-run", "--json"))
    begun = ran("tag", *select, "--set", "seen=yes", "--yes", "--name", "mark")
    broker.advance(seconds=1)
    shown = json.loads(ran("show", "mark", "--json"))
    ended = ran("stop", "mark")
    listed = json.loads(ran("ls", "--json"))["jobs"]
    prioritized = json.loads(ran("priority", *select, "--to", "7", "--yes", "--json"))
    broker.advance(seconds=1)

    assert "3" == counted
    assert (3, {"PENDING": 3}) == (dry["changes"], dry["byStatus"])
    assert ("mark RUNNING", "mark DONE") == (begun, ended)
    assert (3, {"seen": "yes"}) == (shown["changed"], shown["set"])
    assert "mark" in [each["id"] for each in listed]
    assert ("priority", 7) == (prioritized["action"], prioritized["priority"])
    with SyncClient(Client([broker.url], token=broker.token)) as client:
        assert [{"cli": "1", "seen": "yes"}] * 3 == [client.task(each.id).tags for each in made]


def test_a_program_without_a_loop_begins_and_follows_a_job(broker: LocalBroker) -> None:
    """The same calls with the same arguments."""
    urls, token = [broker.url], broker.token
    select, action = TaskSelection(command="bulk-sync"), BulkAction(action="cancel", reason="x")
    with (
        SyncClient(Client(urls, token=token)) as client,
        SyncOperator(Operator(urls, token=token)) as operator,
    ):
        task = client.create("bulk-sync", 1)
        counts = operator.count_bulk(select, action)
        begun = operator.start_bulk(select, action)
        broker.advance(seconds=1)
        ended = operator.bulk_job(begun.id)
        stopped = operator.stop_bulk(begun.id)
        jobs = operator.bulk_jobs()
        cancelled = client.task(task.id)

    assert (1, 1) == (counts.selected, counts.changes)
    assert ("RUNNING", "DONE", 1) == (begun.status, ended.status, ended.changed)
    assert ended == stopped
    assert ended in jobs
    assert "FAILED" == cancelled.status
