"""Dramatiq: its own workers on three nodes, while a leader and a worker are killed."""

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

PAGE = Path(__file__).parents[2] / "docs/dramatiq.md"
MESSAGES = 200
THREADS = 4
WITHIN_S = 50.0

WORK = """
import time
from pathlib import Path
import dramatiq
from app import *

@dramatiq.actor(queue_name="d-work", min_backoff=1, max_backoff=1)
def work(journal, number):
    time.sleep(0.05)
    with Path(journal).open("a") as file:
        file.write(f"{number}\\n")
    options = dramatiq.middleware.CurrentMessage.get_current_message().options
    if number % 20 == 0 and "retries" not in options:
        raise RuntimeError("a retry")
"""


def _application(directory: Path) -> None:
    """Write the page's application, with shorter leases, and one that works on top of it."""
    [application] = re.findall(r"(?ms)^```python\n(.*?)^```$", PAGE.read_text())
    assert "CodeqBroker(URL)" in application
    short = application.replace("CodeqBroker(URL)", "CodeqBroker(URL, lease_seconds=10)")
    current = "broker.add_middleware(dramatiq.middleware.CurrentMessage())\n"
    (directory / "app.py").write_text(f"{short}\n\n{current}")
    (directory / "work.py").write_text(WORK)


def _environment(cluster: LocalCluster) -> dict[str, str]:
    hosts = ",".join(url.removeprefix("http://") for url in cluster.urls.values())
    return {**os.environ, "BROKER_URL": f"codeq://{BOTH_TOKEN}@{hosts}"}


@asynccontextmanager
async def _worker(
    cluster: LocalCluster, directory: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run Dramatiq's own worker; the end of the block kills it with its children."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dramatiq", "app", "work"),
        *("--processes", "1", "--threads", str(THREADS)),
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


async def _printed(cluster: LocalCluster, directory: Path, program: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program),
        cwd=directory,
        env=_environment(cluster),
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate()
    assert 0 == process.returncode
    return printed.decode()


@pytest.mark.timeout(120)
async def test_dramatiq_loses_and_repeats_nothing_while_a_leader_and_a_worker_are_killed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Each message runs; again only what the killed worker had, and each retry exists once."""
    _application(tmp_path)
    journal = tmp_path / "journal"
    journal.touch()
    [program] = re.findall(r"^python -c '(.*)'$", PAGE.read_text(), re.MULTILINE)
    sends = f"from work import *\nfor n in range({MESSAGES}): work.send({str(journal)!r}, n)"

    def ran() -> Counter[int]:
        return Counter(map(int, journal.read_text().split()))

    async def until_ran(share: int) -> None:
        async def enough() -> bool:
            return len(ran()) >= share

        await until(enough, what=f"{share} messages", within_s=WITHIN_S)

    # The worker that dies is alone with all messages, so it surely has some.
    await _printed(cluster, tmp_path, sends)
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
                queue = await operator.queue("d-work")
                return not (queue["ready"] or queue["inProgress"] or queue["delayed"])

            await until(empty, what="an empty queue", within_s=WITHIN_S)
        ended = [
            row
            for status in ("COMPLETED", "FAILED")
            for row in (await operator.tasks(command="d-work", status=status, limit=500)).rows
        ]

    assert "3\n" == added
    retries = MESSAGES // 20
    assert set(range(MESSAGES)) == set(ran())
    # Neither a retry that is missing nor one that is there twice.
    assert ["COMPLETED"] * (MESSAGES + retries) == [row["status"] for row in ended]
    # At most what each thread of the killed worker had begun.
    assert sum(ran().values()) - (MESSAGES + retries) <= THREADS
    again = [row for row in ended if row["attempts"] > 1]
    assert again
    assert {"LEASE_EXPIRED"} == {h["outcome"] for row in again for h in row["history"][:-1]}
