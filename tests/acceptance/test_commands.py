"""Commands: a development cluster, as a new user runs it."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from codeq_cluster.testing.cluster import ClusterError, free_port_base, until

READY_WITHIN_S = 60.0
STOPPED_WITHIN_S = 25.0
DEV = [sys.executable, "-m", "codeq_cluster.cli.main", "dev"]


def refused(*arguments: str) -> tuple[int, list[str]]:
    """Run `dev`, expecting it to end by itself; return its exit code and its output."""
    ended = subprocess.run(
        [*DEV, *arguments], capture_output=True, text=True, timeout=READY_WITHIN_S, check=False
    )
    return ended.returncode, (ended.stdout + ended.stderr).strip().splitlines()


def started(output: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start `dev` with its output in a file."""
    with output.open("wb") as sink:
        return subprocess.Popen([*DEV, *arguments], stdout=sink, stderr=sink)


def lives(pid: int) -> bool:
    """Return whether a process exists."""
    return Path(f"/proc/{pid}").exists()


@asynccontextmanager
async def running(
    directory: Path, *arguments: str
) -> AsyncIterator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
    """Run `dev` until it prints how to stop it; yields the process and a reader of its output."""
    output = directory.with_suffix(".out")
    process = started(output, "--data", str(directory), *arguments)

    async def said_ready() -> bool:
        if process.poll() is not None:
            raise ClusterError(f"dev ended with {process.returncode}: {output.read_text()}")
        return "Stop with Ctrl-C" in output.read_text()

    try:
        await until(said_ready, within_s=READY_WITHIN_S, what="READY")
        yield process, output.read_text
    finally:
        if process.poll() is None:
            await interrupted(process)


async def interrupted(process: subprocess.Popen[bytes]) -> int:
    """Press Ctrl-C and return the exit code."""
    process.send_signal(signal.SIGINT)
    try:
        return await asyncio.to_thread(process.wait, STOPPED_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        await asyncio.to_thread(process.wait)
        raise


def bash(script: str) -> str:
    """Run a script and return its output; any failing line fails it."""
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert 0 == ended.returncode, f"{script}\n{ended.stdout}{ended.stderr}"
    return ended.stdout


def get(url: str, token: str) -> dict[str, object]:
    """Read a JSON document."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        document: dict[str, object] = json.load(answer)
    return document


async def test_a_development_cluster_keeps_what_it_prints(tmp_path: Path) -> None:
    """Every printed command works, Ctrl-C ends everything, and the data is kept."""
    directory, base = tmp_path / "dev", str(free_port_base(3))
    async with running(directory, "--port-base", base) as (process, said):
        text = said()
        urls = re.findall(r"^  n\d +(http://\S+)$", text, re.MULTILINE)
        token = re.findall(r"^  token +(\S+)", text, re.MULTILINE)[0]
        lines = text.split("(any node takes any request):")[1].split("Stop with Ctrl-C")[0]
        printed = await asyncio.to_thread(bash, lines)
        task_id = re.findall(r'"id": ?"([^"]+)"', printed)[0]
        told = get(f"{urls[2]}/v1/codeq/tasks/{task_id}/result", token)
        nodes = json.loads((directory / "cluster.json").read_text())["nodes"]
        begun_s = time.monotonic()
        code = await interrupted(process)
        stopping_s = time.monotonic() - begun_s
        text = said()

    assert urls == [f"http://127.0.0.1:{int(base) + n}" for n in range(3)]
    assert [node["url"] for node in nodes] == urls
    assert (0, "stopped") == (code, text.strip().splitlines()[-1])
    assert stopping_s < STOPPED_WITHIN_S
    assert not any(lives(node["pid"]) for node in nodes)
    async with running(directory, "--port-base", base):
        again = get(f"{urls[0]}/v1/codeq/tasks/{task_id}/result", token)
        locked = refused("--data", str(directory), "--port-base", str(free_port_base(3)))

    assert again == told
    assert 1 == locked[0]
    assert 1 == len(locked[1])
    assert "in use" in locked[1][0]
    other_shards = refused("--data", str(directory), "--port-base", base, "--shards", "7")
    assert 1 == other_shards[0]
    assert 1 == len(other_shards[1])
    assert "shards" in other_shards[1][0]


async def test_a_single_development_node_serves_the_same_lines(tmp_path: Path) -> None:
    """`--nodes 1` runs in a single process, and its printed commands work as well."""
    async with running(tmp_path / "dev", "--nodes", "1", "--port-base", str(free_port_base(3))) as (
        process,
        said,
    ):
        lines = said().split("(any node takes any request):")[1].split("Stop with Ctrl-C")[0]
        printed = await asyncio.to_thread(bash, lines)
        code = await interrupted(process)

    assert "hello world" in printed
    assert 0 == code


def test_a_taken_port_is_said_in_one_line(tmp_path: Path) -> None:
    """The start ends with 1 and names the port."""
    base = free_port_base(3)
    port = base + 1
    with socket.create_server(("127.0.0.1", port)):
        code, lines = refused("--data", str(tmp_path / "dev"), "--port-base", str(base))

    assert (1, 1) == (code, len(lines)), lines
    assert str(port) in lines[0]


def test_a_foreign_directory_is_said_in_one_line(tmp_path: Path) -> None:
    """The start ends with 1 and leaves the files of others untouched."""
    precious = tmp_path / "thesis.txt"
    precious.write_text("finished at last")
    code, lines = refused("--data", str(tmp_path), "--port-base", str(free_port_base(3)))

    assert (1, 1) == (code, len(lines)), lines
    assert str(tmp_path) in lines[0]
    assert ["thesis.txt"] == [entry.name for entry in tmp_path.iterdir()]
