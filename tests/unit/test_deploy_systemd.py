"""The systemd unit: read by systemd's own tools, and consistent with the node it runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.config import load
from codeq_cluster.node.drain import TRANSFER_S
from codeq_cluster.node.fatal import EXIT_UNSAFE
from codeq_cluster.settings import ArtifactProvider, LimitSettings, Signing
from tests.acceptance.runbooks import blocks
from tests.unit.shipped import operators

_ROOT = Path(__file__).resolve().parents[2]
_SHIPPED = _ROOT / "deploy" / "systemd"
_UNIT = (_SHIPPED / "codeq-cluster.service").read_text()

# `systemd-analyze security` rates from 0 to 10, and calls a unit below 2 OK.
_EXPOSURE_MAX = "19"  # In tenths.
_CONNECTIONS_CUT_OFF_S = 2  # The time that the HTTP server gives requests at a stop.


def _directives(name: str) -> list[str]:
    """Return all values of a directive of the unit, in order."""
    return re.findall(rf"^{name}=(.*)$", _UNIT, re.MULTILINE)


def _ran(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Write the unit as it is installed, except for this environment's program."""
    program = Path(sys.executable).parent / "codeq-cluster"
    unit = tmp_path / "codeq-cluster.service"
    unit.write_text(_UNIT.replace("/opt/codeq-cluster/bin/codeq-cluster", str(program)))
    return unit


@pytest.mark.needs("systemd-analyze")
def test_systemd_takes_the_unit_without_a_complaint(installed: Path) -> None:
    """No directive is unknown, misspelt or out of range, and the program is there."""
    verified = _ran("systemd-analyze", "verify", installed)

    assert (0, "") == (verified.returncode, verified.stdout + verified.stderr)


@pytest.mark.needs("systemd-analyze")
def test_systemd_would_complain_of_a_unit_that_is_wrong(installed: Path) -> None:
    """The previous test relies on this: systemd reports an unknown directive."""
    installed.write_text(installed.read_text().replace("ProtectClock=", "ProtectClocks="))
    verified = _ran("systemd-analyze", "verify", installed)

    assert "ProtectClocks" in verified.stderr


@pytest.mark.needs("systemd-analyze")
def test_the_unit_is_confined(installed: Path) -> None:
    """By systemd's own rating, the service can reach little."""
    judged = _ran(
        *("systemd-analyze", "security", "--offline=true", "--no-pager"),
        f"--threshold={_EXPOSURE_MAX}",
        installed,
    )

    assert 0 == judged.returncode, judged.stdout


def test_an_exit_that_needs_a_person_causes_no_restart() -> None:
    """These are the codes of wrong usage and of a node that stopped itself; others restart."""
    assert [f"{int(Exit.USAGE)} {EXIT_UNSAFE}"] == _directives("RestartPreventExitStatus")
    assert ["on-failure"] == _directives("Restart")
    assert _directives("StartLimitBurst")


def test_a_planned_stop_has_the_time_it_takes() -> None:
    """The unit allows well more time than a node gives its requests and its peers."""
    (seconds,) = _directives("TimeoutStopSec")

    assert int(seconds) >= 5 * (TRANSFER_S + _CONNECTIONS_CUT_OFF_S)
    assert f"stop_grace_period: {seconds}s" in (_ROOT / "docker-compose.yml").read_text()


def test_the_unit_allows_every_connection_the_node_does() -> None:
    """The limit also leaves room for as many files."""
    (files,) = _directives("LimitNOFILE")

    assert int(files) >= 2 * LimitSettings().connections_max


@pytest.mark.needs("systemd-analyze")
def test_the_user_is_made_that_the_unit_names() -> None:
    """systemd-sysusers reports that it would create the user."""
    (user,) = _directives("User")
    made = _ran("systemd-sysusers", "--dry-run", _SHIPPED / "codeq-cluster.sysusers.conf")
    text = (_SHIPPED / "codeq-cluster.sysusers.conf").read_text()

    assert 0 == made.returncode, made.stderr
    assert re.search(rf"^u {user} ", text, re.MULTILINE)


