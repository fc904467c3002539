"""Profiles: the cluster and the token of a command, by flag, variable or profile."""

from __future__ import annotations

import argparse
import json
import stat
from pathlib import Path

import pytest
import yaml

from codeq_cluster.cli.main import main
from codeq_cluster.cli.support import profiles
from codeq_cluster.cli.support.target import Caller, add_target, ca_of, token_of, urls_of
from codeq_cluster.errors import ConfigInvalid

# The file as codeQ's own command writes it; its fields about an issuer have no meaning here.
_CODEQ = """
currentProfile: work
profiles:
  work:
    baseUrl: http://work:8080
    iamBaseUrl: https://issuer/v1/accounts
    token: profile-token
    producerToken: profile-producer
    workerToken: profile-worker
    operatorToken: profile-operator
    auth: {login: {urlTemplate: 'https://issuer/login'}}
    admin: true
  home:
    baseUrl: http://home:8080,http://home:8081
    workerToken: home-worker
"""
# The address of an init without a cluster.
_NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def file(elsewhere: Path) -> Path:
    """Write codeQ's file where the commands look for it."""
    path = elsewhere / "codeq" / "config.yaml"
    path.parent.mkdir()
    path.write_text(_CODEQ)
    return path


def _options(*flags: str, caller: Caller = Caller.ADMIN) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_target(parser, caller)
    return parser.parse_args(flags)


def test_without_anything_a_development_cluster_is_meant() -> None:
    """The defaults are its first port and the token that every such cluster accepts."""
    assert ("http://127.0.0.1:8080",) == urls_of(_options())
    assert {"dev-token"} == {token_of(_options(caller=caller)) for caller in Caller}
    assert ca_of(_options()) is None


@pytest.mark.usefixtures("file")
def test_a_flag_comes_before_a_variable_and_that_before_a_profile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each setting follows codeQ's order independently."""
    from_profile = (urls_of(_options()), token_of(_options()))
    monkeypatch.setenv("CODEQ_BASE_URL", "http://a:1, http://b:2")
    monkeypatch.setenv("CODEQ_TOKEN", "variable")
    from_variable = (urls_of(_options()), token_of(_options()))
    flags = ("--url", "http://c:3", "--token", "flag")
    from_flag = (urls_of(_options(*flags)), token_of(_options(*flags)))

    tokens = (from_profile[1], from_variable[1], from_flag[1])
    assert ["the profile's token", "CODEQ_TOKEN", "--token"] == [each.origin for each in tokens]
    assert (("http://work:8080",), "profile-token") == from_profile
    assert (("http://a:1", "http://b:2"), "variable") == from_variable
    assert (("http://c:3",), "flag") == from_flag


