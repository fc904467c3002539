"""The README and the five minutes: every command does what it says, on a real cluster."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.acceptance.runbooks import Block, blocks
from tests.acceptance.test_commands import READY_WITHIN_S, STOPPED_WITHIN_S
from tests.harness.http import fetch
from tests.harness.ports import free_port_base
from tests.harness.waiting import until
from tests.integration.docs.pages import differing

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text()
START = (ROOT / "docs" / "start.md").read_text()
READY = "Stop with Ctrl-C"
TOKEN = "dev-token"
RUN_WITHIN_S = 120.0
# The blocks must not inherit variables of the `make` that runs this test.
ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}

# The test has a clone already, so it starts after this line.
CLONE = "git clone REPOSITORY codeq-cluster && cd codeq-cluster\n"

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"(?:\w+=\S+ )?(?:make|docker|curl|\S*codeq-cluster|\.ci/run)\b")
# Inline code that is a command. Words in capitals stand for values that a reader fills in.
INLINE = [
    code
    for code in re.findall(r"`([^`\n]+)`", _FENCED.sub("", TEXT + START))
    if _COMMAND.match(code)
]
UPS = sorted({code for code in INLINE if "make up" in code} - {"make up"})
# Arguments that shorten targets which take minutes; program and flags are those of `make`.
SHORTENED = {
    "make explore": "ARGS=--help",
    "make simulate": "SEEDS=1",
    "make jepsen": "ARGS=--help",
    "make bench": "ARGS=--help",
}
# These are only printed by `make -n`: the first two run this test, the last needs other brokers.
TOLD = {"make check": "lint-imports", "make test": "pytest -n", "make bench-peers": "bench.peers"}
# Other tests run these: `docker compose` is not available everywhere.
ELSEWHERE = {
    "docker compose up -d --build": ("deploy/verify-compose.sh", ["docker build ", "run up -d "]),
    ".ci/run": (".ci/run", ["exec make test "]),
}


_LONG_AGO_S = 86_400  # In Unix seconds; `make` takes the first ones for "unknown".


class Checkout:
    """A directory that looks like a fresh clone, whose clusters have their own ports."""

    def __init__(self, directory: Path) -> None:
        """Create it; the installed packages are those of this test's environment."""
        self._directory = directory
        self._base = free_port_base(3)
        (directory / "jepsen-lite").mkdir(parents=True)
        for name in ("Makefile", "pyproject.toml", "jepsen-lite/pyproject.toml"):
            shutil.copy(ROOT / name, directory / name)
            # Older than this environment, or `make` would install the copy into it: the next
            # process of the environment would find no package.
            os.utime(directory / name, (_LONG_AGO_S, _LONG_AGO_S))
        (directory / ".venv").symlink_to(sys.prefix)

    def url(self, node: int) -> str:
        """Return the base URL of the nth node."""
        return f"http://127.0.0.1:{self._base + node - 1}"

    def nodes(self) -> dict[str, dict[str, object]]:
        """Return the running cluster's report of its nodes, by id."""
        text = (self._directory / ".data" / "dev" / "cluster.json").read_text()
        return {node["id"]: node for node in json.loads(text)["nodes"]}

    async def run(self, script: str, *, exit_code: int = 0) -> str:
        """Run a block to its end and return its output."""
        process = await self._started(script, asyncio.subprocess.PIPE)
        said = await _said(process)
        assert exit_code == process.returncode, f"{script}\n{said}"
        return said

    @asynccontextmanager
    async def serving(self, script: str, *, until_it_says: str = "") -> AsyncIterator[Path]:
        """Run a block in its own terminal until the end of this one, then press Ctrl-C.

        Args:
            script: The block.
            until_it_says: Text that the block prints before the body runs.

        Yields:
            The file with its output.
        """
        printed = self._directory / f"terminal-{len(list(self._directory.glob('terminal-*')))}"
        with printed.open("wb") as output:
            process = await self._started(script, output.fileno())

        async def says() -> bool:
            assert process.returncode is None, printed.read_text()
            return until_it_says in printed.read_text()

        try:
            await until(says, within_s=READY_WITHIN_S, what=until_it_says)
            yield printed
        finally:
            await _interrupt(process)

    async def _started(self, script: str, output: int) -> asyncio.subprocess.Process:
        script = re.sub(
            r"127\.0\.0\.1:808([0-2])", lambda at: f"127.0.0.1:{self._base + int(at[1])}", script
        )
        return await asyncio.create_subprocess_exec(
            *("bash", "-euo", "pipefail", "-c", script.replace("9080", str(self._base))),
            cwd=self._directory,
            env=ENVIRONMENT | {"CODEQ_PORT_BASE": str(self._base)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )


async def _said(process: asyncio.subprocess.Process) -> str:
    """Return the output of a process until its end, within a time limit."""
    try:
        output, _ = await asyncio.wait_for(process.communicate(), RUN_WITHIN_S)
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return output.decode()


async def _interrupt(process: asyncio.subprocess.Process) -> None:
    """Press Ctrl-C in the terminal of a process, and wait for its end."""
    if process.returncode is not None:
        return
    os.killpg(process.pid, signal.SIGINT)
    try:
        await asyncio.wait_for(process.wait(), STOPPED_WITHIN_S)
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)
        raise


