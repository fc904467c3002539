"""Dramatiq: its own workers on three nodes, while a leader and a worker are killed."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from codeq_cluster.client import Operator
from tests.acceptance.foreign_workers import (
    WITHIN_S,
    ended,
    kill_holder,
    printed,
    ran,
    until_ran,
    working,
)
from tests.acceptance.held_tasks import HELD_FROM
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import ADMIN_TOKEN

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGE = Path(__file__).parents[2] / "docs/dramatiq.md"
MESSAGES = 200
THREADS = 4
WORKER = ("dramatiq", "app", "work", "--processes", "1", "--threads", str(THREADS))

WORK = """
import time
from pathlib import Path
import dramatiq
from app import *
from tests.acceptance.held_tasks import HELD_S, is_held

@dramatiq.actor(queue_name="d-work", min_backoff=1, max_backoff=1)
def work(journal, number):
    time.sleep(0.05)
    while is_held(journal):
        time.sleep(HELD_S)
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

    await printed(cluster, "-c", sends, directory=tmp_path)
    async with (
        Operator(list(cluster.urls.values()), token=ADMIN_TOKEN) as operator,
        working(cluster, *WORKER, directory=tmp_path) as dies,
        asyncio.timeout(WITHIN_S + 30),
    ):
        await kill_holder(dies, journal)
        async with working(cluster, *WORKER, directory=tmp_path):
            await until_ran(journal, 2 * HELD_FROM)
            await cluster.kill(leader := await cluster.leader_of(0))
            cluster.start(leader)
            added = await printed(cluster, "-c", program, directory=tmp_path)

            rows = await ended(operator, "d-work")

    assert "3\n" == added
    retries = MESSAGES // 20
    assert set(range(MESSAGES)) == set(ran(journal))
    # Neither a retry that is missing nor one that is there twice.
    assert ["COMPLETED"] * (MESSAGES + retries) == [row["status"] for row in rows]
    # At most what each thread of the killed worker had begun.
    assert sum(ran(journal).values()) - (MESSAGES + retries) <= THREADS
    again = [row for row in rows if row["attempts"] > 1]
    assert again
    assert {"LEASE_EXPIRED"} == {h["outcome"] for row in again for h in row["history"][:-1]}
