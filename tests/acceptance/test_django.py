"""Django: the worker's own command on three nodes, while a leader and a worker are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from codeq_cluster.client import Operator
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import ADMIN_TOKEN, BOTH_TOKEN
from tests.harness.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROJECT = "tests.unit.integrations.django_project"
TASKS = 150
AT_ONCE = 4
WITHIN_S = 50.0


def _environment(cluster: LocalCluster, directory: Path) -> dict[str, str]:
    hosts = ",".join(url.removeprefix("http://") for url in cluster.urls.values())
    return {
        **os.environ,
        "CODEQ_URL": f"codeq://{BOTH_TOKEN}@{hosts}",
        "DJANGO_SETTINGS_MODULE": f"{PROJECT}.settings",
        "PROJECT_DATABASE": str(directory / "app.db"),
    }


@asynccontextmanager
async def _worker(env: dict[str, str], *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `codeq_worker`; the end of the block kills it if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "django", "codeq_worker", *options), env=env
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _ran(env: dict[str, str], program: str) -> str:
    """Return what a program of the project prints, in a process that ends."""
    head = "import django; django.setup()\n"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", f"{head}from {PROJECT}.tasks import *\n{program}"),
        env=env,
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate()
    assert 0 == process.returncode
    return printed.decode()


@pytest.mark.timeout(120)
async def test_no_task_is_lost_or_ends_twice_while_a_leader_and_a_worker_are_killed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Each runs; a second time only what the killed worker had; a stop lets the last ones end."""
    journal = tmp_path / "journal"
    journal.touch()
    env = _environment(cluster, tmp_path)
    options = ("--concurrency", str(AT_ONCE), "--lease-seconds", "3", "--verbosity", "0")
    program = (
        f"results = [note.enqueue({str(journal)!r}, str(n), 0.03) for n in range({TASKS})]\n"
        "print(*(result.id for result in results))"
    )

    def noted() -> Counter[int]:
        return Counter(map(int, journal.read_text().split()))

    async def _until_noted(count: int) -> None:
        async def enough() -> bool:
            return len(noted()) >= count

        await until(enough, what=f"{count} tasks", within_s=WITHIN_S)

    async with (
        Operator(list(cluster.urls.values()), token=ADMIN_TOKEN) as operator,
        _worker(env, *options) as dies,
        _worker(env, *options) as stays,
        asyncio.timeout(WITHIN_S + 30),
    ):
        producing = asyncio.create_task(_ran(env, program))
        await _until_noted(10)
        await cluster.kill(leader := await cluster.leader_of(0))
        await _until_noted(40)
        dies.kill()
        cluster.start(leader)
        ids = (await producing).split()

        async def ended() -> bool:
            page = await operator.tasks(command="default", status="COMPLETED", limit=500)
            return len(page.rows) >= TASKS

        await until(ended, what="all results", within_s=WITHIN_S)
        stays.send_signal(signal.SIGTERM)
        assert 0 == await stays.wait()
        rows = (await operator.tasks(command="default", limit=500)).rows
        read = await _ran(
            env,
            f"for id in {ids[:3]!r}:\n"
            "    result = note.get_result(id)\n"
            "    print(result.status, result.return_value)",
        )

    assert set(range(TASKS)) == set(noted())
    assert noted().total() - TASKS <= AT_ONCE
    assert set(ids) == {row["id"] for row in rows}
    assert {"COMPLETED"} == {row["status"] for row in rows}
    assert ["SUCCESSFUL None"] * 3 == read.splitlines()
