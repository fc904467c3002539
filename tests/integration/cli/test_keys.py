"""Keys on the command line: a task is created with one, and a queue's busiest ones are shown."""

from __future__ import annotations

import json

import pytest

from codeq_cluster.cli.main import main
from codeq_cluster.testing.broker import LocalBroker

ENDS = ("STOPPED", "BY", "LIMITED", "UNTIL", "HELD", "UNTIL", "OWN")


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
    assert [["bob", "0", "1", "2", *"-----"], ["ann", "0", "1", "0", *"-----"]] == shown[1:]
    assert (1, "hold", "stop") == (rule["maxRunning"], rule["onRetry"], rule["whenDead"])
    assert {"flow": {}, "settling": False, "draining": []} == none
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


def test_one_key_has_its_own_limits(
    broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command changes what it says, until the key follows its queue again."""

    def key(*arguments: str) -> dict[str, object]:
        capsys.readouterr()
        assert 0 == main(["queue", "key", "mail", "ann/1", "--json", *arguments])
        shown: dict[str, object] = json.loads(capsys.readouterr().out)
        return shown

    with broker.sync_operator() as operator:
        made = key("--max-running", "5", "--rate", "9/60")
        paused = key("--pause", "--weight", "2")
        resumed = key("--resume", "--rate", "off")
        off = key("--off")
        operator.put_key("mail", "bob", {"maxRunning": 3})
        listed = operator.keys("mail")["keys"]
        operator.delete_key("mail", "bob")
        bob = operator.key("mail", "bob")

    rate = {"count": 9, "perSeconds": 60, "burst": 1}
    assert {"maxRunning": 5, "rate": rate, "weight": 1, "paused": False} == made["own"]
    assert {"maxRunning": 5, "rate": rate, "weight": 2, "paused": True} == paused["own"]
    assert {"maxRunning": 5, "weight": 2, "paused": False} == resumed["own"]
    assert "own" not in off
    assert ["bob"] == [each["key"] for each in listed]
    assert {"key": "bob", "inProgress": 0, "ready": 0, "held": 0} == bob


def _exit_of(arguments: list[str]) -> object:
    try:
        return main(arguments)
    except SystemExit as ended:
        return ended.code
