"""Celery: its own workers on three nodes, while leaders and workers are killed."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from codeq_cluster.client import Operator
from tests.acceptance.foreign_workers import (
    WITHIN_S,
    ended,
    kill_holder,
    printed,
    ran,
    until_empty,
    until_ran,
    working,
)
from tests.acceptance.held_tasks import HELD_FROM
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import ADMIN_TOKEN

pytestmark = pytest.mark.asyncio(loop_scope="module")

APPLICATION = "tests.acceptance.celery_application"
TASKS = 300
LONG = 2
PARTS = 100


def _worker(
    cluster: LocalCluster, name: str, pool: str
) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    """Run Celery's own worker."""
    options = ("--pool", pool, "-c", "4", "-l", "WARNING", "-Q", "celery,chords")
    return working(cluster, "celery", "-A", APPLICATION, "worker", "-n", name, *options)


async def _produced(cluster: LocalCluster, program: str) -> str:
    return await printed(cluster, "-c", f"from {APPLICATION} import *\n{program}")


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
        _worker(cluster, "dies@h", "threads") as dies,
        asyncio.timeout(WITHIN_S + 30),
    ):
        since = datetime.now(UTC)  # Other tests have had the queue before.
        producing = asyncio.create_task(_produced(cluster, program))
        await until_ran(journal, 10)
        await cluster.kill(leader := await cluster.leader_of(0))
        cluster.start(leader)
        await kill_holder(dies, journal)
        async with (
            _worker(cluster, "prefork@h", "prefork"),
            _worker(cluster, "threads@h", "threads"),
        ):
            await until_ran(journal, 2 * HELD_FROM)
            await cluster.kill(leader := await cluster.leader_of(1 % cluster.shards))
            cluster.start(leader)
            await producing
            rows = await ended(operator, "celery", since=since)

    counted = ran(journal)
    assert {*range(-LONG, TASKS)} == set(counted)
    assert ["COMPLETED"] * (TASKS + LONG) == [row["status"] for row in rows]
    # Four threads and what they had prefetched.
    assert sum(counted.values()) - len(counted) <= 4 * 5
    repeated = [row for row in rows if row["attempts"] > 1]
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
        await kill_holder(dies, journal)
        await cluster.kill(leader := await cluster.leader_of(0))
        cluster.start(leader)
        async with _worker(cluster, "stays@h", "prefork"):
            body = await producing

    assert f"{sum(range(PARTS))}\n" == body


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
            # While two of three nodes are away, nobody can lead.
            await cluster.wait_ready([leader])
        await producing
        await until_empty(operator, "celery")

    assert {2} == set(ran(journal))
