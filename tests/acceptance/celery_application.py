"""A Celery application as users have it: every line but its URLs knows nothing of the broker."""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import Celery

from tests.acceptance.held_tasks import HELD_S, is_held

app = Celery("application", broker=os.environ["BROKER_URL"], backend=os.environ["BROKER_URL"])
app.conf.update(
    task_ignore_result=True,
    # Also of the task that looks whether a chord's parts are done.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    broker_transport_options={"lease_seconds": 5},
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@app.task
def late(journal: str, number: int) -> None:
    """Note that a task has run, after a moment in which its worker may die."""
    time.sleep(0.05)
    while is_held(journal):
        time.sleep(HELD_S)
    with Path(journal).open("a") as file:
        file.write(f"{number}\n")


@app.task(acks_late=False)
def long(journal: str, number: int) -> None:
    """Run for longer than a lease, acknowledged early."""
    time.sleep(12)
    with Path(journal).open("a") as file:
        file.write(f"{number}\n")


@app.task
def long_late(journal: str, number: int) -> None:
    """Run for longer than two leases, unacknowledged."""
    long.run(journal, number)


@app.task(ignore_result=False, queue="chords")
def part(journal: str, number: int) -> int:
    """Return a part of a chord, after a moment in which its worker may die."""
    late.run(journal, number)
    return number


@app.task(ignore_result=False, queue="chords")
def total(numbers: list[int]) -> int:
    """Return the sum of a chord's parts."""
    return sum(numbers)
