"""Verify: a short run on a real broker, and what it refuses."""

from __future__ import annotations

import json

import pytest

from codeq_cluster.cli.main import main
from codeq_cluster.testing.broker import LocalBroker

SHORT = ("--seconds", "10", "--in-flight", "40")


def test_every_promise_is_judged_and_holds(
    broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broker's own counters agree with what was tried, and no task is left."""
    # So many that a task whose lease ends finds a worker before the late one comes back.
    many = ("--tasks", "150", "--seconds", "10", "--in-flight", "40")
    code = main(["verify", *many, "--queue", "verified", "--json"])
    shown = json.loads(capsys.readouterr().out)
    with broker.sync_operator() as operator:
        queue = operator.queue("verified")
        made = operator.tasks(command="verified", limit=500).rows

    assert [] == [each for each in shown["checks"] if not each["holds"]]
    assert (0, True, 0) == (code, shown["holds"], shown["left"])
    assert 150 == shown["tasks"] == len(made)
    assert (0, 0) == (queue["ready"], queue["inProgress"])


def test_a_run_that_sees_too_little_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """One task has no lease that could end early: that is unknown, and no success."""
    code = main(["verify", "--tasks", "1", *SHORT])
    said = capsys.readouterr()

    assert 1 == code
    assert "ok      every acknowledged task is there and has ended: 1" in said.out
    assert "unknown" in said.out
    assert "BROKEN" not in said.out
    assert "try more --tasks" in said.err


def test_a_queue_with_tasks_of_others_is_refused(
    broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their task comes back, and the error says what to do."""
    with broker.sync_client() as client:
        other = client.create("busy", {"of": "others"})
        code = main(["verify", "--tasks", "1", "--queue", "busy", *SHORT])
        broker.advance(seconds=5)
        left = client.task(other.id)

    assert 1 == code
    assert "name an empty queue that nobody else works on" in capsys.readouterr().err
    assert "PENDING" == left.status


def test_a_refused_create_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing would be tried, and each promise called unknown without the reason."""
    code = main(["verify", "--tasks", "1", "--queue", "no queue", *SHORT])

    said = capsys.readouterr()
    assert (4, "") == (code, said.out)
    assert "invalid command: use 1 to 128 of" in said.err


@pytest.mark.parametrize("flag", ["--tasks", "--seconds", "--in-flight", "--drain-seconds"])
def test_what_is_out_of_bounds_is_a_wrong_use(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is created."""
    assert 2 == main(["verify", flag, "0"])
    assert f"{flag} 0: must be 1 to" in capsys.readouterr().err