@pytest.mark.needs("systemd-analyze")
def test_the_directories_are_made_for_the_user_alone(tmp_path: Path) -> None:
    """systemd-tmpfiles creates them below a test root, for the user of this test."""
    (user,) = _directives("User")
    text = (_SHIPPED / "codeq-cluster.tmpfiles.conf").read_text()
    rules = tmp_path / "rules.conf"
    owner = f" {os.getuid()} {os.getgid()} "
    rules.write_text(re.sub(f" (root|{user}) {user} ", owner, text))
    made = _ran("systemd-tmpfiles", "--create", f"--root={tmp_path}", rules)
    modes = {
        name: (tmp_path / name).stat().st_mode & 0o777
        for name in ("etc/codeq-cluster", "etc/codeq-cluster/secrets")
    }

    assert (0, "") == (made.returncode, made.stderr)
    assert {0o750} == set(modes.values()), modes
    assert 0o700 == (tmp_path / "var/backups/codeq-cluster").stat().st_mode & 0o777


@pytest.mark.needs("systemd-analyze")
def test_the_page_installs_what_systemd_needs(tmp_path: Path) -> None:
    """The page's own commands install it below a test root, for the user of this test."""
    page = blocks((_ROOT / "deploy" / "README.md").read_text())
    typed = "".join(block.body for block in page if block.section == "systemd").splitlines()
    rules = f"{tmp_path}/etc/tmpfiles.d/codeq-cluster.conf"
    owner = f"s/ (root|codeq) codeq / {os.getuid()} {os.getgid()} /"
    here = {
        "systemd-sysusers": f"systemd-sysusers --dry-run --root={tmp_path}",
        "systemd-tmpfiles": f"sed -i -E '{owner}' {rules}; systemd-tmpfiles --root={tmp_path}",
        # Nothing is started, because the test root has no running systemd.
        "systemctl enable --now": f"systemctl --root={tmp_path} enable",
        "-g codeq": f"-g {os.getgid()}",
        " /etc/": f" {tmp_path}/etc/",
    }
    # These would change programs and services of this machine, so they are left out.
    lines = [line for line in typed if not re.search(r"/opt/|daemon-reload", line)]
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    ran = _ran("bash", "-euo", "pipefail", "-c", _replaced("\n".join(lines), here))
    installed = tmp_path / "etc/codeq-cluster"
    enabled = tmp_path / "etc/systemd/system/multi-user.target.wants/codeq-cluster.service"
    (command,) = _directives("ExecStart")
    (variables,) = _directives("EnvironmentFile")

    assert 0 == ran.returncode, ran.stderr
    assert "python3.11 -m venv /opt/codeq-cluster" in typed
    assert (
        "/opt/codeq-cluster/bin/codeq-cluster node --config /etc/codeq-cluster/node.yaml" == command
    )
    assert "/etc/codeq-cluster/node.env" == variables.removeprefix("-")
    for name in ("node.yaml", "node.env"):
        assert (_SHIPPED / name).read_text() == (installed / name).read_text()
        assert 0o640 == (installed / name).stat().st_mode & 0o777
    assert (installed / "secrets").is_dir()
    assert enabled.is_symlink()


def _replaced(text: str, by: dict[str, str]) -> str:
    for each, other in by.items():
        text = text.replace(each, other)
    return text


def test_a_node_starts_with_the_example(tmp_path: Path) -> None:
    """The node starts once its secrets exist, with the data directory that the unit sets."""
    text = (_SHIPPED / "node.yaml").read_text()
    for name in ("cluster", "webhook", "producer", "admin", "operator", "worker"):
        (tmp_path / name).write_text(f"{name}-0123456789abcdef")
    file = tmp_path / "node.yaml"
    file.write_text(text.replace("/etc/codeq-cluster/secrets", str(tmp_path)))
    (assigned,) = _directives("Environment")
    variables = dict(each.split("=", 1) for each in assigned.split())
    variables |= _example_variables()
    settings = load(file=file, environment=variables, flags={}).settings
    (shared,) = re.findall(r"provider: local, directory: ([^}]+)}", text)

    assert Path("/var/lib") / _directives("StateDirectory")[0] == settings.data_dir
    # Everything else is read-only for the service; unused directories need not exist.
    assert [f"-{settings.backup.directory} -{shared}"] == _directives("ReadWritePaths")
    assert settings.artifacts.provider is ArtifactProvider.NONE
    assert settings.webhooks.signing is Signing.SIGNED
    assert {"n1", "n2", "n3"} == {peer.id for peer in settings.peers}
    assert len(settings.auth.producer) == len(settings.auth.worker) == 1
    assert [("operator", "operators")] == operators(settings)


def _example_variables() -> dict[str, str]:
    """Return the variables that the example environment file sets, commented ones included."""
    lines = (_SHIPPED / "node.env").read_text().splitlines()
    given = [line.lstrip("#") for line in lines if re.match(r"#?[A-Z_]+=", line)]
    assert given
    return dict(line.split("=", 1) for line in given)
