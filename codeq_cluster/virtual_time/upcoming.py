"""Upcoming: the instants at which a broker will act by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from codeq_cluster.api.http.virtual_time import Upcoming
from codeq_cluster.client import Operator, Page

_Fetch = Callable[..., Awaitable[Page]]


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is due, the earliest first, and how many instants of each schedule have fired."""

    due: Sequence[Upcoming]
    made: Mapping[str, int]


async def outlook(operator: Operator, queues: Sequence[Mapping[str, Any]]) -> Outlook:
    """Return all that is due of one tenant; what is past is being done.

    Args:
        operator: Asks, as an admin of the tenant.
        queues: Its queues.
    """
    asked = (
        (partial(operator.tasks, status="PENDING"), {"readyAt": "ready", "expiresAt": "dies"}),
        (partial(operator.tasks, status="IN_PROGRESS"), {"leaseUntil": "lease"}),
        (partial(operator.deliveries, status="pending"), {"nextAttemptAt": "callback"}),
    )
    due = [
        Upcoming(datetime.fromisoformat(row[field]), kind, row["id"])
        for fetch, fields in asked
        async for row in rows(fetch)
        for field, kind in fields.items()
        if field in row
    ]
    made = {}
    async for row in rows(operator.schedules):
        made[row["id"]] = row["made"]
        if row["state"] == "active":
            instants = (datetime.fromisoformat(each["at"]) for each in row["next"])
            due += [Upcoming(at, "schedule", row["id"]) for at in instants]
    for queue in queues:
        if "heldUntil" in queue:
            due.append(
                Upcoming(datetime.fromisoformat(queue["heldUntil"]), "queue", queue["command"])
            )
        if queue["held"]:
            due += await _of_keys(operator, queue["command"])
    return Outlook(sorted(due), made)


async def _of_keys(operator: Operator, command: str) -> list[Upcoming]:
    return [
        Upcoming(datetime.fromisoformat(row[field]), "key", f"{command}/{row['key']}")
        for row in (await operator.keys(command))["keys"]
        for field in ("limitedUntil", "heldUntil")
        if field in row
    ]


async def rows(fetch: _Fetch) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the rows of all pages."""
    cursor = ""
    while True:
        page = await fetch(cursor=cursor)
        for row in page.rows:
            yield row
        if not (cursor := page.cursor):
            return
