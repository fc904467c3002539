"""Keys on the command line: a task is created with one, and a queue's busiest ones are shown."""

from __future__ import annotations

import json

import pytest

from codeq_cluster.cli.main import main
from codeq_cluster.testing.broker import LocalBroker

ENDS = ("STOPPED", "BY", "LIMITED", "UNTIL", "HELD", "UNTIL")


def test_the_keys_of_a_queue_are_shown(
    broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rule of the topic holds all but one task of a key; the busiest key comes first."""
    with broker.sync_operator() as operator:
        operator.put_topic("parcel", {"weight": 3})
        assert 0 == main(["queue", "flow", "parcel", "--max-per-key", "1"])
        for key in ("ann", "bob", "bob", "bob"):
            task = ("--command", "parcel", "--payload", "1", "--key", key)
            assert 0 == main(["task", "create", *task])
        capsys.readouterr()
        assert 0 == main(["queue", "keys", "parcel"])
        shown = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert 0 == main(["queue", "keys", "parcel", "--limit", "1", "--json"])
        first = json.loads(capsys.readouterr().out)
        operator.purge("parcel")
        assert 0 == main(["queue", "flow", "parcel", "--when-dead", "stop", "--json"])
        rule = json.loads(capsys.readouterr().out)["flow"]["perKey"]
        assert 0 == main(["queue", "flow", "parcel", "--off"])
        assert 0 == main(["queue", "flow", "never-made", "--json"])
        none = json.loads(capsys.readouterr().out.splitlines()[-1])
        left = operator.topic("parcel")

    assert ["KEY", "IN", "PROGRESS", "READY", "HELD", "BACKING", "OFF", *ENDS] == shown[0]
    assert [["bob", "0", "1", "2", *"----"], ["ann", "0", "1", "0", *"----"]] == shown[1:]
    assert (1, "hold", "stop") == (rule["maxRunning"], rule["onRetry"], rule["whenDead"])
    assert {"flow": {}, "settling": False} == none
    assert {"weight": 3} == left["policy"]
    assert ["bob"] == [each["key"] for each in first["keys"]]


def test_a_rate_is_set_shown_and_ended(
    broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a command says of it stays, whatever else of the rule another one changes."""

    def flow(*arguments: str) -> dict[str, object]:
        capsys.readouterr()
        assert 0 == main(["queue", "flow", "call", "--json", *arguments])
        rule: dict[str, object] = json.loads(capsys.readouterr().out)["flow"]["perKey"]
        return rule

    made = flow("--rate", "100/60", "--burst", "10")
    kept = flow("--max-per-key", "9")
    gone = flow("--rate", "off")

    assert {"count": 100, "perSeconds": 60, "burst": 10} == made["rate"] == kept["rate"]
    assert "rate" not in gone
    assert 9 == gone["maxRunning"]
    for unread in (["--rate", "often"], ["--burst", "2"]):
        assert 0 != _exit_of(["queue", "flow", "call", *unread])


def _exit_of(arguments: list[str]) -> object:
    try:
        return main(arguments)
    except SystemExit as ended:
        return ended.code
