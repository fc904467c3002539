"""Schedule views: the bodies of schedules, and what answers show of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from codeq_cluster.api.declared.bodies import REF, Body, Schema, field, instant_ms
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, bad_request
from codeq_cluster.api.http.refusals import body_too_large
from codeq_cluster.api.routes.task_views import NOON_MS, TASK_ID, show_handling
from codeq_cluster.api.routes.tasks import TASK_SCHEMA, TaskBody, new_task, refused_webhooks
from codeq_cluster.core.bounds import COMMAND
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.new_task import Create
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
    RunRow,
    Schedule,
    Timing,
)
from codeq_cluster.errors import InvalidSchedule, InvalidZone
from codeq_cluster.schedules.calendar import NAMED, Instant
from codeq_cluster.schedules.zones import zone_of

UTC = "UTC"
WINDOW_S_DEFAULT = 86_400

INVALID_SCHEDULE = bad_request("invalid schedule", "invalid-schedule")
INVALID_ZONE = bad_request("invalid zone", "invalid-zone")
TEMPLATE_TOO_LARGE = body_too_large(TEMPLATE_BYTES_MAX).about("task")


def _instant(text: str) -> Any:
    return field(text + " RFC 3339.", refused=(INVALID_SCHEDULE,), format="date-time")


def _number(text: str, most: int) -> Any:
    return field(text, ge=0, le=most, default=0)


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

    policy: Missed | None = field(
        "`one`: the latest of them fires; `all`: up to 1,000 of them fire, in order; `skip`: none.",
        default=Missed.ONE,
    )
    window_seconds: int | None = field(
        "Older ones never fire.", ge=0, le=WINDOW_S_MAX, default=WINDOW_S_DEFAULT
    )


class ScheduleBody(CalendarBody):
    """A schedule; absent fields get their defaults, even if an earlier version set them."""

    task: Raw = field(
        "The task of each run, as it is created; without `idempotencyKey`, `runAt` and "
        f"`delaySeconds`. Its payload has at most {TEMPLATE_BYTES_MAX} bytes.",
        default=Raw(b"null"),
        required=True,
        refused=(INVALID_SCHEDULE, TEMPLATE_TOO_LARGE),
        **{"$ref": REF.format(name=TaskBody.__name__)},
    )
    overlap: Overlap | None = field(
        "What happens to an instant while an earlier run has not ended: `skip` it; `queueOne`: one "
        "waits; `queue`: up to 1,000 wait; `allow`: it fires; `cancel`: the earlier run is "
        "cancelled.",
        default=Overlap.SKIP,
    )
    missed: MissedBody | None = field("Late instants.")
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
        "The set it belongs to.", pattern=COMMAND, refused=(INVALID_SCHEDULE,)
    )
    note: str | None = field("For people.", refused=(INVALID_SCHEDULE,))


def unknown_field(name: str, known: Sequence[str]) -> ApiError:
    """Return the 400 for a field that schedules do not have."""
    has = f"unknown field {name[:64]!r}; it has {', '.join(known)}"
    return INVALID_SCHEDULE.about(name[:64]).because(has)


SCHEDULE = Schema(ScheduleBody, refusal=INVALID_SCHEDULE.text, unknown=unknown_field)


class InstantView(Struct):
    """An instant of a schedule.

    `local` is its nominal time: what the zone's clock shows then or, if a change of the clock skips
    the time, was to show. `fold` is 1 if the clock shows it for the second time.
    """

    at: str
    local: str
    fold: int


class RunView(Struct, rename="camel", omit_defaults=True):
    """A run of a schedule: the instant it is for, and its task.

    `status` is `OPEN` until the task ends, `QUEUED` before there is one, and then COMPLETED,
    FAILED, CANCELLED or DEAD. `late` if it could not fire in time.
    """

    at: str
    status: str
    task_id: str = ""
    late: bool = False
    ended_at: str = ""


class MissedView(Struct, rename="camel"):
    """What becomes of late instants; `count` is how many did not fire."""

    policy: str
    window_seconds: int
    count: int


class BackfillView(Struct, rename="camel"):
    """A backfill under way: how far it has come, and how many runs it has made."""

    done_until: str
    to: str
    made: int


class TemplateView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """The task of each run; a viewer of the page does not see its payload."""

    command: str
    payload: Raw
    priority: int = 0
    webhook: str = ""
    max_attempts: int = 0
    ttl_seconds: int = 0
    timeout_seconds: int = 0
    backoff_policy: str = ""
    backoff_base_seconds: int = 0
    backoff_max_seconds: int = 0


class ScheduleView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A schedule, and what has become of it.

    `state` is `active`, `paused` or `over`. `next` are its next instants, of which a list has one;
    `lastRuns` its last runs, the newest first; `running` and `queued` how many have not ended and
    wait; `made` how many instants have fired, `skipped` how many did not because a run was open.
    """

    id: str
    state: str
    cron: str = ""
    every: str = ""
    offset: str = ""
    zone: str = ""
    task: TemplateView
    overlap: str
    missed: MissedView
    jitter_seconds: int = 0
    start_at: str = ""
    end_at: str = ""
    max_runs: int = 0
    pause_after_failures: int = 0
    owner: str = ""
    revision: int = 0
    note: str = ""
    version: int
    next: Sequence[InstantView]
    last_runs: Sequence[RunView]
    running: int
    queued: int
    made: int
    skipped: int
    paused_at: str = ""
    paused_by: str = ""
    backfill: BackfillView | UnsetType = UNSET
    zone_rules: str
    created_at: str
    updated_at: str


class SchedulePage(Struct):
    """A page of a list; the cursor is missing at its end."""

    schedules: Sequence[ScheduleView]
    cursor: str | UnsetType = UNSET


