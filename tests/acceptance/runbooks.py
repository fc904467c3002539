"""Runbooks: their commands run as by an operator, against nodes on this machine."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from aiohttp import web

from tests.harness.cluster import LocalCluster
from tests.harness.node_process import ADMIN_TOKEN, OPERATOR_TOKEN
from tests.harness.waiting import until
from tests.serving import served

DIRECTORY = Path(__file__).resolve().parents[2] / "docs" / "runbooks"

_AGAIN_WITHIN_S = 60.0
_FENCE = re.compile(r"^```(\S*) ?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)

# docs/runbooks/README.md asks an operator to define these functions. Here they call the test,
# because it started the nodes and must learn their exit codes.
PRELUDE = """
NODES=(--url "$N1" --url "$N2" --url "$N3")
stop_node() { curl -fsS "$CONTROL/stop/$1"; }
start_node() { curl -fsS "$CONTROL/start/$1"; }
exit_code_of() { curl -fsS "$CONTROL/exit/$1"; }
log_of() { tail -n 50 "$CLUSTER/$1/node.log"; }
on_node() {
  CONFIG=$CLUSTER/$1 DATA=$CLUSTER/$1/data BACKUP=$CLUSTER/$1/backup bash -euo pipefail -c "$2"
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block: its section, its language, and the marks after the language."""

    section: str
    language: str
    marks: str
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A block of commands.

    Attributes:
        again: Whether to repeat it until its exit code and output are as expected.
        exit_code: The expected exit code.
        shows: Expected lines of its output; `…` matches anything, one blank any number of them.
    """

    section: str
    script: str
    again: bool
    exit_code: int
    shows: tuple[str, ...]


class Runbook:
    """One file of docs/runbooks, run section by section in the order an operator reads them."""

    def __init__(self, name: str, cluster: LocalCluster, *, control: str, ca: Path | None) -> None:
        """Read it.

        Args:
            name: Of the file.
            cluster: With the nodes n1 to n3.
            control: Base URL of the server that stops and starts them.
            ca: The authority of the nodes' certificates for HTTP.
        """
        self._steps = steps((DIRECTORY / name).read_text())
        directory = next(iter(cluster.nodes.values())).directory.parent
        authority = {} if ca is None else {"CODEQ_CA": str(ca), "CURL_CA_BUNDLE": str(ca)}
        self._environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "CONTROL": control,
            "CLUSTER": str(directory),
            "CODEQ_TOKEN": OPERATOR_TOKEN,
            "ADMIN_TOKEN": ADMIN_TOKEN,
            **{node.id.upper(): node.url for node in cluster.nodes.values()},
            **{
                f"{node.id.upper()}_ADDR": f"127.0.0.1:{node.link_port}"
                for node in cluster.nodes.values()
            },
            **authority,
        }

    async def run(self, section: str) -> None:
        """Run the steps of the next section with steps; `section` must name it."""
        assert self._steps, f"nothing is left of the runbook, {section} least of all"
        assert section == self._steps[0].section
        while self._steps and self._steps[0].section == section:
            await self._run(self._steps.pop(0))

    def assert_done(self) -> None:
        """Assert that no step was left out."""
        assert not self._steps, self._steps

    async def _run(self, step: Step) -> None:
        said = ""

        async def ends() -> bool:
            nonlocal said
            code, said = await self._bash(step.script)
            # A step marked `again` is repeated until its output is as expected too.
            return code == step.exit_code and (not step.again or not lacking(said))

        def lacking(said: str) -> list[str]:
            return [line for line in step.shows if not _shown(line, said)]

        if step.again:
            await until(ends, within_s=_AGAIN_WITHIN_S, what=f"{step.script}\n{step.shows}")
        else:
            assert await ends(), f"ends otherwise than with {step.exit_code}:\n{step}\n{said}"
        assert not lacking(said), f"does not show {lacking(said)}:\n{step.script}\n{said}"

    async def _bash(self, script: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-euo", "pipefail", "-c", PRELUDE + script),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environment,
        )
        said, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, said.decode()


def steps(text: str) -> list[Step]:
    """Return the blocks of a runbook.

    Raises:
        AssertionError: A block has an unknown mark, so it would not be run.
    """
    found: list[Step] = []
    for block in blocks(text):
        if (block.language, block.marks) == ("text", "shows"):
            last = found.pop()
            assert not last.shows, last
            found.append(replace(last, shows=tuple(block.body.splitlines())))
            continue
        marked = re.fullmatch(r"run( again)?(?: exit=(\d+))?", block.marks)
        assert "sh" == block.language, block
        assert marked, block
        found.append(
            Step(
                section=block.section,
                script=block.body,
                again=bool(marked[1]),
                exit_code=int(marked[2] or 0),
                shows=(),
            )
        )
    return found


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    found = []
    for fenced in _FENCE.finditer(text):
        language, marks, body = fenced.groups()
        sections = _SECTION.findall(text[: fenced.start()])
        found.append(
            Block(
                section=sections[-1] if sections else "", language=language, marks=marks, body=body
            )
        )
    return found


@asynccontextmanager
async def controlled(
    cluster: LocalCluster,
    *,
    stop: Callable[[str], Awaitable[object]] | None = None,
    start: Callable[[str], Awaitable[object]] | None = None,
) -> AsyncIterator[str]:
    """Serve requests to stop and start nodes, at the URL this yields.

    Args:
        cluster: With the nodes.
        stop: Replaces the default, which stops the node and requires exit code 0.
        start: Replaces the default, which starts the node.
    """

    async def stopped(request: web.Request) -> web.Response:
        node = request.match_info["node"]
        if stop is not None:
            await stop(node)
        elif cluster.nodes[node].running:
            assert 0 == await cluster.stop(node)
        return web.Response()

    async def started(request: web.Request) -> web.Response:
        node = request.match_info["node"]
        if start is not None:
            await start(node)
        else:
            cluster.start(node)
        return web.Response()

    async def ended(request: web.Request) -> web.Response:
        process = cluster.nodes[request.match_info["node"]].process
        code = "none" if process is None else process.poll()
        return web.Response(text=f"{code}\n")

    app = web.Application()
    app.add_routes(
        [
            web.get("/stop/{node}", stopped),
            web.get("/start/{node}", started),
            web.get("/exit/{node}", ended),
        ]
    )
    async with served(app) as url:
        yield url


def _shown(line: str, said: str) -> bool:
    pattern = ".*".join(map(re.escape, line.split("…")))
    lines = [" ".join(each.split()) for each in said.splitlines()]
    return any(re.fullmatch(pattern, each) for each in lines)
