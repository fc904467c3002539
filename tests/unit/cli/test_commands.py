"""Commands: exit codes and output of the command line, without a cluster."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from codeq_cluster import __version__
from codeq_cluster.cli.main import main
from codeq_cluster.settings import KEYS

_PROVIDER = '[{"kind":"static","tokens":[{"token":"a-token-nobody-sees"}]}]'
_COMMANDS = (
    *("dev", "node", "status", "task", "worker", "queue", "dlq", "topic", "delivery", "webhook"),
    *("audit", "schedule"),
    *("cluster", "backup", "restore", "import", "inspect", "repair", "config", "token", "doctor"),
    *("init", "profile", "top", "tail", "bench", "completion"),
)


def _nobody() -> str:
    """Return a URL where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize("arguments", [[], ["fly"], ["task"], ["dev", "--nodes", "0"], ["--wrong"]])
def test_a_wrong_use_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The usage is on standard error."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    error = capsys.readouterr().err
    assert 2 == ended.value.code
    assert "usage: codeq-cluster" in error
    assert "--help" in error.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "meant"), [(["stauts"], "status"), (["task", "creat"], "create")]
)
def test_a_misspelt_command_is_told_its_name(
    arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error suggests the nearest name."""
    with pytest.raises(SystemExit):
        main(arguments)

    assert f"did you mean {meant}?" in capsys.readouterr().err


def test_an_unknown_flag_is_told_with_the_usage_of_its_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The usage of all commands does not have the command's flags."""
    with pytest.raises(SystemExit) as ended:
        main(["dlq", "ls", "greet", "--group-by", "error"])

    error = capsys.readouterr().err
    assert 2 == ended.value.code
    assert error.startswith("usage: codeq-cluster dlq ls ")
    assert error.endswith(
        "unrecognized arguments: --group-by error; see codeq-cluster dlq ls --help\n"
    )


@pytest.mark.parametrize(
    "url", ["foo", "http://", "ftp://h", "http://h:99999", "http://[::1", "http://u:turnip@h:1"]
)
def test_an_invalid_base_url_is_wrong_usage(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error comes before any request and does not repeat a password."""
    with pytest.raises(SystemExit) as ended:
        main(["task", "get", "t", "--url", url])

    error = capsys.readouterr().err
    assert 2 == ended.value.code
    assert "--url" in error
    assert "http or https URL" in error
    assert "turnip" not in error


@pytest.mark.parametrize("command", _COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` works everywhere and ends with 0."""
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])

    assert 0 == ended.value.code
    assert f"usage: codeq-cluster {command}" in capsys.readouterr().out


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` prints the installed version."""
    with pytest.raises(SystemExit):
        main(["--version"])

    assert f"codeq-cluster {__version__}\n" == capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--port", "0"], "port=0 (flag): must be a whole number, 1 to 65535"),
        (["--set", "durability"], "--set durability: must be KEY=VALUE"),
        (["--set", "durabilty=os"], "did you mean durability?"),
        (["--config", "none.yaml"], "config=none.yaml: No such file"),
        ([], "persistenceConfig.path=not set"),
    ],
)
def test_a_node_with_a_wrong_configuration_does_not_start(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends with 1 and one line on standard error."""
    code = main(["node", *arguments])

    error = capsys.readouterr().err
    assert 1 == code
    assert named in error
    assert 1 == error.count("\n")


def test_the_effective_configuration_is_printed_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`config` checks a node's configuration and prints the source of each value."""
    file = tmp_path / "codeq.toml"
    file.write_text('allowProducerAsWorker = true\nenv = "prod"\n')
    monkeypatch.setenv("CODEQ_CONFIG_PATH", str(file))
    monkeypatch.setenv("AUTH_PRODUCER", _PROVIDER)

    code = main(["config", "--json", "--data", "somewhere", "--set", "clusterId=blue"])

    output = capsys.readouterr().out
    rows = {row["key"]: row for row in json.loads(output)}
    assert 0 == code
    assert {
        "key": "persistenceConfig.path",
        "value": "somewhere",
        "source": "flag",
    } == rows["persistenceConfig.path"]
    assert "blue" == rows["clusterId"]["value"]
    assert "********" == rows["auth.producer"]["value"]
    assert {
        "key": "env",
        "value": "no mode relaxes a check; ignored",
        "source": f"file {file}",
    } == rows["env"]
    assert "a-token-nobody-sees" not in output


def test_every_key_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """`config --keys` lists every key."""
    assert 0 == main(["config", "--keys"])

    output = capsys.readouterr().out
    assert all(key.name in output and key.env in output for key in KEYS)


def test_a_status_without_any_node_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    """An unreachable node is a row of the table, not a stack trace."""
    url = _nobody()

    code = main(["status", "--url", url, "--json"])

    (node,) = json.loads(capsys.readouterr().out)["nodes"]
    assert 1 == code
    assert (url, False, "no connection") == (node["url"], node["healthy"], node["problem"])


def test_a_task_command_without_a_broker_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    """The line names the URLs that were tried."""
    url = _nobody()

    code = main(["task", "get", "some-id", "--url", url])

    assert 1 == code
    assert url in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["worker", "start", "--commands", "e", "--handler", "./none"], "--handler ./none"),
        (["worker", "start", "--commands", "e,", "--handler", "sh"], "--commands"),
        (
            ["worker", "start", "--commands", "e", "--handler", "sh", "--concurrency", "0"],
            "1 to 256",
        ),
        (["worker", "start", "--commands", "e", "--handler", "sh", "--lease-seconds", "1"], "3 to"),
        (["dlq", "delete", "e", "--error", "", "--yes"], "--all"),
        (["topic", "put", "e", "--priorities", "high"], "--priorities high"),
        (["topic", "put", "e", "--policy", "none"], "--policy none"),
        (["topic", "put", "e", "--policy", "-", "--weight", "1"], "--policy"),
        (["audit", "--limit", "0"], "--limit 0"),
    ],
)
def test_a_use_that_only_the_command_sees_to_be_wrong_ends_with_2(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says what is allowed, before anything is sent."""
    code = main([*arguments, "--url", _nobody()])

    error = capsys.readouterr().err
    assert (2, 1) == (code, error.count("\n")), error
    assert named in error


@pytest.mark.parametrize("words", [["queue", "ls"], ["dlq", "ls", "e"], ["cluster", "status"]])
def test_a_command_for_operators_says_what_to_do_without_a_broker(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the URL that was tried, and the flag for another."""
    url = _nobody()
    code = main([*words, "--url", url])

    error = capsys.readouterr().err
    assert (1, 1) == (code, error.count("\n"))
    assert url in error
    assert "--url" in error


@pytest.mark.parametrize(
    "words",
    [
        *(("cluster", verb) for verb in ("status", "transfer", "join", "remove", "replace")),
        *(("cluster", "rebalance"), ("cluster", "upgrade"), ("backup", "create"), ("backup", "ls")),
    ],
)
def test_the_help_of_a_command_for_the_cluster_says_whose_token_it_takes(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """An admin's token is refused, so the help names the operator's."""
    with pytest.raises(SystemExit):
        main([*words, "--help"])

    assert "scope codeq:operator" in " ".join(capsys.readouterr().out.split())


def test_a_payload_that_is_no_json_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The error comes before anything is sent."""
    code = main(["task", "create", "--command", "e", "--payload", "{", "--url", _nobody()])

    assert 2 == code
    assert "--payload: must be JSON text" in capsys.readouterr().err


@pytest.mark.parametrize(
    "other", [["--nodes", "3"], ["--restart"], ["--demo"], ["--tenant", "acme"]]
)
def test_virtual_time_excludes_what_its_clock_cannot_have(
    other: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the option, and nothing is written."""
    data = tmp_path / "dev"
    code = main(["dev", "--virtual-time", "--data", str(data), *other])

    assert 2 == code
    assert f"--virtual-time: not with {' '.join(other[:1])}" in capsys.readouterr().err
    assert not data.exists()
