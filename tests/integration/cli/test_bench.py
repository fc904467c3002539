"""Bench: a short measurement of a real broker, which leaves no waiting task."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping

import pytest

from codeq_cluster.cli.main import main
from codeq_cluster.testing.broker import LocalBroker
from tests.integration.cli.terminal import run


@pytest.mark.parametrize("batch", ["1", "10"])
def test_every_created_task_is_completed_and_counted(
    batch: str, broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broker's own counters agree with the command's figures."""
    event = f"measured-{batch}"
    flags = ("--seconds", "1", "--in-flight", "4", "--batch", batch, "--queue", event)
    code = main(["bench", *flags, "--json"])
    shown = json.loads(capsys.readouterr().out)
    with broker.sync_operator() as operator:
        queue = operator.queue(event)
        ended = operator.tasks(command=event, status="COMPLETED", limit=500)

    assert (0, 0, 0) == (code, shown["failures"], shown["left"])
    assert shown["created"]["count"] == shown["completed"]["count"] > 0
    assert 0 == shown["created"]["count"] % int(batch)
    assert 0 < shown["completed"]["p50Ms"] <= shown["completed"]["maxMs"]
    assert (0, 0) == (queue["ready"], queue["inProgress"])
    assert min(500, shown["created"]["count"]) == len(ended.rows)


def test_a_table_says_how_it_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """The notes are on standard error, beside the figures."""
    code = main(["bench", "--seconds", "1", "--in-flight", "1"])

    said = capsys.readouterr()
    assert 0 == code
    assert ["TASKS", "created", "completed"] == [line.split()[0] for line in said.out.splitlines()]
    assert "1 in flight, 1 a create, 128 bytes each; durability: os" in said.err


@pytest.mark.parametrize(
    ("signaled", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "term"]
)
@pytest.mark.parametrize("command", ["bench", "verify"])
def test_a_signal_cancels_waiting_tasks(
    command: str,
    signaled: signal.Signals,
    code: int,
    broker: LocalBroker,
    variables: Mapping[str, str],
) -> None:
    """No worker would ever claim these tasks."""
    event = f"held-{command}-{code}"
    with broker.sync_operator() as operator:
        operator.pause(event)
        flags = ("--queue", event, "--in-flight", "2", "--seconds", "600")
        with run(command, *flags, environment=variables) as terminal:
            # The most tasks that may wait: four per task in flight.
            terminal.shows("8 created" if command == "bench" else "0 completed")
            terminal.signal(signaled)
            ended, shown = terminal.ended()
        queue = operator.queue(event)

    assert code == ended
    assert "Traceback" not in shown
    assert f"the tasks in queue {event} are cancelled" in shown
    assert (0, 0) == (queue["ready"], queue["inProgress"])


def test_a_refused_worker_s_token_is_reported_in_one_line(
    broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any request may be refused first; creates in flight leave no task behind."""
    code = main(["bench", "--seconds", "1", "--queue", "unclaimed", "--worker-token", "wrong"])
    with broker.sync_operator() as operator:
        queue = operator.queue("unclaimed")

    error = capsys.readouterr().err
    assert (3, 1) == (code, error.count("\n"))
    assert "invalid token" in error
    assert 0 == queue["ready"]