class Reader:
    """Reads a page's blocks in order, without skipping any."""

    def __init__(self, text: str) -> None:
        self._blocks = [block for block in blocks(text) if block.marks not in ("", "make")]
        self.first = self._blocks[0].body

    def next(self, section: str, language: str, marks: str) -> str:
        """Return the next block, which must be this one."""
        block = self._blocks.pop(0)
        assert (section, language, marks) == (block.section, block.language, block.marks)
        return block.body

    def shown(self, section: str) -> list[str]:
        """Return the lines of the next block, which is the expected output of the previous one."""
        return self.next(section, "text", "shows").splitlines()

    @property
    def left(self) -> list[Block]:
        """The blocks that were not read."""
        return self._blocks


async def result_of(checkout: Checkout, *, node: int) -> object:
    """Create a task and return the result of a worker."""
    client = ".venv/bin/codeq-cluster task"
    payload = shlex.quote('{"name":"world"}')
    task_id = await checkout.run(f"{client} create --event greet --payload {payload} --quiet")
    said = await checkout.run(
        f"{client} result {task_id.strip()} --wait 30 --url {checkout.url(node)}"
    )
    ended = json.loads(said)["result"]
    return ended.get("result")


async def leaders(checkout: Checkout) -> set[object]:
    """Return the leaders, as the first node reports them."""
    status = "/v1/codeq/raft/status"
    told = (await asyncio.to_thread(fetch, "GET", checkout.url(1), status, token=TOKEN)).json
    groups = told["groups"]
    assert isinstance(groups, list)
    return {group["leaderId"] for group in groups}


@pytest.mark.timeout(600)
@pytest.mark.needs("curl")
async def test_the_readme_and_the_five_minutes_work_as_they_are_written(tmp_path: Path) -> None:
    """From the first start, over all kinds of work, to a killed node that comes back."""
    checkout, readme, start = Checkout(tmp_path / "clone"), Reader(TEXT), Reader(START)
    up = readme.next("Start", "sh", "serve").removeprefix(CLONE)
    async with checkout.serving(up, until_it_says=READY):
        lived = readme.next("Start", "sh", "run")
        answered = await checkout.run(lived)
        program = readme.next("Start", "python", "serve")
        async with checkout.serving(f".venv/bin/python -c {shlex.quote(program)}"):
            greeted = await result_of(checkout, node=2)
        printed = await _five_minutes(checkout, start, program)
        await _killed_and_back(checkout, start)

    assert start.first == up
    assert [] == differing(_answers(lived), answered)
    assert {"greeting": "hello world"} == greeted
    assert [[]] * len(printed) == [differing(shown, said) for shown, said in printed]
    assert readme.left == start.left == []


def _answers(script: str) -> list[str]:
    """Return the answers that a script has as comments below its requests."""
    return [line.removeprefix("# ") for line in script.splitlines() if line.startswith("# {")]


