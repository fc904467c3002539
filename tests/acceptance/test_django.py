"""Django: its commands on three nodes, while a leader, a worker and a relay are killed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from codeq_cluster.client import Operator
from tests.acceptance.foreign_workers import (
    WITHIN_S,
    environment,
    kill,
    kill_holder,
    printed,
    ran,
    until_ran,
    working,
)
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import ADMIN_TOKEN
from tests.harness.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROJECT = "tests.unit.integrations.django_project"
TASKS = 120
AT_ONCE = 4


def _settings(cluster: LocalCluster, directory: Path) -> dict[str, str]:
    return {
        "CODEQ_URL": environment(cluster)["BROKER_URL"],
        "DJANGO_SETTINGS_MODULE": f"{PROJECT}.settings",
        "PROJECT_DATABASE": str(directory / "app.db"),
    }


async def _said(cluster: LocalCluster, settings: Mapping[str, str], program: str) -> str:
    """Return what a program of the project prints, in a process that ends."""
    head = f"import django; django.setup()\nfrom {PROJECT}.tasks import *\n"
    return await printed(cluster, "-c", head + program, settings=settings)


@pytest.mark.timeout(120)
async def test_no_task_is_lost_or_made_or_ended_twice_while_processes_are_killed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Half of them are rows of a transaction; a worker's stop lets its last ones end."""
    journal = tmp_path / "journal"
    journal.touch()
    settings = _settings(cluster, tmp_path)
    work = ("codeq_worker", "--concurrency", str(AT_ONCE), "--lease-seconds", "5")

    def command(*words: str) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
        return working(cluster, "django", *words, "--verbosity", "0", settings=settings)

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

    async with (
        Operator(list(cluster.urls.values()), token=ADMIN_TOKEN) as operator,
        command(*work) as dies,
        command(*work) as stays,
        command("codeq_relay") as dying_relay,
        command("codeq_relay") as relay,
        asyncio.timeout(WITHIN_S + 30),
    ):
        producing = asyncio.create_task(_said(cluster, settings, program))
        await until_ran(journal, 10)
        kill(dying_relay)
        await cluster.kill(leader := await cluster.leader_of(0))
        await kill_holder(dies, journal)
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
        read = await _said(
            cluster,
            settings,
            f"for id in {[*ids[:2], *ids[-2:]]!r}:\n"
            "    result = note.get_result(id)\n"
            "    print(result.status, result.return_value)",
        )

    assert set(range(TASKS)) == set(ran(journal))
    assert ran(journal).total() - TASKS <= AT_ONCE
    assert TASKS == len(set(ids)) == len(rows)
    assert {"COMPLETED"} == {row["status"] for row in rows}
    again = [row for row in rows if row["attempts"] > 1]
    assert again
    assert {"LEASE_EXPIRED"} == {h["outcome"] for row in again for h in row["history"][:-1]}
    assert ["SUCCESSFUL None"] * 4 == read.splitlines()
