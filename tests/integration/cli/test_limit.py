"""Limits on the command line: one is made, two queues share it, and it is shown and deleted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from codeq_cluster.cli.main import main
from codeq_cluster.testing.broker import LocalBroker


def test_a_limit_is_made_shared_shown_and_deleted(
    broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a flag does not say stays; one that is in use is not deleted."""

    def told(*arguments: str) -> Any:
        capsys.readouterr()
        assert 0 == main([*arguments, "--json"])
        return json.loads(capsys.readouterr().out)

    made = told("limit", "put", "tariff", "--max", "5", "--rate", "100/60", "--burst", "9")
    changed = told("limit", "put", "tariff", "--max", "7")
    flows = [told("queue", "flow", f"tariff-{n}", "--limit", "tariff")["flow"] for n in range(2)]
    shown = told("limit", "show", "tariff")
    capsys.readouterr()
    assert 0 == main(["limit", "ls"])
    table = capsys.readouterr().out
    refused = main(["limit", "delete", "tariff", "--yes"])
    said = capsys.readouterr().err
    for n in range(2):
        told("queue", "flow", f"tariff-{n}", "--limit", "off")
    gone = told("limit", "delete", "tariff", "--yes")
    missing = main(["limit", "show", "tariff"])

    rate = {"count": 100, "perSeconds": 60, "burst": 9}
    assert (5, rate, 1) == (made["maxRunning"], made["rate"], made["version"])
    assert (7, rate, 2) == (changed["maxRunning"], changed["rate"], changed["version"])
    assert [{"limit": "tariff"}] * 2 == flows
    assert (["tariff-0", "tariff-1"], 0) == (shown["queues"], shown["running"])
    assert "100/60, burst 9" in table
    assert 0 != refused
    assert "tariff-0" in said
    assert {"name": "tariff", "deleted": True} == gone
    assert 0 != missing


def test_an_operator_of_the_client_puts_lists_and_deletes_limits(broker: LocalBroker) -> None:
    """As the commands do."""
    with broker.sync_operator() as operator:
        operator.put_limit("paid", {"maxRunning": 3})
        for queue in ("paid-a", "paid-b"):
            operator.put_topic(queue, {"flow": {"limit": "paid"}})
        names = [row["name"] for row in operator.limits().rows]
        found = operator.limit("paid")
        for queue in ("paid-a", "paid-b"):
            operator.delete_topic(queue)
        operator.delete_limit("paid")

    assert "paid" in names
    assert ["paid-a", "paid-b"] == found["queues"]
