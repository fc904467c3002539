"""Numbered: sealed groups of one task, `NAME.0`, `NAME.1` and so on, whose numbers have no gaps.

What they hold is found by name alone. Each function raises as `Client` does.
"""

from __future__ import annotations

from codeq_cluster.client import Client, Refused, TaskRecord

NOT_FOUND = 404


async def last_of(client: Client, name: str) -> tuple[int, str]:
    """Return the number and the task of the last group, or -1 and an empty text.

    A few requests find the last of thousands.
    """
    number, found, step = -1, "", 1
    while (task_id := await task_of(client, f"{name}.{number + step}")) is not None:
        number, found = number + step, task_id
        step = number + 1
    while step > 1:
        step //= 2
        if (task_id := await task_of(client, f"{name}.{number + step}")) is not None:
            number, found = number + step, task_id
    return number, found


async def task_of(client: Client, group: str) -> str | None:
    """Return the task of a group, an empty text if it is gone, or None for no such group."""
    try:
        page = await client.group_results(group)
    except Refused as error:
        if error.status != NOT_FOUND:
            raise
        return None
    return page.members[0].task_id if page.members else ""


async def read(client: Client, task_id: str) -> TaskRecord | None:
    """Return a task, or None for an empty text and for a task whose retention is over."""
    try:
        return await client.task(task_id) if task_id else None
    except Refused as error:
        if error.status != NOT_FOUND:
            raise
        return None
