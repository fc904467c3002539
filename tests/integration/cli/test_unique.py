"""Unique keys, from the command line."""

from __future__ import annotations

import json

import pytest

from codeq_cluster.cli.main import main
from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.testing.broker import LocalBroker


def test_a_create_says_its_unique_key(
    broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answer says what the create did, and explain for whom a task waits."""
    assert broker.url

    def ran(*words: str, code: int = 0) -> str:
        assert code == main(["task", *words])
        said = capsys.readouterr()
        return (said.err if code else said.out).strip()

    create = ("create", "--command", "united", "--json", "--unique", "user:42", "--payload")
    first = json.loads(ran(*create, "1", "--throttle", "3600"))
    last = json.loads(ran(*create, "2", "--on", "keepLast", "--debounce", "5"))
    refused = ran(*create, "3", "--on", "reject", code=Exit.API)
    alone = ran(
        "create", "--command", "united", "--payload", "1", "--debounce", "5", code=Exit.USAGE
    )

    assert ("created", "user:42") == (first["unique"], first["uniqueKey"])
    assert ("replaced", first["id"], 1) == (last["unique"], last["id"], last["revision"])
    assert "DELAYED_ZSET" == last["lastKnownLocation"]
    assert f"the unique key is held by task {first['id']}" in refused
    assert "--debounce: needs --unique KEY" in alone
