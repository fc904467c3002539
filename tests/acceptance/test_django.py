"""Django: its commands on three nodes, while a leader, a worker and a relay are killed."""

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
TASKS = 120
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
async def _command(env: dict[str, str], *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a command of `manage.py`; the end of the block kills it if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "django", *words, "--verbosity", "0"), env=env
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
async def test_no_task_is_lost_or_made_or_ended_twice_while_processes_are_killed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Half of them are rows of a transaction; a worker's stop lets its last ones end."""
    journal = tmp_path / "journal"
    journal.touch()
    env = _environment(cluster, tmp_path)
    work = ("codeq_worker", "--concurrency", str(AT_ONCE), "--lease-seconds", "5")
    program = (
        "from django.core.management import call_command\n"
        "from django.db import transaction\n"
        "call_command('migrate', verbosity=0)\n"
        "row = note.using(backend='outbox')\n"
        f"def enqueue(task, n): return task.enqueue({str(journal)!r}, str(n), 0.03)\n"
        "with transaction.atomic():\n"
        f"    results = [enqueue(row, n) for n in range({TASKS // 2})]\n"
        "with transaction.atomic():\n"
        "    enqueue(row, -1)\n"
        "    transaction.set_rollback(True)\n"
        f"results += [enqueue(note, n) for n in range({TASKS // 2}, {TASKS})]\n"
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
        _command(env, *work) as dies,
        _command(env, *work) as stays,
        _command(env, "codeq_relay") as dying_relay,
        _command(env, "codeq_relay") as relay,
        asyncio.timeout(WITHIN_S + 30),
    ):
        producing = asyncio.create_task(_ran(env, program))
        await _until_noted(10)
        dying_relay.kill()
        await cluster.kill(leader := await cluster.leader_of(0))
        await _until_noted(40)
        dies.kill()
        cluster.start(leader)
        ids = (await producing).split()

        async def ended() -> bool:
            page = await operator.tasks(command="default", status="COMPLETED", limit=500)
            return len(page.rows) >= TASKS

        await until(ended, what="all results", within_s=WITHIN_S)
        for each in stays, relay:
            each.send_signal(signal.SIGTERM)
            assert 0 == await each.wait()
        rows = (await operator.tasks(command="default", limit=500)).rows
        read = await _ran(
            env,
            f"for id in {[*ids[:2], *ids[-2:]]!r}:\n"
            "    result = note.get_result(id)\n"
            "    print(result.status, result.return_value)",
        )

    assert set(range(TASKS)) == set(noted())
    assert noted().total() - TASKS <= AT_ONCE
    assert TASKS == len(set(ids)) == len(rows)
    assert {"COMPLETED"} == {row["status"] for row in rows}
    assert ["SUCCESSFUL None"] * 4 == read.splitlines()
