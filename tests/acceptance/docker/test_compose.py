"""Compose: the shipped image and the shipped compose file, on a real engine."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system_tools import LEFT_OUT

ROOT = Path(__file__).resolve().parents[3]

_INSTALLS = "apt install docker.io docker-compose"
# In continuous integration, a script beside the repository that installs an engine.
_ENGINE_MAKER = ROOT.parent / "shared" / "tools" / "docker-here"


def _engine() -> str | None:
    """Return None if there is an engine, or else the reason why there is none."""
    if (
        shutil.which("docker")
        and subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0
    ):
        return None
    if not _ENGINE_MAKER.exists():
        return f"no docker engine answers: {_INSTALLS}"
    made = subprocess.run([_ENGINE_MAKER], capture_output=True, text=True, timeout=400, check=False)
    if made.returncode == 0:
        return None
    said = " ".join(made.stderr.split())[-500:]
    return f"no docker engine, and {_ENGINE_MAKER} failed ({said}): {_INSTALLS}"


@pytest.mark.docker
@pytest.mark.timeout(900)
def test_a_compose_cluster_serves_through_the_death_of_a_node(
    record_property: Callable[[str, object], None],
) -> None:
    """Tasks work through all ports, through the others after a kill, and through all again later.

    One node serves a file that another stored, and a callback's signature is valid.
    """
    reason = _engine()
    if reason:
        record_property(LEFT_OUT, reason)
        pytest.skip(reason)

    ran = subprocess.run(
        [ROOT / "deploy" / "verify-compose.sh"],
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )

    assert 0 == ran.returncode, ran.stdout + ran.stderr
