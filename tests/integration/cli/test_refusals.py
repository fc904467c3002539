"""Refusals: what a program and a person read when the broker refuses a request."""

from __future__ import annotations

import pytest

from codeq_cluster.cli.main import main
from codeq_cluster.client import Refused
from codeq_cluster.testing.broker import LocalBroker


def test_a_refusal_says_what_is_wrong(
    broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Programs with the client and people at the command line read the same line."""
    with broker.sync_client() as client, pytest.raises(Refused) as refused:
        client.create("no such command!", 1)
    code = main(["task", "create", "--command", "no such command!", "--payload", "1"])

    assert "invalid command: use 1 to 128 of A-Za-z0-9._:-, other than . and .." == str(
        refused.value
    )
    assert (4, f"codeq-cluster: {refused.value} (HTTP 400, invalid-command)\n") == (
        code,
        capsys.readouterr().err,
    )
