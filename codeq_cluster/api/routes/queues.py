"""Queues: the depth of the caller's queues, and pausing them."""

from __future__ import annotations

import asyncio
from bisect import bisect_right

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from codeq_cluster.api.declared.bodies import Body, Schema, field
from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import from_failure
from codeq_cluster.api.http.refusals import INVALID_COMMAND, unknown_name
from codeq_cluster.api.routes.listing import PAGE, asked_page, caller
from codeq_cluster.api.routes.task_views import COMMAND
from codeq_cluster.auth import Access
from codeq_cluster.broker.requests.dead_letters import BULK_MAX
from codeq_cluster.broker.values import QueueDepth
from codeq_cluster.core import bounds
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.items import PAUSES_MAX
from codeq_cluster.core.task import Counters
from codeq_cluster.errors import TooMany
from codeq_cluster.portions import in_portions

ROUTES = Routes(__name__, __doc__, Access.ADMIN)


class PurgeBody(Body):
    """How many waiting tasks of a queue to cancel, and whether only to count them."""

    limit: int | None = field(
        f"Maximum number of tasks, {BULK_MAX} when absent.", ge=1, le=BULK_MAX
    )
    dry_run: bool | None = field("Count the tasks and change nothing.")


# A misspelt "dryRun" must not purge.
_PURGE = Schema(PurgeBody, unknown=unknown_name)


class QueueView(Struct, rename="camel", kw_only=True):
    """The depth of a queue; `paused` if nobody may claim from it.

    Nothing of it is handed out before `heldUntil`, if a worker has held it.
    """

    command: str
    ready: int
    delayed: int
    in_progress: int
    dlq: int
    oldest_ready_seconds: int
    held: int = 0
    oldest_held_seconds: int = 0
    paused: bool | UnsetType = UNSET
    held_until: str | UnsetType = UNSET


class QueuePage(Struct):
    """A page of a list; the cursor is missing at its end."""

    queues: list[QueueView]
    cursor: str | UnsetType = UNSET


class PausedQueue(Struct):
    """Whether the queue is paused now."""

    command: str
    paused: bool
    changed: bool


class Purged(Struct, rename="camel"):
    """The result of purging a queue; a dry run only counts its waiting tasks."""

    matched: int
    purged: int
    more: bool
    dry_run: bool


_QUEUE = QueueView(
    command=COMMAND, ready=12, delayed=3, in_progress=4, dlq=0, oldest_ready_seconds=7
)
_TURNED = "The state of the queue on every shard; `changed` is false if it was so before."


@ROUTES(
    "GET",
    "/admin/queues",
    Answer("The queues, by name; with `limit` or `cursor`, a page of them.", [_QUEUE]),
    parameters=PAGE,
)
async def queues(call: Call) -> HttpAnswer[list[QueueView] | QueuePage]:
    """Return the depth of every queue of the caller's tenant, by name, including paused ones.

    A `limit` or a `cursor` asks for a page of them.
    """
    asked = asked_page(call) if {"limit", "cursor"} & call.request.query.keys() else None
    depths, paused = await _depths(call)
    now_ms = call.services.now_ms()
    idle = paused - {depth.command for depth in depths}
    depths += [QueueDepth(queue, Counters(), 0) for queue in idle]
    depths.sort(key=lambda depth: depth.command)
    more = False
    if asked is not None:
        after = asked.after.decode()
        start = bisect_right(depths, after, key=lambda depth: depth.command) if after else 0
        more = start + asked.count < len(depths)
        depths = depths[start : start + asked.count]
    views = [
        queue_view(depth, now_ms=now_ms, paused=depth.command in paused)
        async for depth in in_portions(depths)
    ]
    if asked is None:
        return reply(views)
    return reply(QueuePage(views, asked.cursor(views[-1].command.encode() if more else b"")))


