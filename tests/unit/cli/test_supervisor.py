"""Supervisor: real nodes die and are reported, or are restarted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from codeq_cluster.cli.local.dev.directory import locked, prepare
from codeq_cluster.cli.local.dev.plan import PlannedNode, plan
from codeq_cluster.cli.local.dev.supervisor import Supervisor
from codeq_cluster.cli.support.dev_cluster import published
from codeq_cluster.errors import CodeqError
from tests.harness.ports import free_port_base
from tests.harness.waiting import until


def _planned(directory: Path, nodes: int) -> tuple[PlannedNode, ...]:
    """Plan nodes on ports that are free now."""
    return plan(directory, nodes=nodes, port_base=free_port_base(nodes))


class _Running:
    """A supervised cluster and its output."""

    def __init__(self, directory: Path, said: list[str]) -> None:
        self.said = said
        self._directory = directory

    def pids(self) -> list[int | None]:
        """Return the process ids in cluster.json."""
        document = json.loads((self._directory / "cluster.json").read_text())
        return [node["pid"] for node in document["nodes"]]

    async def hears(self, wanted: Callable[[str], bool]) -> None:
        """Wait until a line is printed."""

        async def heard() -> bool:
            return any(wanted(line) for line in self.said)

        await until(heard, what=f"the line; said so far: {self.said}")


@asynccontextmanager
async def _running(directory: Path, *, nodes: int, restart: bool) -> AsyncIterator[_Running]:
    """Run a cluster until the block ends; then all its processes are gone."""
    said: list[str] = []
    with locked(directory):
        planned = _planned(directory, nodes)
        prepare(directory, planned, shards=1)
        supervisor = Supervisor(planned, directory, restart=restart, say=said.append)
        running = _Running(directory, said)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(supervisor.run("READY"))
            try:
                await running.hears(lambda line: line == "READY")
                pids = running.pids()
                yield running
            finally:
                task.cancel()
    assert not [pid for pid in pids if pid and _lives(pid)]
    assert () == published(directory)


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _kill(pid: int | None) -> None:
    assert pid
    os.kill(pid, signal.SIGKILL)


async def test_a_dead_node_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    """The line has its name, its end and the command to restart it; cluster.json drops it."""
    async with _running(tmp_path, nodes=3, restart=False) as cluster:
        before = cluster.pids()
        _kill(before[1])
        await cluster.hears(lambda line: line.startswith("node n2 was ended by SIGKILL"))
        after = cluster.pids()

    assert [before[0], None, before[2]] == after
    assert "n2/node.yaml" in cluster.said[-1]


async def test_with_restart_a_dead_node_comes_back(tmp_path: Path) -> None:
    """The node gets a new process, and cluster.json has its id."""
    async with _running(tmp_path, nodes=1, restart=True) as cluster:
        before = cluster.pids()
        _kill(before[0])
        await cluster.hears(lambda line: "starting it again" in line)

        async def again() -> bool:
            return cluster.pids()[0] not in {None, before[0]}

        await until(again, what="a new process")


async def test_a_cluster_without_a_node_ends(tmp_path: Path) -> None:
    """When the last node is dead the command ends."""

    async def killed() -> None:
        async with _running(tmp_path, nodes=1, restart=False) as cluster:
            _kill(cluster.pids()[0])
            await cluster.hears(lambda line: line.startswith("node n1 was ended"))
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        await killed()

    assert caught.group_contains(CodeqError, match="no node is left")


async def test_a_node_that_cannot_start_ends_the_start(tmp_path: Path) -> None:
    """The error has the node's own last line, and nothing is left running."""
    with locked(tmp_path):
        planned = _planned(tmp_path, 2)
        prepare(tmp_path, planned, shards=1)
        planned[1].config_file.write_text("prot: 1\n")
        supervisor = Supervisor(planned, tmp_path, restart=True, say=lambda _: None)

        with pytest.raises(ExceptionGroup) as caught:
            await supervisor.run("READY")

    assert caught.group_contains(CodeqError, match="node n2 ended with exit code 1: .*unknown key")
    assert () == published(tmp_path)


async def test_nodes_do_not_outlive_a_killed_command(tmp_path: Path) -> None:
    """If `dev` is killed and cannot stop its nodes, they notice and stop themselves."""
    directory, output = tmp_path / "dev", tmp_path / "output"
    base = _planned(directory, 2)[0].port
    command = [sys.executable, "-m", "codeq_cluster.cli.main", "dev", "--nodes", "2"]
    with output.open("wb") as sink:
        process = await asyncio.create_subprocess_exec(
            *command, "--data", directory, "--port-base", str(base), stdout=sink, stderr=sink
        )

    async def is_ready() -> bool:
        assert process.returncode is None, output.read_text()
        return "READY" in output.read_text()

    await until(is_ready, what="READY")
    pids = [node["pid"] for node in published(directory)]
    process.kill()
    await process.wait()

    async def are_gone() -> bool:
        return not any(isinstance(pid, int) and _lives(pid) for pid in pids)

    assert 2 == len(pids)
    await until(are_gone, what="the end of the nodes")
