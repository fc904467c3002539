"""Taskiq: its own workers on three nodes, while a leader and a worker are killed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from taskiq.kicker import AsyncKicker

from codeq_cluster.client import Operator
from codeq_cluster.integrations.taskiq import CodeqPubSubBroker
from tests.acceptance.foreign_workers import (
    WITHIN_S,
    ended,
    environment,
    kill_holder,
    printed,
    ran,
    until_ran,
    working,
)
from tests.acceptance.held_tasks import HELD_FROM
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import ADMIN_TOKEN
from tests.harness.waiting import until

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
from tests.acceptance.held_tasks import HELD_S, is_held

broker.add_middlewares(SimpleRetryMiddleware())

@broker.task(retry_on_error=True, queue_name="t-work")
async def work(journal: str, number: int, context: Context = TaskiqDepends()) -> None:
    await asyncio.sleep(0.05)
    while is_held(journal):
        await asyncio.sleep(HELD_S)
    with Path(journal).open("a") as file:
        file.write(f"{number}\\n")
    if number % 20 == 0 and "_retries" not in context.message.labels:
        raise RuntimeError("a retry")

async def send(journal: str, count: int) -> None:
    await asyncio.gather(*(work.kiq(journal, n) for n in range(count)))
"""

LISTENERS = 3
LISTENER = (
    "taskiq",
    "worker",
    "told:everywhere",
    "--workers",
    str(LISTENERS),
    # One after the other, so that a journal has the order in which a worker gets them.
    "--max-async-tasks",
    "1",
    "--log-level",
    "WARNING",
)

TOLD = """
import os
from pathlib import Path
from codeq_cluster.integrations.taskiq import CodeqPubSubBroker

everywhere = CodeqPubSubBroker(os.environ["BROKER_URL"], queue_name="t-told")

@everywhere.task(task_name="note")
async def note(journals: str, text: str) -> None:
    with Path(journals, str(os.getpid())).open("a") as file:
        file.write(f"{text}\\n")
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


@pytest.mark.timeout(120)
async def test_every_worker_gets_each_broadcast_once_while_a_leader_is_killed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """What two send while a leader dies and returns comes to all, in one order."""
    (tmp_path / "told.py").write_text(TOLD)
    journals = tmp_path / "journals"
    journals.mkdir()
    everywhere = CodeqPubSubBroker(environment(cluster)["BROKER_URL"], queue_name="t-told")
    is_over = asyncio.Event()

    async def tell(text: str) -> str:
        note: AsyncKicker[Any, Any] = AsyncKicker("note", everywhere, {})
        await note.kiq(str(journals), text)
        return text

    async def speak(name: str) -> Sequence[str]:
        told: list[str] = []
        while not is_over.is_set():
            told.append(await tell(f"{name}{len(told)}"))
        return told

    async def all_listen() -> bool:
        await tell("begin")
        return len(_noted(journals)) == LISTENERS

    async def all_have_the_last_one() -> bool:
        return all("end" in noted for noted in _noted(journals))

    async with working(cluster, *LISTENER, directory=tmp_path), asyncio.timeout(WITHIN_S):
        await until(all_listen, what="workers that listen", within_s=WITHIN_S)
        async with asyncio.TaskGroup() as group:
            speakers = [group.create_task(speak(name)) for name in "ab"]
            await cluster.kill(leader := await cluster.leader_of(1))
            cluster.start(leader)
            await cluster.wait_ready()
            is_over.set()
        await tell("end")
        await until(all_have_the_last_one, what="the last broadcast", within_s=WITHIN_S)

    told = [text for speaker in speakers for text in speaker.result()]
    # Each of them: a worker that starts early also hears of the start of others.
    first, *others = [[text for text in noted if text != "begin"] for noted in _noted(journals)]
    assert sorted([*told, "end"]) == sorted(first)
    assert [first] * (LISTENERS - 1) == others


def _noted(journals: Path) -> list[list[str]]:
    """Return what each worker has noted, in its order."""
    return [each.read_text().split() for each in journals.iterdir()]
