"""Outcome: every error with a remedy names the next command."""

from __future__ import annotations

from pathlib import Path

import pytest

from codeq_cluster.auth.identity import Role, lacks
from codeq_cluster.cli.support.outcome import _NEXT, Exit, report
from codeq_cluster.client import Refused, Unreachable
from codeq_cluster.core.outcomes import Rejection

_API = Path(__file__).resolve().parents[3] / "codeq_cluster" / "api"


def test_every_code_with_advice_is_one_that_the_api_gives() -> None:
    """Advice for a code that no route sends would never be read."""
    sources = "".join(file.read_text() for file in _API.rglob("*.py"))
    rejections = {rejection.value for rejection in Rejection}
    unknown = [code for code in _NEXT if f'"{code}"' not in sources and code not in rejections]

    assert [] == unknown


def test_an_unreachable_cluster_names_the_command_that_starts_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The error also names the flag for another cluster."""
    code = report(Unreachable("no node takes a connection: http://h:1"))
    line = capsys.readouterr().err

    assert (Exit.ERROR, 1) == (code, line.count("\n"))
    assert "codeq-cluster dev" in line
    assert "--url" in line


@pytest.mark.parametrize(
    ("role", "named"),
    [(Role.ADMIN, "admin"), (Role.OPERATOR, "operator"), (Role.VIEWER, "viewer")],
)
def test_a_token_without_a_role_names_the_command_that_makes_one(
    role: Role, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broker's own words for the role select the command."""
    refused = lacks(role)
    code = report(Refused(refused.text, status=refused.status))

    assert Exit.AUTH == code
    assert f"codeq-cluster token --as {named}" in capsys.readouterr().err


def test_a_token_that_is_not_taken_names_init(capsys: pytest.CaptureFixture[str]) -> None:
    """`init` saves a valid token."""
    code = report(Refused("invalid token", status=401, code="unauthorized"))

    assert Exit.AUTH == code
    assert "codeq-cluster init" in capsys.readouterr().err


def test_a_shard_without_a_leader_names_the_command_that_shows_the_nodes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The cluster's status shows which nodes are down."""
    code = report(Refused("no leader for shard", status=503, code="no-leader", retryable=True))

    assert Exit.API == code
    assert "codeq-cluster cluster status" in capsys.readouterr().err


def test_a_refusal_that_is_only_a_code_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The line adds what to do next."""
    code = report(Refused("already-terminal", status=409, code="already-terminal"))

    assert Exit.API == code
    assert (
        "codeq-cluster: already-terminal (HTTP 409); it has ended; "
        "see codeq-cluster task result ID\n"
    ) == capsys.readouterr().err
