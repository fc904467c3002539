"""Schedule views: the bodies of schedules, and what answers show of them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Raw, Struct, UnsetType

from codeq_cluster.api.declared.wide import Int64
from codeq_cluster.api.routes.task_views import NOON_MS, TASK_ID, show_handling
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.schedules import Plan, RunRow, Schedule, Timing
from codeq_cluster.schedules.calendar import Instant
from codeq_cluster.schedules.zones import zone_of

LAST_RUNS_MAX = 10


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
    FAILED, CANCELLED or DEAD. `late` if it could not fire in time; `madeAt` is when its task was
    made.
    """

    at: str
    status: str
    task_id: str = ""
    late: bool = False
    made_at: str = ""
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
    """The task of each run; a viewer of the page sees neither payload nor metadata."""

    command: str
    payload: Raw
    priority: int = 0
    key: str = ""
    cost: int = 1
    webhook: str = ""
    max_attempts: int = 0
    ttl_seconds: int = 0
    timeout_seconds: int = 0
    backoff_policy: str = ""
    backoff_base_seconds: int = 0
    backoff_max_seconds: int = 0
    tags: dict[str, str] | UnsetType = UNSET
    metadata: Raw | UnsetType = UNSET


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
    revision: Int64 = 0
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
        last_runs=[run_view(*each) for each in known_runs(schedule)[:LAST_RUNS_MAX]],
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


def known_runs(schedule: Schedule) -> list[tuple[RunRow, str]]:
    """Return every run that the schedule remembers, with its status, the latest instant first."""
    rows = [(row, row.status) for row in schedule.recent]
    rows += [(row, "OPEN") for row in schedule.open]
    rows += [(row, "QUEUED") for row in schedule.queued]
    return sorted(rows, key=lambda each: each[0].at_ms, reverse=True)


def run_view(row: RunRow, status: str) -> RunView:
    """Render a run."""
    return RunView(
        at=rfc3339(row.at_ms),
        status=status,
        task_id=row.task_id,
        late=row.late,
        made_at=_when(row.made_ms),
        ended_at=_when(row.ended_ms),
    )


def _is_over(schedule: Schedule) -> bool:
    return schedule.is_over or not schedule.next_ms


def _shown(schedule: Schedule) -> Instant:
    shown = zone_of(schedule.plan.timing.zone).shows(schedule.next_ms // 1000)
    local = shown.replace(fold=0).isoformat()
    return Instant(ms=schedule.next_ms, local=local, fold=shown.fold)


def _template_view(task: Create) -> TemplateView:
    view = TemplateView(
        command=task.command,
        payload=Raw(task.payload.encode()),
        priority=task.priority,
        key=task.key,
        cost=task.cost,
        webhook=task.webhook,
        max_attempts=task.max_attempts,
        ttl_seconds=task.ttl_ms // 1000,
        tags=dict(task.tags) or UNSET,
        metadata=Raw(task.metadata.encode()) if task.metadata else UNSET,
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
                made_ms=NOON_MS - 34_199_500,
            ),
        ),
        zone_rules="2026f",
        created_ms=NOON_MS - 86_400_000,
        updated_ms=NOON_MS,
    )
)