async def plan_of(call: Call, body: ScheduleBody) -> Plan:
    """Return what a body says of a schedule.

    Raises:
        ApiError: 400; a field is refused, but for its calendar, which is not asked here.
    """
    missed = body.missed or MissedBody()
    note = body.note or ""
    if len(note.encode()) > NOTE_BYTES_MAX:
        raise INVALID_SCHEDULE.about("note").because(f"note: at most {NOTE_BYTES_MAX} bytes")
    return Plan(
        timing=timing_of(body, start_at=body.start_at, end_at=body.end_at),
        task=await _template(call, body.task),
        overlap=body.overlap or Overlap.SKIP,
        missed=missed.policy or Missed.ONE,
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


def instant_view(instant: Instant) -> InstantView:
    """Render an instant."""
    return InstantView(rfc3339(instant.ms), instant.local, instant.fold)


def schedule_view(schedule: Schedule, coming: Sequence[Instant] | None = None) -> ScheduleView:
    """Render a schedule, with its next instants, or with the first of them alone."""
    plan, timing = schedule.plan, schedule.plan.timing
    walk = schedule.backfill
    if coming is None:
        coming = [_shown(schedule)] if schedule.next_ms and not _is_over(schedule) else []
    return ScheduleView(
        id=schedule.id,
        state="paused" if schedule.paused_ms else "over" if _is_over(schedule) else "active",
        cron=timing.cron,
        every=timing.every,
        offset=timing.offset,
        zone=timing.zone,
        task=_template_view(plan.task),
        overlap=plan.overlap.value,
        missed=MissedView(plan.missed.value, plan.window_s, schedule.missed),
        jitter_seconds=plan.jitter_s,
        start_at=_when(timing.start_ms),
        end_at=_when(timing.end_ms),
        max_runs=plan.max_runs,
        pause_after_failures=plan.pause_after,
        owner=plan.owner,
        revision=schedule.revision,
        note=plan.note,
        version=schedule.version,
        next=[instant_view(each) for each in coming],
        last_runs=_last_runs(schedule),
        running=len(schedule.open),
        queued=len(schedule.queued),
        made=schedule.made,
        skipped=schedule.skipped,
        paused_at=_when(schedule.paused_ms),
        paused_by=schedule.paused_by,
        backfill=UNSET
        if walk is None
        else BackfillView(rfc3339(walk.done_ms), rfc3339(walk.to_ms), walk.made),
        zone_rules=schedule.zone_rules,
        created_at=rfc3339(schedule.created_ms),
        updated_at=rfc3339(schedule.updated_ms),
    )


async def _template(call: Call, item: Raw) -> Create:
    if bytes(item) == b"null":
        raise INVALID_SCHEDULE.about("task").because("task is missing")
    body = TASK_SCHEMA.decode(item)
    own = ("idempotencyKey", body.idempotency_key), ("runAt", body.run_at)
    for name, value in (*own, ("delaySeconds", body.delay_seconds)):
        if value:
            raise INVALID_SCHEDULE.about(f"task.{name}").because(
                f"task.{name}: the schedule decides it, leave it out"
            )
    webhooks = await refused_webhooks(call, (body,)) if body.webhook else ()
    task = new_task(call, body, refused=webhooks)
    if len(task.payload.encode()) > TEMPLATE_BYTES_MAX:
        raise TEMPLATE_TOO_LARGE
    return replace(task, trace_parent="", trace_state="")


def _instant_ms(name: str, text: str | None) -> int:
    if text is None:
        return 0
    error = INVALID_SCHEDULE.about(name).because(f"{name}: use RFC 3339, from 1970 on")
    ms = instant_ms(text, error=error)
    if ms < 0:
        raise error
    return max(ms, 1)


def _is_over(schedule: Schedule) -> bool:
    return schedule.is_over or not schedule.next_ms


def _shown(schedule: Schedule) -> Instant:
    shown = zone_of(schedule.plan.timing.zone).shows(schedule.next_ms // 1000)
    local = shown.replace(fold=0).isoformat()
    return Instant(ms=schedule.next_ms, local=local, fold=shown.fold)


def _last_runs(schedule: Schedule) -> list[RunView]:
    rows = [(row, row.status) for row in schedule.recent]
    rows += [(row, "OPEN") for row in schedule.open]
    rows += [(row, "QUEUED") for row in schedule.queued]
    rows.sort(key=lambda each: each[0].at_ms, reverse=True)
    return [
        RunView(rfc3339(row.at_ms), status, row.task_id, row.late, _when(row.ended_ms))
        for row, status in rows[:10]
    ]


def _template_view(task: Create) -> TemplateView:
    view = TemplateView(
        command=task.command,
        payload=Raw(task.payload.encode()),
        priority=task.priority,
        webhook=task.webhook,
        max_attempts=task.max_attempts,
        ttl_seconds=task.ttl_ms // 1000,
    )
    show_handling(view, task.handling)
    return view


def _when(ms: int) -> str:
    return rfc3339(ms) if ms else ""


EXAMPLE = schedule_view(
    Schedule(
        tenant="acme",
        id="nightly-report",
        plan=Plan(
            timing=Timing(cron="30 2 * * MON-FRI", zone="Europe/Berlin"),
            task=Create(command="report", payload='{"region":"eu"}', priority=5),
        ),
        generation=1,
        version=2,
        done_ms=NOON_MS,
        next_ms=NOON_MS + 52_200_000,
        made=1,
        recent=(
            RunRow(
                name="1",
                at_ms=NOON_MS - 34_200_000,
                task_id=TASK_ID,
                status="COMPLETED",
                ended_ms=NOON_MS - 34_100_000,
            ),
        ),
        zone_rules="2026f",
        created_ms=NOON_MS - 86_400_000,
        updated_ms=NOON_MS,
    )
)
