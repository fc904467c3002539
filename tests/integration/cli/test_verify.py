"""Verify: a short run on a real broker, and what it refuses."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest

from codeq_cluster.cli.main import main
from codeq_cluster.cli.work.verify import _show
from codeq_cluster.cli.work.verify_load import DRAIN_S_MIN, Tried, VerifyLoad
from codeq_cluster.testing.broker import LocalBroker

SHORT = ("--seconds", "10", "--in-flight", "40")


def verified(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, Any]]:
    """Run the command; return its exit code and its document."""
    code = main(["verify", *flags, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_every_promise_is_judged_and_holds(
    broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broker's own counters agree with what was tried, and no task is left."""
    code, shown = verified(capsys, "--tasks", "150", *SHORT, "--queue", "verified")
    with broker.sync_operator() as operator:
        queue = operator.queue("verified")
        made = operator.tasks(command="verified", limit=500).rows

    assert [] == [each for each in shown["checks"] if not each["holds"]]
    assert (0, True, 0) == (code, shown["holds"], shown["left"])
    assert 150 == shown["tasks"] == len(made)
    assert (0, 0) == (queue["ready"], queue["inProgress"])


@pytest.mark.parametrize("in_flight", ["1", "256"])
def test_the_smallest_run_gets_its_verdict(
    in_flight: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its only task is created twice and lost once, so no promise stays unknown."""
    code, shown = verified(capsys, "--tasks", "1", "--seconds", "1", "--in-flight", in_flight)

    assert [] == [each for each in shown["checks"] if not each["holds"]]
    assert (0, 1, 0) == (code, shown["tasks"], shown["left"])


def test_no_more_is_created_than_workers_can_end(
    broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """One worker, and more tasks than it could end while the run drains."""
    many = ("--tasks", "500", "--seconds", "2", "--in-flight", "1")
    code, shown = verified(capsys, *many, "--queue", "ahead")

    assert (0, True, 0) == (code, shown["holds"], shown["left"])
    assert 500 > shown["tasks"]


def test_a_run_that_sees_nothing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """As when the cluster was away: that is unknown, and no success."""
    load = VerifyLoad(queue="away", tasks=9, seconds=9, drain_s=DRAIN_S_MIN, in_flight=9)
    code = _show(load, Tried(), argparse.Namespace(json=False))
    said = capsys.readouterr()

    assert 1 == code
    assert "unknown" in said.out
    assert "BROKEN" not in said.out
    assert "try more --tasks" in said.err


def test_a_refused_create_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing would be tried, and each promise called unknown without the reason."""
    code = main(["verify", "--tasks", "1", "--queue", "no queue", *SHORT])

    said = capsys.readouterr()
    assert (4, "") == (code, said.out)
    assert "invalid command: use 1 to 128 of" in said.err


@pytest.mark.parametrize(
    ("flag", "value", "least"),
    [
        ("--tasks", 0, 1),
        ("--seconds", 0, 1),
        ("--in-flight", 0, 1),
        ("--drain-seconds", DRAIN_S_MIN - 1, DRAIN_S_MIN),
    ],
)
def test_what_is_out_of_bounds_is_a_wrong_use(
    flag: str, value: int, least: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is created, nor is a run begun that could not drain."""
    assert 2 == main(["verify", flag, str(value)])
    assert f"{flag} {value}: must be {least} to" in capsys.readouterr().err
