"""Queues: the caller's queues, one row each; filtered, sorted and paged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import bad_request
from codeq_cluster.core.task import Counters
from codeq_cluster.portions import in_portions
from codeq_cluster.telemetry.history import FINE_S, RATE_SLOTS, Flow
from codeq_cluster.ui.sources import Sources
from codeq_cluster.ui.views.serving_node import SHOWN_S, depths

COUNT_DEFAULT = 50
COUNT_MAX = 200  # A row is about 300 bytes, and all of them are sent every two seconds.

_OLDEST_S = 5  # How outdated the age of a queue's oldest task may be, beside its growing.
_RATE_S = FINE_S * RATE_SLOTS


class Rates(Struct, rename="camel", kw_only=True):
    """Tasks per second over the last minute, a field for each flow."""

    created: float
    started: float
    completed: float
    failed: float


class QueueRow(Struct, rename="camel", kw_only=True):
    """A queue.

    Attributes:
        oldest_ready_seconds: How long its oldest ready task has been ready.
    """

    command: str
    ready: int
    delayed: int
    held: int
    in_progress: int
    dlq: int
    oldest_ready_seconds: int
    paused: bool
    rates: Rates


class QueuePage(Struct, rename="camel", kw_only=True):
    """A page of the queues that match.

    Attributes:
        matching: How many match, on all pages.
    """

    queues: list[QueueRow]
    matching: int


_KEYS: Mapping[str, Callable[[QueueRow], Any]] = {
    "command": lambda row: row.command,
    "ready": lambda row: row.ready,
    "delayed": lambda row: row.delayed,
    "inProgress": lambda row: row.in_progress,
    "dlq": lambda row: row.dlq,
    "oldest": lambda row: row.oldest_ready_seconds,
    "created": lambda row: row.rates.created,
    "completed": lambda row: row.rates.completed,
    "failed": lambda row: row.rates.failed,
}


async def look(call: Call, sources: Sources) -> QueuePage:
    """Return the page of queues that the query asks for."""
    sort = call.query_text("sort") or "command"
    key = _KEYS.get(sort)
    if key is None:
        raise bad_request(f"invalid 'sort' (use {', '.join(_KEYS)})", "invalid-query")
    count = call.query_integer("limit") or COUNT_DEFAULT
    skip = call.query_integer("skip")
    if not 1 <= count <= COUNT_MAX or skip < 0:
        raise bad_request(f"invalid 'limit' (use 1 to {COUNT_MAX})", "out-of-range")
    tenant, is_falling = call.identity.tenant, call.query_text("order") == "desc"

    async def in_order() -> list[QueueRow]:
        rows = sorted(await all_rows(tenant, sources), key=lambda row: row.command)
        rows.sort(key=key, reverse=is_falling)
        return rows

    name = ("in order", sort, is_falling)
    text = call.query_text("text").lower()
    ordered = await sources.shared.of(tenant, name, SHOWN_S, in_order)
    rows = [row for row in ordered if text in row.command] if text else ordered
    return QueuePage(queues=rows[skip : skip + count], matching=len(rows))


async def all_rows(tenant: str, sources: Sources) -> list[QueueRow]:
    """Return every queue of the tenant, including empty ones that are paused."""

    async def make() -> list[QueueRow]:
        found = await depths(tenant, sources)
        waiting = [queue for queue, counters in found.items() if counters.ready]
        oldest = await sources.shared.of(
            tenant, "oldest", _OLDEST_S, lambda: sources.depths.oldest_ready_ms(tenant, waiting)
        )
        rates = await sources.rates(tenant)
        paused = sources.depths.paused(tenant)
        now_ms = sources.now_ms()
        return [
            queue_row(
                queue,
                found.get(queue, Counters()),
                waited_ms=now_ms - oldest.get(queue, now_ms),
                paused=queue in paused,
                flows=rates.get(queue),
            )
            async for queue in in_portions(found.keys() | paused)
        ]

    return await sources.shared.of(tenant, "rows", SHOWN_S, make)


def _rates(flows: list[int] | None) -> Rates:
    numbers = flows or [0] * len(Flow)
    return Rates(**{flow.name.lower(): round(numbers[flow] / _RATE_S, 2) for flow in Flow})


def queue_row(
    queue: str,
    counters: Counters,
    *,
    waited_ms: int = 0,
    paused: bool = False,
    flows: list[int] | None = None,
) -> QueueRow:
    """Render a queue; one that was never used has only its name."""
    return QueueRow(
        command=queue,
        ready=counters.ready,
        delayed=counters.delayed,
        held=counters.held,
        in_progress=counters.leased,
        dlq=counters.dead,
        # The oldest task was looked up a moment ago and may have been claimed since.
        oldest_ready_seconds=max(0, waited_ms // 1000) if counters.ready else 0,
        paused=paused,
        rates=_rates(flows),
    )
