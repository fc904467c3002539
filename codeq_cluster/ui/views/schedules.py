"""Schedules: all of a tenant in pages, and one with two weeks of its instants."""

from __future__ import annotations

import asyncio

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import asdict, replace

from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import bad_request
from codeq_cluster.api.http.refusals import NOT_FOUND
from codeq_cluster.api.routes.listing import caller, listed
from codeq_cluster.api.routes.schedule_views import (
    LAST_RUNS_MAX,
    InstantView,
    RunView,
    ScheduleView,
    known_runs,
    run_view,
    schedule_view,
)
from codeq_cluster.auth import Identity
from codeq_cluster.core.bounds import COMMAND
from codeq_cluster.core.schedules import RunRow, Schedule, Timing, jitter_ms
from codeq_cluster.errors import InvalidSchedule, InvalidZone
from codeq_cluster.schedules.calendar import IntervalCalendar
from codeq_cluster.schedules.due import calendar_of
from codeq_cluster.ui.sources import Sources
from codeq_cluster.ui.views.rows import sees_payloads, shown_url
from codeq_cluster.ui.views.strip import COMING_MAX, Found, Strip, ask_calendar, span_of, strip

STATES = ("active", "paused", "over")
_ASKED_S = 60
_TEXT_CHARS_MAX = 128
_NO_PAYLOAD = Raw(b"null")


class Run(RunView, rename="camel", omit_defaults=True, kw_only=True):
    """A run, and how long after its instant, and its jitter, its task was made."""

    lag_ms: int | UnsetType = UNSET


class ScheduleRow(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A schedule in a list, without the template of its tasks.

    Attributes:
        words: The calendar in words.
        written: As its author wrote it.
        command: Of its tasks.
        last: The run that was made last.
        missed: Instants that did not fire, because they were late or refused.
    """

    id: str
    words: str
    written: str
    zone: str
    state: str
    command: str
    owner: str = ""
    last: Run | UnsetType = UNSET
    next: InstantView | UnsetType = UNSET
    missed: int
    running: int
    queued: int


class ScheduleRows(Struct, rename="camel", kw_only=True):
    """A page of a list; the last page has no cursor."""

    schedules: list[ScheduleRow]
    cursor: str | UnsetType = UNSET


class ScheduleDetail(ScheduleView, rename="camel", omit_defaults=True, kw_only=True):
    """A schedule as the API shows it, and what the page shows beside that.

    Attributes:
        task: Without the payload, and for a caller who may not see payloads without metadata, and
            of its webhook only the host.
        payload: The payload as JSON text; missing for that caller.
        words: As in a row.
        last: As in a row.
    """

    words: str
    payload: str | UnsetType = UNSET
    last: Run | UnsetType = UNSET
    strip: Strip


async def schedules(call: Call) -> HttpAnswer[ScheduleRows]:
    """Return the tenant's schedules by id that match; a page may be short, or empty."""
    state = call.query_text("state")
    if state and state not in STATES:
        raise bad_request(f"invalid 'state' (use {', '.join(STATES)})", "invalid-query")
    text = call.query_text("text")[:_TEXT_CHARS_MAX].lower()
    owner = call.query_text("owner")
    found, cursor = await listed(call, Schedule)
    rows = [
        schedule_row(each)
        for each in found
        if text in each.id.lower() and owner in ("", each.plan.owner)
    ]
    return reply(
        ScheduleRows(schedules=[row for row in rows if state in ("", row.state)], cursor=cursor)
    )


async def look(call: Call, sources: Sources) -> ScheduleDetail:
    """Return the schedule that the query names."""
    schedule_id = call.query_text("id")
    if not COMMAND.fullmatch(schedule_id):
        raise NOT_FOUND
    found = await call.services.broker.schedules.get(caller(call), schedule_id)
    if found is None:
        raise NOT_FOUND
    now_ms = sources.now_ms()
    span = span_of(found, now_ms)
    # One answer for all who look on, apart from the loop.
    answer = await sources.shared.of(
        found.tenant, span, _ASKED_S, lambda: asyncio.to_thread(ask_calendar, span)
    )
    drawn = strip(found, span, answer, now_ms)
    return schedule_detail(found, answer, drawn, call.identity)


def schedule_row(schedule: Schedule) -> ScheduleRow:
    """Render a schedule of a list."""
    view, timing = schedule_view(schedule), schedule.plan.timing
    return ScheduleRow(
        id=view.id,
        words=in_words(timing),
        written=written(timing),
        zone=view.zone,
        state=view.state,
        command=view.task.command,
        owner=view.owner,
        last=_last(schedule),
        next=view.next[0] if view.next else UNSET,
        missed=view.missed.count,
        running=view.running,
        queued=view.queued,
    )


def schedule_detail(
    schedule: Schedule, found: Found, drawn: Strip, asking: Identity
) -> ScheduleDetail:
    """Render what the caller may see of a schedule."""
    view = schedule_view(schedule, found.coming[:COMING_MAX])
    template = schedule.plan.task
    webhook = shown_url(template.webhook, asking)
    metadata = view.task.metadata if sees_payloads(asking) else UNSET
    fields = asdict(view) | {
        "task": replace(view.task, payload=_NO_PAYLOAD, webhook=webhook, metadata=metadata),
        "last_runs": [_run(schedule, *each) for each in known_runs(schedule)[:LAST_RUNS_MAX]],
    }
    return ScheduleDetail(
        **fields,
        payload=template.payload if sees_payloads(asking) else UNSET,
        words=in_words(schedule.plan.timing),
        last=_last(schedule),
        strip=drawn,
    )


def in_words(timing: Timing) -> str:
    """Return when a schedule fires, in words; as it is written if that cannot be read any more."""
    try:
        calendar = calendar_of(timing)
    except (InvalidSchedule, InvalidZone):
        return written(timing)
    return written(timing) if isinstance(calendar, IntervalCalendar) else calendar.words


def written(timing: Timing) -> str:
    """Return when a schedule fires, as its author wrote it."""
    behind = f", {timing.offset} behind" if timing.offset else ""
    return timing.cron or f"Every {timing.every}{behind}"


def _last(schedule: Schedule) -> Run | UnsetType:
    made = [each for each in known_runs(schedule) if each[0].made_ms]
    return _run(schedule, *max(made, key=lambda each: each[0].made_ms)) if made else UNSET


def _run(schedule: Schedule, row: RunRow, status: str) -> Run:
    lag_ms = row.made_ms - row.at_ms - jitter_ms(schedule, row.at_ms)
    return Run(**asdict(run_view(row, status)), lag_ms=max(0, lag_ms) if row.made_ms else UNSET)
