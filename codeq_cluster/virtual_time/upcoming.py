"""Upcoming: the instants at which a broker will act by itself."""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from codeq_cluster.api.http.virtual_time import Upcoming
from codeq_cluster.broker.engine.view import ShardView
from codeq_cluster.client import Operator, Page
from codeq_cluster.codec import keyspace
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.core.gate import Gate
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.lane import Lane
from codeq_cluster.core.limit import is_limits
from codeq_cluster.core.schedules import jitter_of
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.unique import Holder

_Fetch = Callable[..., Awaitable[Page]]
# Items of other kinds may be many, and are not read.
_LETTING_GO = frozenset((ItemKind.GATE, ItemKind.LANE, ItemKind.UNIQUE))


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is due, the earliest first, and how many instants of each schedule have fired."""

    due: Sequence[Upcoming]
    made: Mapping[str, int]


async def outlook(operator: Operator, views: Iterable[ShardView]) -> Outlook:
    """Return all that is due of one tenant; what is past is being done.

    Args:
        operator: Asks, as an admin of the tenant.
        views: Of all shards, which have tasks of no other tenant.
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
            due += [Upcoming(at, "schedule", row["id"]) for at in _firings(row)]
    for view in views:
        due += _goes_on(view)
    return Outlook(sorted(due), made)


def _firings(row: Mapping[str, Any]) -> Iterator[datetime]:
    """Yield when the next instants of a schedule fire, their jitter included."""
    for each in row["next"]:
        at = datetime.fromisoformat(each["at"])
        at_ms = round(at.timestamp() * 1000)
        yield at + timedelta(milliseconds=jitter_of(row["id"], row.get("jitterSeconds", 0), at_ms))


def _goes_on(view: ShardView) -> Iterator[Upcoming]:
    """Yield when a rate, a hold or a throttle lets tasks go on; a shared limit has many queues."""
    for timer in view.time.windows[Family.EXPIRY]:
        if not keyspace.knows_kind(timer):
            continue
        kind, tenant, name = keyspace.item_parts(timer)
        at = datetime.fromisoformat(rfc3339(keyspace.item_timer_ms(timer)))
        match view.item(kind, tenant, name) if kind in _LETTING_GO else None:
            case Gate() as gate if gate.shut_until_ms:
                queues = view.sharers.get((tenant, name), ()) if is_limits(name) else (name,)
                yield from (Upcoming(at, "queue", queue) for queue in queues)
            case Lane() as lane if lane.held_until_ms or lane.limited_until_ms:
                yield Upcoming(at, "key", f"{lane.queue}/{lane.key}")
            case Holder() as holder if holder.next_id:
                yield Upcoming(at, "ready", holder.next_id)


async def rows(fetch: _Fetch) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the rows of all pages."""
    cursor = ""
    while True:
        page = await fetch(cursor=cursor)
        for row in page.rows:
            yield row
        if not (cursor := page.cursor):
            return
