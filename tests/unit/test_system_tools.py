"""System tools: a machine without them skips by name, and continuous integration installs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system_tools import TOOLS

_ROOT = Path(__file__).resolve().parents[2]
_TESTS = ("jepsen-lite/tests/test_drifting.py", "tests/unit/settings/test_page_examples.py")


_OF_AN_ENGINE = "tests/acceptance/docker/test_compose.py"


def _tested(
    *tests: str, root: Path = _ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run tests that need tools as a machine without tools does: this test names none."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", *tests],
        cwd=root,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_test_finds_no_tool_that_it_does_not_name() -> None:
    """Otherwise it would fail on the first machine without that tool."""
    found = [name for tool in TOOLS.values() for name in tool.programs if shutil.which(name)]

    assert [] == found


@pytest.mark.needs("curl")
def test_a_test_finds_the_tools_that_it_names() -> None:
    """The other tools stay hidden."""
    assert shutil.which("curl")
    assert not shutil.which("promtool")


def test_a_missing_tool_is_named_once_with_its_remedy() -> None:
    """The tests that need it are skipped, and the others run."""
    ran = _tested(*_TESTS, CI="")

    assert 0 == ran.returncode, ran.stdout
    told = ran.stdout.split("= left out =")[1].splitlines()[1:3]
    assert [
        "no gcc: apt install gcc libc6-dev (tests: 3)",
        "no openssl: apt install openssl (tests: 1)",
    ] == told


def test_a_missing_engine_is_named_with_its_remedy(tmp_path: Path) -> None:
    """In a checkout with nothing beside it that could make one; docker's client may be there."""
    root = tmp_path / "beside-nothing" / "checkout"
    for name in ("pyproject.toml", "conftest.py", "tests/system_tools.py", _OF_AN_ENGINE):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(_ROOT / name, root / name)
    shutil.copytree(_ROOT / ".ci", root / ".ci")
    client = tmp_path / "programs" / "docker"
    client.parent.mkdir()
    client.write_text("#!/bin/sh\nexit 1\n")
    client.chmod(0o755)
    path = f"{client.parent}:{os.environ['PATH']}"
    ran = _tested(_OF_AN_ENGINE, root=root, CI="", PYTHONPATH="", PATH=path)

    assert 0 == ran.returncode, ran.stdout + ran.stderr
    told = ran.stdout.split("= left out =")[1].splitlines()[1]
    assert "no docker engine answers: apt install docker.io docker-compose (tests: 1)" == told


def test_continuous_integration_skips_no_test_for_a_tool() -> None:
    """There a missing tool fails each test that needs it."""
    ran = _tested(*_TESTS, CI="true")

    assert 1 == ran.returncode, ran.stdout
    assert "left out" not in ran.stdout
    assert 3 == ran.stdout.count("- Failed: no gcc: apt install gcc libc6-dev")


def test_continuous_integration_installs_every_tool(tmp_path: Path) -> None:
    """On a machine without tools, the script asks apt-get for all packages of the list."""
    for name in ("run", "tools"):
        (tmp_path / ".ci").mkdir(exist_ok=True)
        shutil.copy(_ROOT / ".ci" / name, tmp_path / ".ci")
    programs = tmp_path / "programs"
    programs.mkdir()
    # The script becomes root, changes /dev and runs the suite; these note their arguments instead.
    for name in ("apt-get", "id", "make", "mknod", "docker"):
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >>"$TOLD"\necho 0\n')
        (programs / name).chmod(0o755)
    told = tmp_path / "told"
    subprocess.run(
        [tmp_path / ".ci" / "run", "tests/unit"],
        env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "TOLD": str(told)},
        check=True,
        capture_output=True,
        timeout=60,
    )
    (installs,) = (each for each in told.read_text().splitlines() if "apt-get install" in each)
    packages = {each for tool in TOOLS.values() for each in tool.packages.split()}

    assert packages <= set(installs.split())
    assert "ARGS=tests/unit" in told.read_text()
