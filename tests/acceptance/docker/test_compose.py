"""Compose: the shipped image and the shipped compose file, on a real engine."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

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
        return "no docker engine answers"
    made = subprocess.run([_ENGINE_MAKER], capture_output=True, text=True, timeout=400, check=False)
    return None if made.returncode == 0 else f"no docker engine can be made: {made.stderr[-500:]}"


@pytest.mark.docker
@pytest.mark.timeout(900)
def test_a_compose_cluster_serves_through_the_death_of_a_node() -> None:
    """Tasks work through all ports, through the others after a kill, and through all again later.

    One node serves a file that another stored, and a callback's signature is valid.
    """
    reason = _engine()
    if reason:
        pytest.skip(reason)

    ran = subprocess.run(
        [ROOT / "deploy" / "verify-compose.sh"],
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )

    assert 0 == ran.returncode, ran.stdout + ran.stderr
