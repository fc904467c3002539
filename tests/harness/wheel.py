"""Wheel: the package as users install it, an environment for it, and its size.

python -m tests.harness.wheel
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections import Counter
from pathlib import Path
from zipfile import ZipFile

from codeq_cluster.config import without_settings
from codeq_cluster.settings import environment

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# An index that does not answer ends a test, and not the whole run.
_INSTALL_WITHIN_S = 300.0


def build(directory: Path) -> Path:
    """Build the wheel in an empty directory and return it.

    The sources are copied first: setuptools leaves files in the tree it builds from, and takes up
    those of earlier builds.
    """
    source = directory / "source"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "codeq_cluster", source / "codeq_cluster", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", source)
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", directory, source)
    (wheel,) = directory.glob("*.whl")
    return wheel


class Environment:
    """A virtual environment that begins empty."""

    def __init__(self, directory: Path) -> None:
        """Create it in an empty directory."""
        venv.create(directory)
        self.bin = directory / "bin"

    def install(self, *wanted: str, pins: dict[str, str] | None = None) -> None:
        """Install requirements and what they need; `pins` are versions of libraries, by name."""
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.writelines(f"{name}=={version}\n" for name, version in (pins or {}).items())
            file.flush()
            _pip("install", "--constraint", file.name, *wanted, python=self.bin / "python")

    def run(self, *command: str, token: str = "") -> subprocess.CompletedProcess[str]:
        """Run one of its programs to the end, and return its output."""
        return subprocess.run(
            [self.bin / command[0], *command[1:]],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            cwd=self.bin,
            env=self.variables(CODEQ_TOKEN=token),
        )

    def variables(self, **more: str) -> dict[str, str]:
        """Return the variables of its programs: none leads them to this checkout or a cluster."""
        kept = without_settings(environment())
        kept.pop("PYTHONPATH", None)
        return kept | more | {"PATH": f"{self.bin}:{os.environ['PATH']}"}


def lines(wheel: Path) -> Counter[str]:
    """Return the number of lines of the package's files, by their suffix."""
    with ZipFile(wheel) as archive:
        counted: Counter[str] = Counter()
        for name in archive.namelist():
            if name.startswith("codeq_cluster/"):
                counted[Path(name).suffix] += len(archive.read(name).splitlines())
        return counted


def _pip(*words: str | Path, python: Path = Path(sys.executable)) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python), "--quiet"]
    command += ["--disable-pip-version-check", "--timeout", "30", *map(str, words)]
    subprocess.run(command, check=True, timeout=_INSTALL_WITHIN_S, cwd=ROOT.anchor)


if __name__ == "__main__":
    argparse.ArgumentParser(description="Count the lines that a user installs.").parse_args()
    with tempfile.TemporaryDirectory() as built:
        found = lines(build(Path(built)))
    sys.stdout.write(f"{found['.py']:,} lines of Python, {found.total():,} in all\n")
