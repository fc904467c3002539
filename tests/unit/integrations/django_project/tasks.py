"""Tasks of the project."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from django.db import connection
from django_tasks import TaskContext, task

from codeq_cluster.client import Retry
from tests.acceptance.held_tasks import HELD_S, is_held
from tests.unit.integrations.nested import nested


@task
def add(one: int, *, two: int = 0) -> int:
    """Return a sum."""
    return one + two


@task
async def add_async(one: int, *, two: int = 0) -> int:
    """Return a sum, as a coroutine."""
    return one + two


@task
def echo(value: Any) -> Any:
    """Return what is given."""
    return value


@task
def note(journal: str, text: str, seconds: float = 0.0) -> None:
    """Write a line, after a moment in which a worker may die."""
    time.sleep(seconds)
    while is_held(journal):
        time.sleep(HELD_S)
    with Path(journal).open("a") as file:
        file.write(f"{text}\n")


@task
def fail(text: str) -> None:
    """Raise an error of the function."""
    raise ValueError(text)


@task
def leave() -> None:
    """End what one would think is the process."""
    raise SystemExit("bye")


@task
def return_something_else() -> object:
    """Return what JSON has not."""
    return object()


@task
def not_a_number() -> float:
    """Return a number that JSON has not."""
    return float("nan")


@task
def return_half_a_character() -> str:
    """Return a text that UTF-8 has not, such as a file's name may be."""
    return "a\udcff"


@task
def return_nested(depth: int) -> list[object]:
    """Return lists within lists."""
    return nested(depth)


@task
def return_much(count: int) -> str:
    """Return a text."""
    return "x" * count


@task(takes_context=True)
def whoami(context: TaskContext) -> list[Any]:
    """Return what the context says."""
    return [context.task_result.id, context.attempt, context.task_result.status]


@task(takes_context=True)
def third_time(context: TaskContext) -> int:
    """Succeed at the third attempt."""
    if context.attempt < 3:
        raise Retry("not yet", after=1)
    return context.attempt


@task
def query() -> int:
    """Ask the database."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 41 + 1")
        return int(cursor.fetchone()[0])


def plain() -> None:
    """Do nothing; this is no task."""
