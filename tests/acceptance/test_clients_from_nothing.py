"""Clients from nothing: the commands of docs/clients.md, as printed, in an empty folder."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from importlib.metadata import version
from pathlib import Path

import pytest
import pytest_asyncio

from tests.acceptance.runbooks import blocks
from tests.harness.cluster import LocalCluster

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(1000)]

ROOT = Path(__file__).resolve().parents[2]
PAGE = {
    (block.language, block.marks): block.body
    for block in blocks((ROOT / "docs" / "clients.md").read_text())
}
TOKEN = "dev-token"
# The test has a copy of the package instead.
CLONE = "git clone REPOSITORY codeq-cluster\n"
# Without a cache, a busy machine takes minutes to compile the generator in Go.
ENDS_WITHIN_S = 900.0
_SCOPES = (
    *("codeq:claim", "codeq:heartbeat", "codeq:abandon", "codeq:nack", "codeq:result"),
    "codeq:admin",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def three(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    """Run three nodes that accept the token on the page."""
    token = {"token": TOKEN, "subject": "dev", "scopes": list(_SCOPES), "eventTypes": ["*"]}
    provider = [{"kind": "static", "tokens": [token]}]
    auth = {"producer": provider, "worker": provider}
    async with LocalCluster(tmp_path_factory.mktemp("cluster"), settings={"auth": auth}) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an empty folder."""
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


async def run(directory: Path, script: str, **extra: str) -> str:
    """Run commands with the tools of this environment, and return what they print.

    The first line that fails ends them, and fails the test.
    """
    process = await asyncio.create_subprocess_exec(
        *("bash", "-euo", "pipefail", "-c", script),
        cwd=directory,
        env={**_inherited(), **extra},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(ENDS_WITHIN_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    assert 0 == process.returncode, f"{script}\n{out.decode()}{err.decode()}"
    return out.decode()


def _inherited() -> Mapping[str, str]:
    """Return the environment that a registry's client may need, such as a proxy."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CODEQ")}
    return kept | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.mark.needs("curl")
@pytest.mark.parametrize(
    ("language", "program"), [("typescript", "story.ts"), ("go", "story.go")], ids=["ts", "go"]
)
async def test_a_generated_client_takes_a_task_through_its_life(
    language: str, program: str, three: LocalCluster, folder: Path
) -> None:
    """The page's commands install the generator, generate, build and run the program."""
    (folder / program).write_text(_at(three.urls["n2"], PAGE[language, "story"]))

    said = await run(folder, _at(three.urls["n1"], PAGE["sh", language]))

    assert said.endswith(PAGE["text", "shows"]), said


def _at(url: str, text: str) -> str:
    assert "http://127.0.0.1:8080" in text
    return text.replace("http://127.0.0.1:8080", url)


async def test_a_project_installs_the_python_client_and_tests_with_it(folder: Path) -> None:
    """The page's installation has all that the page's tests need."""
    checkout = folder / "codeq-cluster"
    shutil.copytree(ROOT / "codeq_cluster", checkout / "codeq_cluster")
    shutil.copy(ROOT / "pyproject.toml", checkout)
    (folder / "conftest.py").write_text(PAGE["python", "conftest"])
    (folder / "test_invoices.py").write_text(PAGE["python", "tests"])
    # A release of pytest must not change what this test says.
    pins = folder / "pins.txt"
    pins.write_text(f"pytest=={version('pytest')}\n")
    assert PAGE["sh", "install"].startswith(CLONE)

    script = PAGE["sh", "install"].removeprefix(CLONE) + PAGE["sh", "pytest"]
    said = await run(folder, script, PIP_CONSTRAINT=str(pins))

    assert "1 passed" in said


async def test_every_command_of_the_page_is_run() -> None:
    """A new block of commands needs a test."""
    commands = {marks for language, marks in PAGE if language == "sh"}

    assert {"install", "pytest", "typescript", "go"} == commands
