"""Tasks that wait for others, from the command line."""

from __future__ import annotations

import json

import pytest

from codeq_cluster.cli.main import main
from codeq_cluster.testing.broker import LocalBroker


def test_a_task_waits_for_another_and_both_are_shown(
    broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """For people with the verdict of each dependency, with --json as the API says it."""
    assert broker.url

    def ran(*words: str) -> str:
        assert 0 == main(["task", *words])
        return capsys.readouterr().out.strip()

    create = ("create", "--payload", "1", "-q", "--command")
    first = ran(*create, "graph.first")
    then = ran(*create, "graph.then", "--after", first)
    shown = ran("graph", then).splitlines()

    assert [f"{then} graph.then HELD", f"    waits      {first} (succeeded)"] == shown[:2]
    assert f"{first} graph.first PENDING" == shown[2]
    tasks = json.loads(ran("graph", first, "--json"))["tasks"]
    assert [first, then] == [each["id"] for each in tasks]
    assert f"it waits for the end of task {first}" in ran("explain", then)
