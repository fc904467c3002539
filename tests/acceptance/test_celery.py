"""Celery: its own workers on three nodes, while leaders and workers are killed."""

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
from tests.harness.node_process import ADMIN_TOKEN, PRODUCER_TOKEN, WORKER_TOKENS
from tests.harness.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

APPLICATION = "tests.acceptance.celery_application"
TASKS = 300
LONG = 2
WITHIN_S = 50.0


def _environment(cluster: LocalCluster, token: str) -> dict[str, str]:
    hosts = ",".join(url.removeprefix("http://") for url in cluster.urls.values())
    return {**os.environ, "BROKER_URL": f"codeq://{token}@{hosts}"}


@asynccontextmanager
async def _worker(
    cluster: LocalCluster, name: str, pool: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run Celery's own worker; the end of the block kills it with its children."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "celery", "-A", APPLICATION, "worker", "-n", name),
        *("--pool", pool, "-c", "4", "-l", "WARNING"),
        env=_environment(cluster, WORKER_TOKENS["worker-0"]),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        _kill(process)
        await process.wait()


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)


async def _produced(cluster: LocalCluster, journal: Path) -> None:
    """Send tasks by Celery's own producer, in a process that ends."""
    program = (
        f"from {APPLICATION} import late, long_late\n"
        f"for n in range({LONG}): long_late.delay({str(journal)!r}, -1 - n)\n"
        f"for n in range({TASKS}): late.delay({str(journal)!r}, n)\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, env=_environment(cluster, PRODUCER_TOKEN)
    )
    assert 0 == await process.wait()


@pytest.mark.timeout(120)
async def test_celery_loses_and_repeats_nothing_while_leaders_and_a_worker_are_killed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Each task runs; a second time only what the killed worker had; none is acknowledged twice."""
    journal = tmp_path / "journal"
    journal.touch()

    def ran() -> Counter[int]:
        return Counter(map(int, journal.read_text().split()))

    async with (
        Operator(list(cluster.urls.values()), token=ADMIN_TOKEN) as operator,
        _worker(cluster, "prefork@h", "prefork"),
        _worker(cluster, "dies@h", "threads") as dies,
        _worker(cluster, "threads@h", "threads"),
        asyncio.timeout(WITHIN_S + 30),
    ):
        producing = asyncio.create_task(_produced(cluster, journal))
        for share in (10, 60, 120):

            async def enough(share: int = share) -> bool:
                return len(ran()) >= share

            await until(enough, what=f"{share} tasks", within_s=WITHIN_S)
            if share == 60:
                _kill(dies)
            else:
                leader = await cluster.leader_of(share % cluster.shards)
                await cluster.kill(leader)
                cluster.start(leader)
        await producing

        async def empty() -> bool:
            queue = await operator.queue("celery")
            return not (queue["ready"] or queue["inProgress"] or queue["delayed"])

        await until(empty, what="an empty queue", within_s=WITHIN_S)
        ended = [
            row
            for status in ("COMPLETED", "FAILED")
            for row in (await operator.tasks(command="celery", status=status, limit=500)).rows
        ]

    counted = ran()
    assert {*range(-LONG, TASKS)} == set(counted)
    assert ["COMPLETED"] * (TASKS + LONG) == [row["status"] for row in ended]
    # Four threads and what they had prefetched.
    assert sum(counted.values()) - len(counted) <= 4 * 5
    repeated = [row for row in ended if row["attempts"] > 1]
    assert {"LEASE_EXPIRED"} == {h["outcome"] for row in repeated for h in row["history"][:-1]}
