"""Taskiq: its own workers on three nodes, while a leader and a worker are killed."""

from __future__ import annotations

import asyncio
import os
import re
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

PAGE = Path(__file__).parents[2] / "docs/taskiq.md"
MESSAGES = 200
AT_ONCE = 4
WITHIN_S = 50.0

WORK = """
import asyncio
from pathlib import Path
from typing import Any
from taskiq import Context, SimpleRetryMiddleware, TaskiqDepends
from app import broker

broker.add_middlewares(SimpleRetryMiddleware())

@broker.task(retry_on_error=True, queue_name="t-work")
async def work(journal: str, number: int, context: Context = TaskiqDepends()) -> None:
    await asyncio.sleep(0.05)
    with Path(journal).open("a") as file:
        file.write(f"{number}\\n")
    if number % 20 == 0 and "_retries" not in context.message.labels:
        raise RuntimeError("a retry")

async def send(journal: str, count: int) -> None:
    await asyncio.gather(*(work.kiq(journal, n) for n in range(count)))
"""


def _application(directory: Path) -> None:
    """Write the page's application, with shorter leases, and one that works on top of it."""
    application, _ = re.findall(r"(?ms)^```python\n(.*?)^```$", PAGE.read_text())
    assert "CodeqBroker(URL)" in application
    options = 'URL, lease_seconds=10, listen_to=["taskiq", "t-work"]'
    short = application.replace("CodeqBroker(URL)", f"CodeqBroker({options})")
    (directory / "app.py").write_text(short)
    (directory / "work.py").write_text(WORK)


def _environment(cluster: LocalCluster) -> dict[str, str]:
    hosts = ",".join(url.removeprefix("http://") for url in cluster.urls.values())
    return {**os.environ, "BROKER_URL": f"codeq://{BOTH_TOKEN}@{hosts}"}


@asynccontextmanager
async def _worker(
    cluster: LocalCluster, directory: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run Taskiq's own worker; the end of the block kills it with its children."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "taskiq", "worker", "app:broker", "work"),
        *("--workers", "1", "--max-async-tasks", str(AT_ONCE)),
        cwd=directory,
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


async def _printed(cluster: LocalCluster, directory: Path, *program: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *program),
        cwd=directory,
        env=_environment(cluster),
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate()
    assert 0 == process.returncode
    return printed.decode()


@pytest.mark.timeout(120)
async def test_taskiq_loses_and_repeats_nothing_while_a_leader_and_a_worker_are_killed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Each message runs; again only what the killed worker had, and each retry exists once."""
    _application(tmp_path)
    journal = tmp_path / "journal"
    journal.touch()
    [program] = re.findall(r"^python (.*)$", PAGE.read_text(), re.MULTILINE)
    sends = f"import asyncio, work; asyncio.run(work.send({str(journal)!r}, {MESSAGES}))"

    def ran() -> Counter[int]:
        return Counter(map(int, journal.read_text().split()))

    async def until_ran(share: int) -> None:
        async def enough() -> bool:
            return len(ran()) >= share

        await until(enough, what=f"{share} messages", within_s=WITHIN_S)

    # The worker that dies is alone with all messages, so it surely has some.
    await _printed(cluster, tmp_path, "-c", sends)
    async with (
        Operator(list(cluster.urls.values()), token=ADMIN_TOKEN) as operator,
        _worker(cluster, tmp_path) as dies,
        asyncio.timeout(WITHIN_S + 30),
    ):
        await until_ran(20)
        _kill(dies)
        async with _worker(cluster, tmp_path):
            await until_ran(60)
            await cluster.kill(leader := await cluster.leader_of(0))
            cluster.start(leader)
            added = await _printed(cluster, tmp_path, program)

            async def empty() -> bool:
                queue = await operator.queue("t-work")
                return not (queue["ready"] or queue["inProgress"] or queue["delayed"])

            await until(empty, what="an empty queue", within_s=WITHIN_S)
        ended = [
            row
            for status in ("COMPLETED", "FAILED")
            for row in (await operator.tasks(command="t-work", status=status, limit=500)).rows
        ]

    assert "3\n" == added
    retries = MESSAGES // 20
    assert set(range(MESSAGES)) == set(ran())
    # Neither a retry that is missing nor one that is there twice.
    assert ["COMPLETED"] * (MESSAGES + retries) == [row["status"] for row in ended]
    # At most what the killed worker had begun at once.
    assert sum(ran().values()) - (MESSAGES + retries) <= AT_ONCE
    again = [row for row in ended if row["attempts"] > 1]
    assert again
    assert {"LEASE_EXPIRED"} == {h["outcome"] for row in again for h in row["history"][:-1]}