@ROUTES("GET", "/admin/queues/{command}", Answer("The queue.", _QUEUE))
async def queue(call: Call) -> HttpAnswer[QueueView]:
    """Return the depth of one queue; a command that was never used has an empty one."""
    command = call.request.match_info["command"].removeprefix("~")
    found, paused = QueueDepth(command, Counters(), 0), False
    if bounds.COMMAND.fullmatch(command):
        broker, tenant, wanted = call.services.broker, call.identity.tenant, command.lower()
        depths, paused = await asyncio.gather(
            broker.queues(tenant, wanted, timeout_s=call.timeout_s),
            broker.queue_policies.is_paused(caller(call), wanted),
        )
        for depth in depths:
            found = replace(depth, command=command)
    return reply(queue_view(found, now_ms=call.services.now_ms(), paused=paused))


@ROUTES(
    "POST",
    "/admin/queues/{command}/pause",
    Answer(_TURNED, PausedQueue(COMMAND, paused=True, changed=True)),
    errors=(INVALID_COMMAND, from_failure(TooMany("paused queues", PAUSES_MAX))),
)
async def pause(call: Call) -> HttpAnswer[PausedQueue]:
    """Pause a queue: nobody can claim from it, but leases continue and tasks can be added.

    The answer comes once every shard's leader applies it.
    """
    command = call.command()
    changed = await call.services.broker.queue_policies.pause(caller(call), command)
    return reply(PausedQueue(command, paused=True, changed=changed))


@ROUTES(
    "POST",
    "/admin/queues/{command}/resume",
    Answer(_TURNED, PausedQueue(COMMAND, paused=False, changed=True)),
    errors=(INVALID_COMMAND,),
)
async def resume(call: Call) -> HttpAnswer[PausedQueue]:
    """Resume a paused queue; waiting claims are woken."""
    command = call.command()
    changed = await call.services.broker.queue_policies.resume(caller(call), command)
    return reply(PausedQueue(command, paused=False, changed=changed))


@ROUTES(
    "POST",
    "/admin/queues/{command}/purge",
    Answer(
        "How many tasks waited and how many of them were cancelled; `more` if some are left.",
        Purged(matched=2, purged=2, more=False, dry_run=False),
    ),
    body=_PURGE,
    example={"limit": 100, "dryRun": True},
    may_miss=True,
    errors=(INVALID_COMMAND, unknown_name("dry", _PURGE.names)),
)
async def purge(call: Call) -> HttpAnswer[Purged]:
    """Cancel tasks that wait in a queue: ready ones in claim order, then delayed and held ones.

    They end FAILED with the error CANCELLED; tasks in progress and dead letters stay.
    """
    body = _PURGE.decode_any(call.text)
    done = await call.services.broker.triage.purge(
        caller(call),
        call.command().lower(),
        limit=body.limit or BULK_MAX,
        dry_run=bool(body.dry_run),
    )
    return reply(Purged(len(done.ids), done.changed, done.more, bool(body.dry_run)))


def queue_view(depth: QueueDepth, *, now_ms: int, paused: bool = False) -> QueueView:
    """Render a queue's depth."""
    counters = depth.counters
    waited_ms = now_ms - depth.oldest_ready_ms if depth.oldest_ready_ms else 0
    held_ms = now_ms - depth.oldest_held_ms if depth.oldest_held_ms else 0
    return QueueView(
        command=depth.command,
        ready=counters.ready,
        delayed=counters.delayed,
        in_progress=counters.leased,
        dlq=counters.dead,
        oldest_ready_seconds=max(0, waited_ms // 1000),
        held=counters.held,
        oldest_held_seconds=max(0, held_ms // 1000),
        paused=paused or UNSET,
        held_until=rfc3339(depth.held_until_ms) if depth.held_until_ms > now_ms else UNSET,
    )


async def _depths(call: Call) -> tuple[list[QueueDepth], frozenset[str]]:
    """Return the tenant's queues, and those that are paused."""
    broker, tenant = call.services.broker, call.identity.tenant
    depths, paused = await asyncio.gather(
        broker.queues(tenant, timeout_s=call.timeout_s),
        broker.queue_policies.paused(caller(call)),
    )
    return list(depths), paused