@pytest.mark.usefixtures("file")
@pytest.mark.parametrize(
    ("caller", "tokens"),
    [
        (Caller.PRODUCER, ("profile-producer", "any", "producer")),
        (Caller.WORKER, ("profile-worker", "any", "worker")),
        (Caller.ADMIN, ("profile-token", "any", "any")),
        (Caller.OPERATOR, ("profile-operator", "any", "operator")),
    ],
)
def test_each_caller_has_a_token_of_its_own(
    caller: Caller, tokens: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The role's variable comes before the common one, and that before the profile."""
    options = _options(caller=caller)
    found = [token_of(options)]
    monkeypatch.setenv("CODEQ_TOKEN", "any")
    found.append(token_of(options))
    monkeypatch.setenv("CODEQ_PRODUCER_TOKEN", "producer")
    monkeypatch.setenv("CODEQ_WORKER_TOKEN", "worker")
    monkeypatch.setenv("CODEQ_OPERATOR_TOKEN", "operator")
    found.append(token_of(options))

    assert tokens == tuple(found)


@pytest.mark.parametrize("words", [("cluster", "status"), ("backup", "create")])
def test_commands_for_the_cluster_take_the_operators_token(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """A profile holds it beside the admin's, which the other commands take."""
    tokens = ("--token", "the-admins", "--operator-token", "the-operators")
    assert 0 == main(["init", "--no-prompt", "--url", _NOBODY, *tokens])
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main([*words, "--help"])

    kept = profiles.read().get(profiles.DEFAULT)
    assert "scope codeq:operator" in " ".join(capsys.readouterr().out.split())
    assert ("the-admins", "the-operators") == (kept.token, kept.operator_token)
    assert "the-operators" == Caller.OPERATOR.of_profile(kept)
    assert "the-admins" == Caller.ADMIN.of_profile(kept)


@pytest.mark.usefixtures("file")
def test_an_admin_without_a_token_of_its_own_speaks_as_the_producer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In codeQ admins are producers."""
    monkeypatch.setenv("CODEQ_PRODUCER_TOKEN", "producer")

    assert "producer" == token_of(_options())


@pytest.mark.usefixtures("file")
def test_another_profile_is_named_by_flag_or_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag comes first here too."""
    monkeypatch.setenv("CODEQ_PROFILE", "home")
    by_variable = urls_of(_options())
    by_flag = urls_of(_options("--profile", "work"))

    assert ("http://home:8080", "http://home:8081") == by_variable
    assert ("http://work:8080",) == by_flag


@pytest.mark.usefixtures("file")
def test_a_profile_that_is_not_there_says_how_to_make_it() -> None:
    """The error also lists the existing profiles."""
    with pytest.raises(
        ConfigInvalid, match=r": it has home, work; make it with: .* init --profile play"
    ):
        urls_of(_options("--profile", "play"))


@pytest.mark.parametrize(
    "text", ["profiles: 1", "- a", "profiles: {a: 1}", "{", "profiles: {a: {baseUrl: 1}}"]
)
def test_an_unreadable_file_of_profiles_is_named(file: Path, text: str) -> None:
    """Otherwise the command would ask the wrong cluster."""
    file.write_text(text)

    with pytest.raises(ConfigInvalid, match=r"config\.yaml: "):
        profiles.read().get("a")


def test_a_variable_that_is_no_url_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error leaves out the text, which may hold a password."""
    monkeypatch.setenv("CODEQ_BASE_URL", "http://u:turnip@h")

    with pytest.raises(ConfigInvalid, match="CODEQ_BASE_URL: must be") as refused:
        urls_of(_options())

    assert "turnip" not in str(refused.value)


def test_init_makes_a_profile_for_every_other_command(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The new profile becomes the current one, in a file that no other user can read."""
    code = main(["init", "--url", _NOBODY, "--token", "mine"])
    told = capsys.readouterr()
    file = elsewhere / "codeq" / "config.yaml"

    assert (0, "default\n") == (code, told.out)
    assert "codeq-cluster doctor" in told.err
    assert 0o600 == stat.S_IMODE(file.stat().st_mode)
    assert ((_NOBODY,), "mine") == (urls_of(_options()), token_of(_options()))


def test_init_changes_what_is_named_and_keeps_the_rest(file: Path) -> None:
    """Other profiles stay, and so do keys that only codeQ's command knows."""
    before = yaml.safe_load(file.read_text())
    code = main(["init", "--profile", "home", "--worker-token", "new"])
    after = yaml.safe_load(file.read_text())

    assert 0 == code
    assert ("home", "new") == (after["currentProfile"], after["profiles"]["home"]["workerToken"])
    assert before["profiles"]["work"] == after["profiles"]["work"]


def test_init_keeps_no_authorities_that_cannot_be_read(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise every later command would fail."""
    code = main(["init", "--url", _NOBODY, "--ca", "ca.pem"])

    assert 1 == code
    assert "ca.pem" in capsys.readouterr().err
    assert not (elsewhere / "codeq").exists()


def test_init_without_an_address_says_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    """A profile without a cluster would be useless."""
    code = main(["init", "--token", "mine"])

    assert 2 == code
    assert "codeq-cluster init --url http://HOST:8080" in capsys.readouterr().err


@pytest.mark.usefixtures("file")
def test_profiles_are_listed_chosen_and_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    """No token is shown."""
    assert 0 == main(["profile", "ls", "--json"])

    listed = capsys.readouterr().out
    rows = {row["profile"]: row for row in json.loads(listed)["profiles"]}
    assert ["work"] == [name for name, row in rows.items() if row["current"]]
    assert ["worker"] == rows["home"]["tokens"]
    assert "profile-token" not in listed
    assert 0 == main(["profile", "use", "home"])
    assert "http://home:8080" == urls_of(_options())[0]
    assert 0 == main(["profile", "delete", "home"])
    assert 1 == main(["profile", "use", "home"])
    assert ["work"] == profiles.read().names
