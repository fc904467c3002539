"""Commands: a development cluster, as a new user runs it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from codeq_cluster.settings import environment
from tests.harness.commands import PROGRAM, command
from tests.harness.http import fetch
from tests.harness.ports import free_port_base
from tests.harness.servers import Server
from tests.harness.waiting import ClusterError, until

READY_WITHIN_S = 60.0
STOPPED_WITHIN_S = 25.0


async def refused(*arguments: str) -> tuple[int, list[str]]:
    """Run `dev`, expecting it to end by itself; return its exit code and its output."""
    ended = await command("dev", *arguments, within_s=READY_WITHIN_S)
    return ended.code, (ended.out + ended.err).strip().splitlines()


def names(directory: Path) -> list[str]:
    """Return the names in a directory."""
    return [entry.name for entry in directory.iterdir()]


def lives(pid: int) -> bool:
    """Return whether a process exists."""
    return Path(f"/proc/{pid}").exists()


@asynccontextmanager
async def running(
    directory: Path, *arguments: str
) -> AsyncIterator[tuple[Server, Callable[[], str]]]:
    """Run `dev` until it prints how to stop it; yields the process and a reader of its output."""
    output = directory.with_suffix(".out")
    # The output of an earlier run in the same directory has this line too.
    output.unlink(missing_ok=True)
    server = Server(output)
    server.start([*PROGRAM, "dev", "--data", str(directory), *arguments], environment())

    async def said_ready() -> bool:
        if not server.running:
            raise ClusterError(f"dev ended: {output.read_text()}")
        return "Stop with Ctrl-C" in output.read_text()

    try:
        await until(said_ready, within_s=READY_WITHIN_S, what="READY")
        yield server, output.read_text
    finally:
        if server.running:
            await interrupted(server)


async def interrupted(server: Server) -> int | None:
    """Press Ctrl-C and return the exit code, None if it had to be killed."""
    return await asyncio.to_thread(server.stop, within_s=STOPPED_WITHIN_S, sign=signal.SIGINT)


def bash(script: str) -> str:
    """Run a script and return its output; any failing line fails it."""
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        capture_output=True,
        text=True,
        timeout=READY_WITHIN_S,
        check=False,
    )
    assert 0 == ended.returncode, f"{script}\n{ended.stdout}{ended.stderr}"
    return ended.stdout


@pytest.mark.needs("curl")
async def test_a_development_cluster_keeps_what_it_prints(tmp_path: Path) -> None:
    """Every printed command works, Ctrl-C ends everything, and the data is kept."""
    directory, base = tmp_path / "dev", str(free_port_base(3))
    async with running(directory, "--port-base", base) as (server, said):
        text = said()
        urls = re.findall(r"^  n\d +(http://\S+)$", text, re.MULTILINE)
        token = re.findall(r"^  token +(\S+)", text, re.MULTILINE)[0]
        lines = text.split("(any node takes any request):")[1].split("Stop with Ctrl-C")[0]
        printed = await asyncio.to_thread(bash, lines)
        task_id = re.findall(r'"id": ?"([^"]+)"', printed)[0]
        result = f"/v1/codeq/tasks/{task_id}/result"
        told = await asyncio.to_thread(fetch, "GET", urls[2], result, token=token)
        nodes = json.loads((directory / "cluster.json").read_text())["nodes"]
        begun_s = time.monotonic()
        code = await interrupted(server)
        stopping_s = time.monotonic() - begun_s
        text = said()

    assert urls == [f"http://127.0.0.1:{int(base) + n}" for n in range(3)]
    assert [node["url"] for node in nodes] == urls
    assert (0, "stopped") == (code, text.strip().splitlines()[-1])
    assert stopping_s < STOPPED_WITHIN_S
    assert not any(lives(node["pid"]) for node in nodes)
    async with running(directory, "--port-base", base):
        again = await asyncio.to_thread(fetch, "GET", urls[0], result, token=token)
        locked = await refused("--data", str(directory), "--port-base", str(free_port_base(3)))

    assert told.json == again.json
    assert 1 == locked[0]
    assert 1 == len(locked[1])
    assert "in use" in locked[1][0]
    other_shards = await refused("--data", str(directory), "--port-base", base, "--shards", "7")
    assert 1 == other_shards[0]
    assert 1 == len(other_shards[1])
    assert "shards" in other_shards[1][0]


async def test_the_demo_kills_leaders_and_every_promise_holds(tmp_path: Path) -> None:
    """Its verdict is JSON on standard output alone, and nothing runs on."""
    where = ("--data", str(tmp_path / "dev"), "--port-base", str(free_port_base(3)))
    ended = await command("dev", "--demo", "--demo-seconds", "7", "--json", *where)
    verdict = ended.document

    assert (0, True, 1) == (ended.code, verdict["holds"], verdict["kills"]), ended.out + ended.err
    assert [True] * 5 == [check["holds"] for check in verdict["checks"]]
    assert all(check["facts"] > 0 for check in verdict["checks"])
    assert "kill -9 n" in ended.err
    assert not (tmp_path / "dev" / "cluster.json").exists()


async def test_the_demo_needs_a_majority_that_is_left(tmp_path: Path) -> None:
    """With two nodes, one death would stop all work."""
    code, lines = await refused("--demo", "--nodes", "2", "--data", str(tmp_path / "dev"))

    assert 2 == code
    assert "at least 3 nodes" in lines[-1]


@pytest.mark.needs("curl")
async def test_a_single_development_node_serves_the_same_lines(tmp_path: Path) -> None:
    """`--nodes 1` runs in a single process, and its printed commands work as well."""
    async with running(tmp_path / "dev", "--nodes", "1", "--port-base", str(free_port_base(3))) as (
        server,
        said,
    ):
        lines = said().split("(any node takes any request):")[1].split("Stop with Ctrl-C")[0]
        printed = await asyncio.to_thread(bash, lines)
        code = await interrupted(server)

    assert "hello world" in printed
    assert 0 == code


def _ready(url: str) -> bool:
    try:
        return fetch("GET", url, "/readyz").status == 200
    except ConnectionError:
        return False


async def test_a_node_restarted_by_hand_ends_with_the_cluster(tmp_path: Path) -> None:
    """Ctrl-C would otherwise leave a process that holds its port and its data."""
    directory, base = tmp_path / "dev", free_port_base(3)
    by_hand = Server(tmp_path / "n2.out")
    async with running(directory, "--port-base", str(base)) as (server, said):
        nodes = json.loads((directory / "cluster.json").read_text())["nodes"]
        os.kill(nodes[1]["pid"], signal.SIGKILL)

        async def is_reported() -> bool:
            return "start it again with" in said()

        await until(is_reported, what="the death of n2")
        by_hand.start(
            [*PROGRAM, "node", "--config", str(directory / "n2/node.yaml")], environment()
        )

        async def serves() -> bool:
            return await asyncio.to_thread(_ready, nodes[1]["url"])

        await until(serves, within_s=READY_WITHIN_S, what="n2, started by hand")
        code = await interrupted(server)
        printed = said()

    assert 0 == code
    assert f"stopping n2, started by hand (process {by_hand.pid})" in printed
    assert 0 == by_hand.stop(within_s=STOPPED_WITHIN_S)


async def test_a_backup_is_restored_into_a_fresh_cluster_with_more_tenants(tmp_path: Path) -> None:
    """The backup lies in the directory that is made anew, and each tenant has its own token."""
    directory, base = tmp_path / "dev", free_port_base(3)
    flags = ("--nodes", "1", "--port-base", str(base))
    url = ("--url", f"http://127.0.0.1:{base}")
    create = ("task", "create", "--command", "kept", "--payload", "1", "-q", *url)
    async with running(directory, *flags):
        task_id = (await command(*create, token="dev-token", within_s=30)).out.strip()
        backup = await command("backup", "create", *url, token="dev-token", within_s=60)
        later = (await command(*create, token="dev-token", within_s=30)).out.strip()
    more = ("--fresh", "--restore", str(directory / "backups"), "--tenant", "acme")
    async with running(directory, *flags, *more, "--webhook-secret", "a" * 32) as (_, said):
        found, gone, theirs = [
            await command("task", "get", each, *url, token=token, within_s=30)
            for each, token in (
                (task_id, "dev-token"),
                (later, "dev-token"),
                (task_id, "dev-token-acme"),
            )
        ]
        operator = await command("cluster", "status", *url, token="dev-token-acme", within_s=30)
        made = await command(*create, token="dev-token-acme", within_s=30)
        printed = said()

    assert 0 == backup.code, backup.err
    assert (0, 4, 4) == (found.code, gone.code, theirs.code)
    assert (3, 0) == (operator.code, made.code)
    assert "restored 1 tasks" in printed
    assert "dev-token-acme  (the same in tenant acme, no operator)" in printed
    assert "webhookHmacSecret: aaaa" in (directory / "n1/node.yaml").read_text()


async def test_a_taken_port_is_reported_in_one_line(tmp_path: Path) -> None:
    """The command ends with 1 and names the port."""
    base = free_port_base(3)
    port = base + 1
    with socket.create_server(("127.0.0.1", port)):
        code, lines = await refused("--data", str(tmp_path / "dev"), "--port-base", str(base))

    assert (1, 1) == (code, len(lines)), lines
    assert str(port) in lines[0]
    assert f"kill {os.getpid()} " in lines[0]


async def test_a_foreign_directory_is_reported_in_one_line(tmp_path: Path) -> None:
    """The command ends with 1 and leaves the foreign files untouched."""
    precious = tmp_path / "thesis.txt"
    precious.write_text("finished at last")
    code, lines = await refused("--data", str(tmp_path), "--port-base", str(free_port_base(3)))

    assert (1, 1) == (code, len(lines)), lines
    assert str(tmp_path) in lines[0]
    assert ["thesis.txt"] == names(tmp_path)
