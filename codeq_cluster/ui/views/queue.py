"""Queue: one queue of the caller's tenant, with its policy and its workers."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.refusals import INVALID_COMMAND
from codeq_cluster.api.routes.topics import TopicView, topic_view
from codeq_cluster.core.bounds import COMMAND
from codeq_cluster.core.explaining import SharedLimit
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.task import Counters
from codeq_cluster.ui.sources import Sources
from codeq_cluster.ui.views.queues import QueueRow, all_rows, queue_row
from codeq_cluster.ui.views.series import SeriesView, series
from codeq_cluster.ui.views.serving_node import Totals, depths, totals_view

WORKERS_MAX = 50


class PollRow(Struct, rename="camel", kw_only=True):
    """A worker that polled the queue through one node."""

    worker: str
    node: str
    last_poll_at: str
    waiting: int


class Defaults(Struct, rename="camel", kw_only=True):
    """The broker's settings for a queue whose topic does not say otherwise."""

    max_attempts_default: int = msgspec.field(name="maxAttempts")
    backoff_policy: str
    backoff_base_seconds: int
    backoff_max_seconds: int
    retention_seconds: int
    dlq_retention_seconds: int


class LimitRow(Struct, rename="camel", kw_only=True):
    """The limit that a queue shares with others, and how many of their tasks are in progress."""

    name: str
    running: int
    max_running: int
    limited_until: str
    held_until: str


class QueueDetail(Struct, rename="camel", kw_only=True):
    """A queue; a command that was never used has an empty one.

    Attributes:
        topic: None if the broker's default policy applies.
        limit: None if it shares none.
        polls: Workers that poll it by name or poll all queues, the latest first.
    """

    queue: QueueRow
    totals: Totals
    paused_by: str
    paused_at: str
    held_until: str
    limit: LimitRow | None
    topic: TopicView | None
    defaults: Defaults
    polls: list[PollRow]


async def look(call: Call, sources: Sources) -> QueueDetail:
    """Return the queue that the query names."""
    tenant, queue = call.identity.tenant, _queue(call)
    rows = [row for row in await all_rows(tenant, sources) if row.command == queue]
    counters = (await depths(tenant, sources)).get(queue, Counters())
    pause = sources.depths.pause(tenant, queue)
    held_ms = sources.depths.held_until_ms(tenant, queue)
    topic = sources.depths.policy(tenant, queue).topic
    return QueueDetail(
        queue=rows[0] if rows else queue_row(queue, counters),
        totals=totals_view(counters),
        paused_by=pause.by if pause is not None else "",
        paused_at=rfc3339(pause.since_ms) if pause is not None else "",
        held_until=rfc3339(held_ms) if held_ms > call.services.now_ms() else "",
        limit=_limit_row(sources.depths.shared_limit(tenant, queue), call.services.now_ms()),
        topic=topic_view(topic) if topic is not None else None,
        defaults=msgspec.convert(call.services.settings.lifecycle, Defaults, from_attributes=True),
        polls=await _polls(tenant, queue, sources),
    )


async def draw(call: Call, sources: Sources, since: int) -> SeriesView:
    """Return the queue's slots."""
    return await series(call, sources, tenant=call.identity.tenant, queue=_queue(call), since=since)


def _limit_row(limit: SharedLimit | None, now_ms: int) -> LimitRow | None:
    if limit is None:
        return None

    def until(at_ms: int) -> str:
        return rfc3339(at_ms) if at_ms > now_ms else ""

    return LimitRow(
        name=limit.name,
        running=limit.running,
        max_running=limit.running_max,
        limited_until=until(limit.limited_until_ms),
        held_until=until(limit.held_until_ms),
    )


def _queue(call: Call) -> str:
    command = call.query_text("queue")
    if not COMMAND.fullmatch(command):
        raise INVALID_COMMAND
    return command.lower()


async def _polls(tenant: str, queue: str, sources: Sources) -> list[PollRow]:
    found = [
        (poll.last_ms, node, poll)
        for node, polls in (await sources.workers(tenant)).items()
        for poll in polls
        if not poll.commands or queue in poll.commands
    ]
    found.sort(key=lambda each: (-each[0], each[2].worker, each[1]))
    return [
        PollRow(worker=poll.worker, node=node, last_poll_at=rfc3339(last_ms), waiting=poll.waiting)
        for last_ms, node, poll in found[:WORKERS_MAX]
    ]
