"""Foreign workers: processes of other frameworks on a cluster, and what their tasks write down."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from codeq_cluster.client import Operator
from tests.acceptance import held_tasks
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import BOTH_TOKEN
from tests.harness.waiting import until

WITHIN_S = 50.0
_ROOT = Path(__file__).parents[2]


def environment(cluster: LocalCluster) -> dict[str, str]:
    """Return an environment with the URL of all nodes, and without what other tests set there.

    Programs of any directory can import `held_tasks`.
    """
    hosts = ",".join(url.removeprefix("http://") for url in cluster.urls.values())
    mine = {**os.environ, "BROKER_URL": f"codeq://{BOTH_TOKEN}@{hosts}", "PYTHONPATH": str(_ROOT)}
    mine.pop("DJANGO_SETTINGS_MODULE", None)  # Celery would load those settings.
    return mine


@asynccontextmanager
async def working(
    cluster: LocalCluster,
    *command: str,
    directory: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a framework's own worker; the end of the block kills it with its children.

    Args:
        cluster: Its broker.
        command: A module and its arguments.
        directory: It runs there; None for this process's.
        settings: Variables of its environment, beside those of `environment`.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *command),
        cwd=directory,
        env={**environment(cluster), **(settings or {})},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        kill(process)
        await process.wait()


def kill(process: asyncio.subprocess.Process) -> None:
    """Kill a worker with its children."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)


async def kill_holder(process: asyncio.subprocess.Process, journal: Path) -> None:
    """Kill a worker once it surely has tasks, and let the held tasks of others end."""

    async def holds() -> bool:
        return held_tasks.holder(journal, process.pid).exists()

    await until(holds, what="a held task", within_s=WITHIN_S)
    kill(process)
    await process.wait()
    held_tasks.killed(journal).touch()


async def printed(
    cluster: LocalCluster,
    *program: str,
    directory: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> str:
    """Return what a producer's program prints, in a process that ends."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *program),
        cwd=directory,
        env={**environment(cluster), **(settings or {})},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert 0 == process.returncode
    return output.decode()


def ran(journal: Path) -> Counter[int]:
    """Return how often each task has written its number."""
    return Counter(map(int, journal.read_text().split()))


async def until_ran(journal: Path, share: int) -> None:
    """Wait until so many tasks have run."""

    async def enough() -> bool:
        return len(ran(journal)) >= share

    await until(enough, what=f"{share} tasks", within_s=WITHIN_S)


async def until_empty(operator: Operator, command: str) -> None:
    """Wait until no task of a queue waits or runs."""

    async def empty() -> bool:
        queue = await operator.queue(command)
        return not (queue["ready"] or queue["inProgress"] or queue["delayed"])

    await until(empty, what="an empty queue", within_s=WITHIN_S)


async def ended(
    operator: Operator, command: str, *, since: datetime | None = None
) -> list[Mapping[str, Any]]:
    """Wait until a queue is empty; return its ended tasks, those that were created since then."""
    await until_empty(operator, command)
    return [
        row
        for status in ("COMPLETED", "FAILED")
        for row in (
            await operator.tasks(command=command, status=status, created_after=since, limit=500)
        ).rows
    ]
