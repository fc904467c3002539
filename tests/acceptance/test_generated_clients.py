"""Generated clients: clients generated from the API's description process tasks.

The programs are those of docs/clients.md; the generators' versions are pinned in `clients/`.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from codeq_cluster.testing.cluster import LocalCluster

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "clients.md").read_text()
PROJECTS = Path(__file__).parent / "clients"
TOKEN = "dev-token"
# Without a cache, a busy machine takes minutes to compile the generator in Go.
ENDS_WITHIN_S = 900.0
_SCOPES = (
    *("codeq:claim", "codeq:heartbeat", "codeq:abandon", "codeq:nack", "codeq:result"),
    "codeq:admin",
)
# The program's output has one line per step.
TOLD = 'true COMPLETED {"width":320}\nno such picture\n1\nnot-in-progress false\n'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def three(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    """Run three nodes that accept the token on the page."""
    token = {"token": TOKEN, "subject": "dev", "scopes": list(_SCOPES), "eventTypes": ["*"]}
    provider = [{"kind": "static", "tokens": [token]}]
    auth = {"producer": provider, "worker": provider}
    async with LocalCluster(tmp_path_factory.mktemp("cluster"), settings={"auth": auth}) as running:
        yield running


def block(language: str, name: str) -> str:
    """Return the page's block with this language and name."""
    [found] = re.findall(rf"^```{language} {name}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


async def run(directory: Path, script: str) -> str:
    """Run a script with the tools of this environment; any failing line fails it."""
    tools = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "GOTOOLCHAIN": "local"}
    process = await asyncio.create_subprocess_exec(
        *("bash", "-euo", "pipefail", "-c", script),
        cwd=directory,
        env=_inherited() | tools,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(ENDS_WITHIN_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert 0 == process.returncode, f"{script}\n{out.decode()}{err.decode()}"
    return out.decode()


def _inherited() -> Mapping[str, str]:
    """Return the environment that a registry's client may need, such as a proxy."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CODEQ")}


async def _told(cluster: LocalCluster, directory: Path, language: str, *steps: str) -> str:
    """Generate, build and run a program of the page; return its output."""
    for file in (PROJECTS / directory.name).iterdir():
        shutil.copy(file, directory)
    suffix = {"typescript": "ts", "go": "go"}[language]
    (directory / f"story.{suffix}").write_text(
        block(language, "story").replace("http://127.0.0.1:8080", cluster.urls["n2"])
    )
    fetch = block("sh", "fetch").replace("http://127.0.0.1:8080", cluster.urls["n1"])
    return await run(directory, "\n".join([fetch, *steps]))


@pytest.mark.timeout(1000)
async def test_a_client_in_typescript_takes_a_task_through_its_life(
    three: LocalCluster, tmp_path: Path
) -> None:
    """The generated code passes the compiler's strictest checks."""
    directory = tmp_path / "typescript"
    directory.mkdir()
    install = "npm ci --silent --no-audit --no-fund"
    # The generators print progress; only the last step's output is the program's.
    steps = f"{{ {install}; {block('sh', 'typescript')} }} >&2"

    assert TOLD == await _told(three, directory, "typescript", steps, "node built/story.js")


@pytest.mark.timeout(1000)
async def test_a_client_in_go_takes_a_task_through_its_life(
    three: LocalCluster, tmp_path: Path
) -> None:
    """The program needs only the description to compile."""
    directory = tmp_path / "go"
    directory.mkdir()
    steps = f"{{ {block('sh', 'go')} }} >&2"

    assert TOLD == await _told(three, directory, "go", steps, "./story")
