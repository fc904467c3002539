"""Taskiq: its own workers on three nodes, while a leader and a worker are killed."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from codeq_cluster.client import Operator
from tests.acceptance.foreign_workers import WITHIN_S, ended, kill, printed, ran, until_ran, working
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import ADMIN_TOKEN

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGE = Path(__file__).parents[2] / "docs/taskiq.md"
MESSAGES = 200
AT_ONCE = 4
WORKER = (
    "taskiq",
    "worker",
    "app:broker",
    "work",
    "--workers",
    "1",
    "--max-async-tasks",
    str(AT_ONCE),
)

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
    application, *_ = re.findall(r"(?ms)^```python\n(.*?)^```$", PAGE.read_text())
    assert "CodeqBroker(URL)" in application
    options = 'URL, lease_seconds=10, listen_to=["taskiq", "t-work"]'
    short = application.replace("CodeqBroker(URL)", f"CodeqBroker({options})")
    (directory / "app.py").write_text(short)
    (directory / "work.py").write_text(WORK)


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

    # The worker that dies is alone with all messages, so it surely has some.
    await printed(cluster, "-c", sends, directory=tmp_path)
    async with (
        Operator(list(cluster.urls.values()), token=ADMIN_TOKEN) as operator,
        working(cluster, *WORKER, directory=tmp_path) as dies,
        asyncio.timeout(WITHIN_S + 30),
    ):
        await until_ran(journal, 20)
        kill(dies)
        async with working(cluster, *WORKER, directory=tmp_path):
            await until_ran(journal, 60)
            await cluster.kill(leader := await cluster.leader_of(0))
            cluster.start(leader)
            added = await printed(cluster, program, directory=tmp_path)

            rows = await ended(operator, "t-work")

    assert "3\n" == added
    retries = MESSAGES // 20
    assert set(range(MESSAGES)) == set(ran(journal))
    # Neither a retry that is missing nor one that is there twice.
    assert ["COMPLETED"] * (MESSAGES + retries) == [row["status"] for row in rows]
    # At most what the killed worker had begun at once.
    assert sum(ran(journal).values()) - (MESSAGES + retries) <= AT_ONCE
    again = [row for row in rows if row["attempts"] > 1]
    assert again
    assert {"LEASE_EXPIRED"} == {h["outcome"] for row in again for h in row["history"][:-1]}
