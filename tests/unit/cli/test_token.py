"""Token: nodes accept the tokens that the command creates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from codeq_cluster.auth import Access, Authenticator, Role
from codeq_cluster.auth.identity import WORKER_SCOPES
from codeq_cluster.cli.main import main
from codeq_cluster.settings import AuthProviderSettings, AuthSettings

_SECRET = "a secret of more than thirty-two bytes"


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODEQ_TOKEN_SECRET", _SECRET)


def _node(**wanted: str) -> Authenticator:
    provider = (AuthProviderSettings(kind="hs256", secret=_SECRET, **wanted),)
    return Authenticator(AuthSettings(producer=provider, worker=provider))


def _made(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert 0 == main(["token", "--subject", "w1", "--tenant", "acme", *words])
    return f"Bearer {capsys.readouterr().out.strip()}"


async def test_a_worker_s_token_opens_a_worker_s_routes(capsys: pytest.CaptureFixture[str]) -> None:
    """Its event types are those named, and its tenant is its own."""
    token = _made(capsys, "--as", "worker", "--command", "greet")
    identity = await _node().authenticate(token, Access.WORKER)

    assert ("w1", "acme", ("greet",)) == (identity.subject, identity.tenant, identity.event_types)
    assert WORKER_SCOPES == identity.scopes
    assert not identity.roles


async def test_an_administrator_s_token_opens_admin_routes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Issuer and audience are those a node may ask for."""
    token = _made(capsys, "--as", "admin", "--issuer", "here", "--audience", "codeq")
    identity = await _node(issuer="here", audience="codeq").authenticate(token, Access.ADMIN)

    assert {Role.ADMIN} == identity.roles


async def test_an_operator_s_token_opens_the_cluster_s_routes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is an admin of its tenant only if that scope is requested too."""
    operator = await _node().authenticate(_made(capsys, "--as", "operator"), Access.OPERATOR)
    words = ("--as", "operator", "--as", "admin")
    both = await _node().authenticate(_made(capsys, *words), Access.OPERATOR)

    assert {Role.OPERATOR} == operator.roles
    assert {Role.ADMIN, Role.OPERATOR} == both.roles


def test_claims_are_printed_beside_the_token(capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON has both; further claims are JSON or text."""
    words = ("--json", "--claim", "role=ADMIN", "--claim", "level=3", "--ttl", "60")
    assert 0 == main(["token", "--subject", "a", *words])
    made = json.loads(capsys.readouterr().out)

    claims = made["claims"]
    assert 60 == claims["exp"] - claims["iat"]
    assert ("ADMIN", 3) == (claims["role"], claims["level"])
    assert "scope" not in claims


@pytest.mark.parametrize(
    ("words", "secret", "said"),
    [
        ((), "", "--secret-file"),
        ((), "short", "32 bytes"),
        (("--ttl", "0"), _SECRET, "--ttl 0"),
        (("--as", "producer", "--as", "operator"), _SECRET, "one token each"),
        (("--claim", "x"), _SECRET, "NAME=VALUE"),
        (("--secret-file", "/none"), _SECRET, "/none"),
    ],
)
def test_a_wrong_use_says_what_is_allowed(
    words: tuple[str, ...],
    secret: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It ends with 2 and one line."""
    monkeypatch.setenv("CODEQ_TOKEN_SECRET", secret)

    code = main(["token", "--subject", "a", *words])

    error = capsys.readouterr().err
    assert (2, 1) == (code, error.count("\n"))
    assert said in error


def test_the_secret_may_be_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A newline at its end is ignored."""
    file = tmp_path / "secret"
    file.write_text(f"{_SECRET}\n")

    assert 0 == main(["token", "--subject", "a", "--secret-file", str(file)])
    assert 2 == capsys.readouterr().out.count(".")
