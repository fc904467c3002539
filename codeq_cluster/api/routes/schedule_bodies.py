"""Schedule bodies: what requests say of schedules."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from codeq_cluster.api.declared.bodies import Body, Schema, chosen, field, instant_ms, raw_field
from codeq_cluster.api.declared.wide import Int64
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, bad_request
from codeq_cluster.api.http.refusals import body_too_large, too_many
from codeq_cluster.api.routes.task_bodies import TASK_SCHEMA, task_within
from codeq_cluster.broker.requests.schedules import SET_MAX
from codeq_cluster.core.bounds import COMMAND, COMMAND_WORDS
from codeq_cluster.core.new_task import Create, template_of
from codeq_cluster.core.schedules import (
    FAILURES_MAX,
    JITTER_S_MAX,
    NOTE_BYTES_MAX,
    RUNS_COUNT_MAX,
    TEMPLATE_BYTES_MAX,
    WINDOW_S_MAX,
    Missed,
    Overlap,
    Plan,
    Timing,
)
from codeq_cluster.errors import InvalidSchedule, InvalidZone
from codeq_cluster.schedules.calendar import NAMED

COUNT_DEFAULT = 10
COUNT_MAX = 100
UTC = "UTC"
WINDOW_S_DEFAULT = 86_400

INVALID_SCHEDULE = bad_request("invalid schedule", "invalid-schedule")
INVALID_ZONE = bad_request("invalid zone", "invalid-zone")
BAD_ID = bad_request("invalid schedule id", "invalid-schedule-id").because(f"use {COMMAND_WORDS}")
INVALID_FROM = bad_request("invalid 'from' (use RFC3339, from 1970 on)", "invalid-from")
INVALID_TO = bad_request("invalid 'to' (use RFC3339, after 'from')", "invalid-to")
TEMPLATE_TOO_LARGE = body_too_large(TEMPLATE_BYTES_MAX).about("task")


def _instant(text: str) -> Any:
    return field(text + " RFC 3339.", refused=(INVALID_SCHEDULE,), format="date-time")


def _number(text: str, most: int) -> Any:
    return field(text, ge=0, le=most, default=0)


def _choice(of: type[StrEnum], text: str) -> Any:
    return field(text, refused=(INVALID_SCHEDULE,), enum=[*(each.value for each in of), None])


class CalendarBody(Body):
    """When a schedule fires."""

    cron: str | None = field(
        "Five fields: minute, hour, day of the month, month, day of the week. Six have seconds "
        "first. Or one of " + ", ".join(f"`{name}`" for name in NAMED) + ".",
        refused=(INVALID_SCHEDULE,),
    )
    zone: str | None = field(
        "The time zone of `cron`, by its IANA name; UTC when absent.", refused=(INVALID_ZONE,)
    )
    every: str | None = field(
        "Instead of `cron`: an interval of 1 second to 366 days, such as `1h30m`, aligned to the "
        "Unix epoch.",
        refused=(INVALID_SCHEDULE,),
    )
    offset: str | None = field(
        "How far each instant is behind a multiple of `every`; shorter than it.",
        refused=(INVALID_SCHEDULE,),
    )


class MissedBody(Body):
    """What becomes of instants that could not fire within a minute."""

    policy: str | None = _choice(
        Missed,
        "`one`, the default: the latest of them fires; `all`: up to 1,000 of them fire, in order; "
        "`skip`: none.",
    )
    window_seconds: int | None = field(
        "Older ones never fire.", ge=0, le=WINDOW_S_MAX, default=WINDOW_S_DEFAULT
    )


MISSED = Schema(MissedBody)


class ScheduleBody(CalendarBody):
    """A schedule; absent fields get their defaults, even if an earlier version set them."""

    task: Raw = raw_field(
        "The task of each run, as it is created, without idempotency key, start and delay. "
        f"Its payload has at most {TEMPLATE_BYTES_MAX} bytes.",
        required=True,
        refused=(INVALID_SCHEDULE, TEMPLATE_TOO_LARGE),
        inner=TASK_SCHEMA,
    )
    overlap: str | None = _choice(
        Overlap,
        "What happens to an instant while an earlier run has not ended: `skip` it, the default; "
        "`queueOne`: one waits; `queue`: up to 1,000 wait; `allow`: it fires; `cancel`: the "
        "earlier run is cancelled.",
    )
    missed: Raw = field(
        "Late instants.", default=Raw(b"{}"), inner=MISSED, refused=(INVALID_SCHEDULE,)
    )
    jitter_seconds: int | None = _number(
        "Each instant fires up to so much later, by a hash of the schedule and the instant.",
        JITTER_S_MAX,
    )
    start_at: str | None = _instant("No instant before.")
    end_at: str | None = _instant("No instant from then on.")
    max_runs: int | None = _number("It fires so often; 0 for ever.", RUNS_COUNT_MAX)
    pause_after_failures: int | None = _number(
        "So many failed runs in a row pause it; 0 for never.", FAILURES_MAX
    )
    owner: str | None = field(
        "The set it belongs to.",
        pattern=COMMAND,
        refused=(INVALID_SCHEDULE.about("owner").because(f"owner: use {COMMAND_WORDS}"),),
    )
    note: str | None = field("For people.", refused=(INVALID_SCHEDULE,))


def unknown_field(name: str, known: Sequence[str]) -> ApiError:
    """Return the 400 for a field that schedules do not have."""
    has = f"unknown field {name[:64]!r}; it has {', '.join(known)}"
    return INVALID_SCHEDULE.about(name[:64]).because(has)


SCHEDULE = Schema(ScheduleBody, unknown=unknown_field)


class PreviewBody(CalendarBody):
    """A schedule that need not exist, and the part of its instants to show."""

    from_: str | None = field(
        "Only instants after this one; now when absent. RFC 3339.",
        refused=(INVALID_FROM,),
        format="date-time",
    )
    count: int | None = field("How many instants.", ge=1, le=COUNT_MAX, default=COUNT_DEFAULT)


class ResumeBody(Body):
    """How a schedule goes on."""

    catch_up: bool | None = field(
        "The instants of the pause count as late ones; otherwise they do not count.", default=False
    )


class TriggerBody(Body):
    """A run that is asked for."""

    idempotency_key: str | None = field(
        "A repeated request with the same key makes no second run while the first is remembered.",
    )
    overlap: str | None = _choice(Overlap, "Instead of the schedule's own.")


class BackfillBody(Body):
    """Past instants that are to fire."""

    from_: str | None = field(
        "The first instant. RFC 3339.", required=True, refused=(INVALID_FROM,), format="date-time"
    )
    to: str | None = field(
        "The last instant. RFC 3339.", required=True, refused=(INVALID_TO,), format="date-time"
    )
    overlap: str | None = _choice(
        Overlap, "What happens to an instant while another run has not ended; `queue` when absent."
    )
    force: bool | None = field("Fire instants again whose task is still kept.", default=False)
    dry_run: bool | None = field("Only say which instants they are.", default=False)
    idempotency_key: str | None = field("A repeated request with the same key is the same.")


class ItemBody(ScheduleBody):
    """A schedule of a set."""

    id: str | None = field("Its name.", required=True, pattern=COMMAND, refused=(BAD_ID,))


ITEM = Schema(ItemBody, unknown=SCHEDULE.unknown)


class SetBody(Body):
    """All schedules of an owner; each has an `id` beside the fields of a schedule."""

    schedules: list[Raw] | None = field(
        "The schedules.",
        required=True,
        max_length=SET_MAX,
        each=ITEM,
        all_or_none=True,
        refused=(too_many("schedules", SET_MAX), INVALID_SCHEDULE),
    )
    revision: Int64 | None = field(
        "Of the set; a lower one than that which stands is refused.", ge=0, default=0
    )
    dry_run: bool | None = field("Change nothing, and say what would change.", default=False)


PREVIEW = Schema(PreviewBody)
RESUME = Schema(ResumeBody)
TRIGGER = Schema(TriggerBody)
BACKFILL = Schema(BackfillBody)
SET = Schema(SetBody)


async def plan_of(call: Call, body: ScheduleBody) -> Plan:
    """Return what a body says of a schedule.

    Raises:
        ApiError: 400; a field is refused, but for its calendar, which is not asked here.
    """
    missed = MISSED.decode_any(bytes(body.missed).decode())
    note = body.note or ""
    if len(note.encode()) > NOTE_BYTES_MAX:
        raise INVALID_SCHEDULE.about("note").because(f"note: at most {NOTE_BYTES_MAX} bytes")
    return Plan(
        timing=timing_of(body, start_at=body.start_at, end_at=body.end_at),
        task=await _template(call, body.task),
        overlap=chosen(Overlap, "overlap", body.overlap, INVALID_SCHEDULE.one_of) or Overlap.SKIP,
        missed=chosen(Missed, "missed.policy", missed.policy, INVALID_SCHEDULE.one_of)
        or Missed.ONE,
        window_s=WINDOW_S_DEFAULT if missed.window_seconds is None else missed.window_seconds,
        jitter_s=body.jitter_seconds or 0,
        max_runs=body.max_runs or 0,
        pause_after=body.pause_after_failures or 0,
        owner=body.owner or "",
        note=note,
    )


def timing_of(
    body: CalendarBody, *, start_at: str | None = None, end_at: str | None = None
) -> Timing:
    """Return when a body's schedule fires; raises ApiError for what cannot be an instant."""
    for name, text in (("cron", body.cron), ("every", body.every), ("offset", body.offset)):
        if text == "":
            raise INVALID_SCHEDULE.about(name).because(f"{name} is empty: leave it out")
    return Timing(
        cron=body.cron or "",
        every=body.every or "",
        offset=body.offset or "",
        zone=body.zone or UTC,
        start_ms=_instant_ms("startAt", start_at),
        end_ms=_instant_ms("endAt", end_at),
    )


def refused(error: InvalidSchedule | InvalidZone) -> ApiError:
    """Return the 400 for a calendar."""
    if isinstance(error, InvalidZone):
        return INVALID_ZONE.about("zone").because(str(error))
    return INVALID_SCHEDULE.about(error.field).because(str(error))


async def _template(call: Call, item: Raw) -> Create:
    if bytes(item) == b"null":
        raise INVALID_SCHEDULE.about("task").because("task is missing")
    task = replace(await task_within(call, item, "task"), trace_parent="", trace_state="")
    if task != template_of(task):
        own = "task: leave out idempotency key, start and delay: the schedule decides them"
        raise INVALID_SCHEDULE.about("task").because(own)
    if len(task.payload.encode()) > TEMPLATE_BYTES_MAX:
        raise TEMPLATE_TOO_LARGE
    return task


def _instant_ms(name: str, text: str | None) -> int:
    if text is None:
        return 0
    error = INVALID_SCHEDULE.about(name).because(f"{name}: use RFC 3339, from 1970 on")
    ms = instant_ms(text, error=error)
    if ms < 0:
        raise error
    return max(ms, 1)