async def _five_minutes(
    checkout: Checkout, start: Reader, program: str
) -> list[tuple[list[str], str]]:
    """Run the page up to the killed node; return the shown and the printed output."""
    assert start.first == start.next("Start three nodes", "sh", "serve")
    printed = []
    for section in ("A first task", "A task that fails"):
        said = await checkout.run(start.next(section, "sh", "run"))
        printed.append((start.shown(section), said))
    mended = await checkout.run(start.next("A task that fails", "sh", "run"))
    printed.append((["task … greet: completed in …"], mended.splitlines()[-1]))
    producer = start.next("A worker in Python", "python", "run")
    async with checkout.serving(f".venv/bin/python -c {shlex.quote(program)}"):
        said = await checkout.run(f".venv/bin/python -c {shlex.quote(producer)}")
    printed.append((["hello world"], said))
    return printed


async def _killed_and_back(checkout: Checkout, start: Reader) -> None:
    """Kill n2 as the page does, wait for other leaders, and bring it back."""
    await checkout.run(start.next("Kill a node", "sh", "run"))
    status = start.next("Kill a node", "sh", "run again exit=1")

    async def led_by_the_others() -> bool:
        return await leaders(checkout) <= {"n1", "n3"}

    await until(led_by_the_others, within_s=READY_WITHIN_S, what="the others leading")
    missing = await checkout.run(status, exit_code=1)
    async with checkout.serving(start.next("Kill a node", "sh", "serve")):

        async def whole() -> bool:
            return "no connection" not in await checkout.run(f"{status.strip()} || true")

        await until(whole, within_s=READY_WITHIN_S, what="n2 back")

    assert "no connection" in missing


async def test_a_checkout_installs_nothing(tmp_path: Path) -> None:
    """The environment belongs to whoever runs the tests, however new the sources are."""
    told = await Checkout(tmp_path / "clone").run("make --dry-run up")

    assert "codeq-cluster dev" in told
    assert "pip" not in told


@pytest.mark.parametrize("command", UPS)
async def test_make_up_takes_the_options_in_the_readme(command: str, tmp_path: Path) -> None:
    """Other ports, one node, and nodes that restart by themselves work as described."""
    checkout = Checkout(tmp_path / "clone")
    async with checkout.serving(command, until_it_says=READY):
        nodes = checkout.nodes()
        urls = [node["url"] for node in nodes.values()]
        if "--restart" in command:
            killed = nodes["n2"]["pid"]
            assert isinstance(killed, int)
            os.kill(killed, signal.SIGKILL)

            async def back() -> bool:
                return checkout.nodes()["n2"]["pid"] not in (killed, None)

            await until(back, within_s=READY_WITHIN_S, what="n2 started again")

    assert [checkout.url(n + 1) for n in range(1 if "--nodes 1" in command else 3)] == urls


@pytest.mark.parametrize("command", sorted(SHORTENED))
async def test_a_target_of_the_readme_runs_its_program(command: str) -> None:
    """An argument shortens the run, as the README's reader may do too."""
    process = await asyncio.create_subprocess_exec(
        *shlex.split(f"{command} {SHORTENED[command]}"),
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    said = await _said(process)

    assert 0 == process.returncode, said
    assert "0 of 1 seeds failed" in said or "usage: " in said


@pytest.mark.parametrize("command", sorted(TOLD))
async def test_a_target_that_cannot_run_here_names_what_it_runs(
    command: str, tmp_path: Path
) -> None:
    """The script exists, and `make` finds all its prerequisites."""
    told = await Checkout(tmp_path / "clone").run(f"{command} --dry-run")

    assert TOLD[command] in told


def test_every_command_of_the_readme_is_run_by_a_test() -> None:
    """A new command needs a test."""
    marked = [*blocks(TEXT), *blocks(START)]
    listed = {
        line.partition("#")[0].strip()
        for block in marked
        if block.marks == "make"
        for line in block.body.splitlines()
    }
    shown = " ".join(block.body for block in marked if block.marks not in ("", "make"))
    unrun = [
        code
        for code in INLINE
        if code not in {"make", "make up", *UPS, *listed, *ELSEWHERE}
        and not re.search(re.sub(r"[A-Z]{2,}", r"\\S+", re.escape(code)), shown)
    ]

    assert SHORTENED.keys() | TOLD.keys() == listed
    assert [] == unrun
    assert {block.language for block in marked if not block.marks} <= {""}
    for path, lines in ELSEWHERE.values():
        assert all(line in (ROOT / path).read_text() for line in lines), path
