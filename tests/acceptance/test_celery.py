"""Celery: its own workers on three nodes, while leaders and workers are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from codeq_cluster.client import Operator
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import ADMIN_TOKEN, BOTH_TOKEN
from tests.harness.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

APPLICATION = "tests.acceptance.celery_application"
TASKS = 300
LONG = 2
PARTS = 100
WITHIN_S = 50.0


def _environment(cluster: LocalCluster) -> dict[str, str]:
    hosts = ",".join(url.removeprefix("http://") for url in cluster.urls.values())
    return {**os.environ, "BROKER_URL": f"codeq://{BOTH_TOKEN}@{hosts}"}


@asynccontextmanager
async def _worker(
    cluster: LocalCluster, name: str, pool: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run Celery's own worker; the end of the block kills it with its children."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "celery", "-A", APPLICATION, "worker", "-n", name),
        *("--pool", pool, "-c", "4", "-l", "WARNING", "-Q", "celery,chords"),
        env=_environment(cluster),
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


async def _produced(cluster: LocalCluster, program: str) -> str:
    """Return what a producer's program prints, in a process that ends."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", f"from {APPLICATION} import *\n{program}"),
        env=_environment(cluster),
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate()
    assert 0 == process.returncode
    return printed.decode()


def _ran(journal: Path) -> Counter[int]:
    return Counter(map(int, journal.read_text().split()))


async def _until_ran(journal: Path, share: int) -> None:
    async def enough() -> bool:
        return len(_ran(journal)) >= share

    await until(enough, what=f"{share} tasks", within_s=WITHIN_S)


@pytest.mark.timeout(120)
async def test_celery_loses_and_repeats_nothing_while_leaders_and_a_worker_are_killed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Each task runs; a second time only what the killed worker had; none is acknowledged twice."""
    journal = tmp_path / "journal"
    journal.touch()
    program = (
        f"for n in range({LONG}): long_late.delay({str(journal)!r}, -1 - n)\n"
        f"for n in range({TASKS}): late.delay({str(journal)!r}, n)\n"
    )
    async with (
        Operator(list(cluster.urls.values()), token=ADMIN_TOKEN) as operator,
        _worker(cluster, "prefork@h", "prefork"),
        _worker(cluster, "dies@h", "threads") as dies,
        _worker(cluster, "threads@h", "threads"),
        asyncio.timeout(WITHIN_S + 30),
    ):
        since = datetime.now(UTC)  # Other tests have had the queue before.
        producing = asyncio.create_task(_produced(cluster, program))
        for share in (10, 60, 120):
            await _until_ran(journal, share)
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
            for row in (
                await operator.tasks(
                    command="celery", status=status, created_after=since, limit=500
                )
            ).rows
        ]

    counted = _ran(journal)
    assert {*range(-LONG, TASKS)} == set(counted)
    assert ["COMPLETED"] * (TASKS + LONG) == [row["status"] for row in ended]
    # Four threads and what they had prefetched.
    assert sum(counted.values()) - len(counted) <= 4 * 5
    repeated = [row for row in ended if row["attempts"] > 1]
    assert {"LEASE_EXPIRED"} == {h["outcome"] for row in repeated for h in row["history"][:-1]}


@pytest.mark.timeout(120)
async def test_a_chord_ends_once_although_a_worker_and_a_leader_are_killed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Its body has the result of each part once, and the producer gets the body's result."""
    journal = tmp_path / "journal"
    journal.touch()
    program = (
        "from celery import chord\n"
        f"parts = [part.s({str(journal)!r}, n) for n in range({PARTS})]\n"
        f"print(chord(parts, total.s()).delay().get(timeout={WITHIN_S}))"
    )
    async with _worker(cluster, "dies@h", "threads") as dies, asyncio.timeout(WITHIN_S + 30):
        producing = asyncio.create_task(_produced(cluster, program))
        await _until_ran(journal, 10)
        _kill(dies)
        await cluster.kill(leader := await cluster.leader_of(0))
        cluster.start(leader)
        async with _worker(cluster, "stays@h", "prefork"):
            printed = await producing

    assert f"{sum(range(PARTS))}\n" == printed


@pytest.mark.timeout(120)
async def test_a_task_is_revoked_and_one_is_terminated_although_leaders_are_killed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """By Celery's own control: one waits for its hour at the broker, one runs in a worker."""
    journal = tmp_path / "journal"
    journal.touch()
    program = (
        f"told = app.control.inspect(destination=['told@h'], timeout={WITHIN_S})\n"
        "active = lambda: told.active()['told@h']\n"
        "while not app.control.ping(): pass\n"
        f"runs = long_late.delay({str(journal)!r}, -1)\n"
        f"waits = late.apply_async(({str(journal)!r}, 1), countdown=3)\n"
        "while not active(): pass\n"
        "app.control.revoke(waits.id)\n"
        "app.control.terminate(runs.id)\n"
        "while active(): pass\n"
        f"late.apply_async(({str(journal)!r}, 2), countdown=3)\n"
    )
    async with (
        Operator(list(cluster.urls.values()), token=ADMIN_TOKEN) as operator,
        _worker(cluster, "told@h", "prefork"),
        asyncio.timeout(WITHIN_S + 30),
    ):
        producing = asyncio.create_task(_produced(cluster, program))
        for shard in 0, 1:
            await cluster.kill(leader := await cluster.leader_of(shard % cluster.shards))
            cluster.start(leader)
            await cluster.leader_of(shard % cluster.shards)
        await producing

        async def empty() -> bool:
            queue = await operator.queue("celery")
            return not (queue["ready"] or queue["inProgress"] or queue["delayed"])

        await until(empty, what="an empty queue", within_s=WITHIN_S)

    assert {2} == set(_ran(journal))
