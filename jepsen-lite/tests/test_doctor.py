"""Doctor: a missing tool disables its kinds of faults, or the start if they are required."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jepsen_lite.checker.judging import Exit
from jepsen_lite.cli import _options, _parser
from jepsen_lite.doctor import KindsMissing, available, findings
from jepsen_lite.fault_schedule import KINDS
from jepsen_lite.network import namespaces_work
from jepsen_lite.running import HOME, RUNS
from tests.system_tools import TOOLS

# The number of a run that never starts: no other run has it.
SEED = 410_220_117


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Make this machine look as if it had no tool for faults and no built shims."""
    tool = shutil.which("true")
    assert tool is not None
    (tmp_path / "true").symlink_to(tool)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_every_kind_of_fault_is_looked_at() -> None:
    """A kind of fault without a check would count as available on every machine."""
    assert set(KINDS) == {kind for finding in findings() for kind in finding.kinds}


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("kind", "tool"),
    [("disk-slow", "gcc"), ("power", "gcc"), ("clock", "gcc"), ("partition", "ip")],
)
def test_a_kind_without_its_tool_is_left_out(kind: str, tool: str) -> None:
    """The reason names the Debian package; the other kinds stay."""
    there, lacking = available(["kill", kind], require=False)
    unprivileged = kind == "partition" and os.geteuid() != 0

    assert ("kill",) == there
    assert list(lacking) == [kind]
    assert ("not root: run as root" if unprivileged else TOOLS[tool].lacks) == lacking[kind]


def test_resets_without_nft_are_left_out_and_partitions_stay(bare: Path) -> None:
    """A Debian without nftables has no resets but has partitions; without root it has neither."""
    ip = shutil.which("ip", path=os.defpath + ":/usr/sbin:/sbin")
    if ip is not None:
        (bare / "ip").symlink_to(ip)
    there, lacking = available(["kill", "partition", "reset"], require=False)
    cuttable = not namespaces_work()

    assert (("kill", "partition") if cuttable else ("kill",)) == there
    assert cuttable == (TOOLS["nft"].lacks == lacking["reset"])


@pytest.mark.usefixtures("bare")
def test_nothing_is_played_in_place_of_the_only_fault_asked_for() -> None:
    """A run without any fault must not pass for one with faults."""
    with pytest.raises(KindsMissing, match=f"disk-full: {TOOLS['gcc'].lacks}"):
        available(["disk-full"], require=False)


def test_links_of_loopback_cannot_be_cut_whatever_the_machine_has() -> None:
    """A run on loopback leaves partitions out, and says why."""
    there, lacking = available(["kill", "partition"], require=False, loopback=True)

    assert ("kill",) == there
    assert {"partition": "no link of loopback can be cut"} == lacking


@pytest.mark.usefixtures("bare")
def test_a_machine_without_a_compiler_runs_without_shims(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nodes run without the shim, and the kinds left out are printed."""
    given = _parser().parse_args(["run", "--loopback", "-n", "kill,power,pause"])
    options = _options(given, "lease", given.nemeses, seed=1)

    assert ("kill", "pause") == options.nemeses
    assert not options.shimmed
    assert f"left out: power ({TOOLS['gcc'].lacks})" in capsys.readouterr().out


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("command", ["run", "soak", "matrix"])
def test_a_required_fault_that_is_missing_is_an_error_before_anything_starts(command: str) -> None:
    """The text names every kind with its package, and no directory of a run is created."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "jepsen_lite", command, "--seed", str(SEED)),
            *("--loopback", "--require", "-n", "kill,power,disk-full,drift"),
        ],
        cwd=HOME,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HOME.parent), str(HOME)])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert Exit.BROKEN == done.returncode
    for kind in ("power", "disk-full", "drift"):
        assert f"  {kind}: {TOOLS['gcc'].lacks}" in done.stderr.splitlines()
    assert not list(RUNS.glob(f"*-{SEED}"))
