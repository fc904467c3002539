"""Schedules: tasks that are created again and again, and the operations on them.

A schedule lives on the shard of its name, and so do the tasks it makes: a firing, with its task, is
one entry. Instants come from calendars, which are outside the core; the core decides only what
becomes of an instant. Every instant up to `done_ms` is decided, so none is decided twice.
"""

from __future__ import annotations

from enum import StrEnum
from hashlib import blake2b
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import replace

from codeq_cluster.core.bounds import (
    NUMBER_MAX,
    OWNER,
    IdOrNone,
    Instant,
    Name,
    NameOrNone,
    Number,
    Owner,
    Seq,
    Subject,
    listed,
    sound,
    sound_or_none,
    text,
    whole,
)
from codeq_cluster.core.crossing import Crossing
from codeq_cluster.core.new_task import Create, sound_create, template_of
from codeq_cluster.core.sharding import shard_of_key
from codeq_cluster.core.stored_item import Place, StoredItem
from codeq_cluster.core.task import Run, RunName

SCHEDULES_MAX = 100_000  # Of one tenant, on one shard.
TEMPLATE_BYTES_MAX = 65_536
OPEN_MAX = 1000  # Runs of a schedule that have not ended; each is about 60 bytes of its row.
QUEUED_MAX = 1000
RECENT_MAX = 10
WINDOW_S_MAX = 31 * 86_400
JITTER_S_MAX = 3600
RUNS_COUNT_MAX = 10**9
FAILURES_MAX = 1000
NOTE_BYTES_MAX = 1024
CALENDAR_BYTES_MAX = 256

# One entry carries a firing, so it has as many tasks as a walk has in one step.
FIRED_MAX = 48
FIRED_BYTES_MAX = 2**19

PAUSED_BY_FAILURES = "failures"
PAUSED_BY_RESTORE = "restore"
PAUSED_BY_IMPORT = "import"

_Calendar: TypeAlias = Annotated[str, text(CALENDAR_BYTES_MAX)]


class Overlap(StrEnum):
    """What happens to an instant while an earlier run has not ended; see docs/schedules.md."""

    SKIP = "skip"
    QUEUE_ONE = "queueOne"
    QUEUE = "queue"
    ALLOW = "allow"
    CANCEL = "cancel"


class Missed(StrEnum):
    """Which of the instants that could not fire in time fire late."""

    ONE = "one"
    ALL = "all"
    SKIP = "skip"


def _sound_template(value: object) -> str:
    assert isinstance(value, Create)
    if value != template_of(value):
        return "must have no id, tenant, key or start of its own"
    if len(value.payload.encode()) > TEMPLATE_BYTES_MAX:
        return f"must have a payload of at most {TEMPLATE_BYTES_MAX} bytes"
    return sound_create(replace(value, id="run"))


class Timing(Struct, frozen=True, array_like=True, kw_only=True):
    """When a schedule fires, as its author says it: `cron` or `every`.

    Attributes:
        start_ms: No instant before; 0 for any.
        end_ms: No instant from then on; 0 for any.
    """

    cron: _Calendar = ""
    every: _Calendar = ""
    offset: _Calendar = ""
    zone: _Calendar = "UTC"
    start_ms: Instant = 0
    end_ms: Instant = 0


class Plan(Struct, frozen=True, array_like=True, kw_only=True):
    """Everything that the author of a schedule says of it.

    Attributes:
        task: Each run's task, without id, tenant and key.
        window_s: Instants that are later than this do not fire.
        jitter_s: Each instant fires up to so much later, by a hash of itself.
        max_runs: It fires so often; 0 for ever.
        pause_after: So many failed runs in a row pause it; 0 for never.
        owner: The set it belongs to; empty for none.
        note: For people.
    """

    timing: Annotated[Timing, sound]
    task: Annotated[Create, _sound_template]
    overlap: Overlap = Overlap.SKIP
    missed: Missed = Missed.ONE
    window_s: Annotated[int, whole(0, WINDOW_S_MAX)] = 86_400
    jitter_s: Annotated[int, whole(0, JITTER_S_MAX)] = 0
    max_runs: Annotated[int, whole(0, RUNS_COUNT_MAX)] = 0
    pause_after: Annotated[int, whole(0, FAILURES_MAX)] = 0
    owner: NameOrNone = ""
    note: Annotated[str, text(NOTE_BYTES_MAX)] = ""


class RunRow(Struct, frozen=True, array_like=True, kw_only=True):
    """One run of a schedule.

    Attributes:
        name: See `Run`.
        at_ms: Its instant.
        task_id: Empty until there is a task.
        late: It fired late.
        status: COMPLETED, FAILED, CANCELLED or DEAD; empty before its end.
        made_ms: When its task was made; 0 before.
    """

    name: RunName
    at_ms: Instant
    task_id: IdOrNone = ""
    late: bool = False
    status: NameOrNone = ""
    ended_ms: Instant = 0
    made_ms: Instant = 0


class Backfill(Struct, frozen=True, array_like=True, kw_only=True):
    """A walk over instants that are to fire again or for the first time.

    Attributes:
        name: Of the request; part of the runs' names if these are made although a task is kept.
        done_ms: The walk has decided every instant up to it.
        to_ms: And ends with this one.
        made: Runs so far.
    """

    name: Name
    done_ms: Instant
    to_ms: Instant
    overlap: Overlap
    force: bool = False
    made: Number = 0


class Schedule(StoredItem, frozen=True, array_like=True, tag="sched", kw_only=True):
    """A schedule, with what has become of it.

    Attributes:
        generation: Another one after every deletion, so that a new schedule of an old name makes
            other tasks; grows with time.
        version: Grows by one with every change of the plan.
        done_ms: Every instant up to it is decided.
        next_ms: The first instant after that; 0 for none.
        last_ms: The last instant that made a run; 0 for none.
        last_local: What the zone's clock showed then; `last_fold` is 1 for the second time.
        made: Runs that instants have made.
        caught_up: Late runs since the last that was in time.
        open: Runs whose tasks have not ended.
        queued: Runs that wait for the open ones.
        recent: The runs that ended last, the newest at the end.
        missed: Instants that did not fire, because they were late or refused.
        skipped: Instants that did not fire, because another run was open.
        failures: Failed runs in a row.
        zone_rules: The release of the rules of time zones by which `next_ms` was found.
        revision: Of the set that wrote it last; see `owner`.
        request: The request that changed it last.
    """

    place = Place.NAME

    tenant: Owner
    id: Name
    plan: Annotated[Plan, sound]
    generation: Seq
    version: Annotated[int, whole(1, NUMBER_MAX)] = 1
    done_ms: Instant = 0
    next_ms: Instant = 0
    last_ms: Instant = 0
    last_local: _Calendar = ""
    last_fold: Annotated[int, whole(0, 1)] = 0
    made: Number = 0
    caught_up: Number = 0
    open: Annotated[
        tuple[RunRow, ...], Meta(max_length=OPEN_MAX), listed(OPEN_MAX, sound, unique=False)
    ] = ()
    queued: Annotated[
        tuple[RunRow, ...], Meta(max_length=QUEUED_MAX), listed(QUEUED_MAX, sound, unique=False)
    ] = ()
    recent: Annotated[
        tuple[RunRow, ...], Meta(max_length=RECENT_MAX), listed(RECENT_MAX, sound, unique=False)
    ] = ()
    missed: Number = 0
    skipped: Number = 0
    failures: Number = 0
    zone_rules: _Calendar = ""
    paused_ms: Instant = 0
    paused_by: Subject = ""
    revision: Number = 0
    backfill: Annotated[Backfill | None, sound_or_none] = None
    created_ms: Instant = 0
    updated_ms: Instant = 0
    request: NameOrNone = ""

    @property
    def shard_name(self) -> str:
        """Return the name that decides its shard."""
        return f"schedule/{self.id}"

    @property
    def fires_ms(self) -> int:
        """Return when the leader has to look at it; 0 for never."""
        if self.backfill is not None and self.has_room(self.backfill.overlap):
            return max(1, self.backfill.done_ms)
        if self.paused_ms or self.is_over or not self.next_ms:
            return 0
        return self.next_ms + jitter_ms(self, self.next_ms)

    @property
    def is_over(self) -> bool:
        """Return whether it has fired as often as it may."""
        return 0 < self.plan.max_runs <= self.made

    @property
    def holds_queue(self) -> bool:
        """Return whether runs that wait go on waiting when no other is open."""
        return self.paused_by == PAUSED_BY_FAILURES

    def has_room(self, overlap: Overlap) -> bool:
        """Return whether a backfill has room for more runs."""
        if overlap is Overlap.ALLOW:
            return len(self.open) <= OPEN_MAX - FIRED_MAX
        return len(self.queued) < FIRED_MAX


def held_back(schedule: Schedule, *, by: str, now_ms: int) -> Schedule:
    """Return a schedule that comes from elsewhere, so that it does not fire in two places."""
    if schedule.paused_ms:
        return schedule
    return replace(schedule, paused_ms=max(1, now_ms), paused_by=by)


def schedule_shard(tenant: str, schedule_id: str, shards: int) -> int:
    """Return the shard of a schedule, and of the tasks it makes."""
    return shard_of_key(tenant, f"schedule/{schedule_id}", shards)


def jitter_ms(schedule: Schedule, at_ms: int) -> int:
    """Return how much later an instant fires: the same on every leader and in every preview."""
    return jitter_of(schedule.id, schedule.plan.jitter_s, at_ms)


def jitter_of(schedule_id: str, jitter_s: int, at_ms: int) -> int:
    """Return the same of a schedule with this id and this bound of its jitter, milliseconds."""
    if not jitter_s:
        return 0
    digest = blake2b(f"{schedule_id}/{at_ms}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % (jitter_s * 1000)


class _Asked(Struct, frozen=True, array_like=True, kw_only=True):
    """What everybody says who changes a schedule."""

    request: str
    tenant: str
    id: str
    by: str


class PutSchedule(_Asked, frozen=True, array_like=True, tag="put_schedule", kw_only=True):
    """Create or change a schedule.

    Attributes:
        at_ms: The caller's wall clock: a new calendar begins then.
        next_ms: The first instant of the plan's calendar after that; 0 for none.
        revision: Of the set that writes it; 0 for none. A row of a later one stands.
        own: Another owner's schedule is refused.
    """

    plan: Plan
    at_ms: int
    next_ms: int
    zone_rules: str
    revision: int = 0
    own: bool = False


class DeleteSchedule(_Asked, frozen=True, array_like=True, tag="delete_schedule", kw_only=True):
    """Delete a schedule; its runs go on. Fields as in `PutSchedule`."""

    revision: int = 0


class PauseSchedule(_Asked, frozen=True, array_like=True, tag="pause_schedule", kw_only=True):
    """Let a schedule fire no more."""


class ResumeSchedule(_Asked, frozen=True, array_like=True, tag="resume_schedule", kw_only=True):
    """Let a schedule fire again.

    Attributes:
        catch_up: The instants of the pause count as late; otherwise they count for nothing.
        at_ms: As in `PutSchedule`, and so are the next two.
        version: Of the schedule whose calendar was asked; 0 for any.
    """

    catch_up: bool
    at_ms: int
    next_ms: int
    zone_rules: str
    version: int = 0


class TriggerSchedule(_Asked, frozen=True, array_like=True, tag="trigger_schedule", kw_only=True):
    """Make a run now, whatever the calendar says; a second one of the same name is a retry.

    Attributes:
        overlap: Instead of the schedule's own; None for that.
    """

    name: str
    at_ms: int
    overlap: Overlap | None = None


class BackfillSchedule(_Asked, frozen=True, array_like=True, tag="backfill_schedule", kw_only=True):
    """Begin a walk over past instants; one of the same name is a retry."""

    backfill: Backfill


class Due(Struct, frozen=True, array_like=True):
    """An instant that fires.

    Attributes:
        local: The nominal time; see `calendar.Instant`.
        late: It could not fire in time.
        missed: How many instants right before it do not fire.
    """

    at_ms: int
    local: str = ""
    fold: int = 0
    late: bool = False
    missed: int = 0


class Fire(Struct, frozen=True, array_like=True, tag="fire", kw_only=True):
    """Decide the instants of a schedule from `from_ms` to `done_ms`; the leader's own operation.

    Attributes:
        version: Of the schedule that was looked at.
        from_ms: The schedule's `done_ms`; if it is another one, nothing happens.
        runs: Those that fire, in order.
        missed: How many behind the last of these do not.
        done_ms: The last one.
        next_ms: The first one after it; 0 for none.
        zone_rules: The rules of time zones by which they were found.
    """

    tenant: str
    id: str
    generation: int
    version: int
    from_ms: int
    runs: tuple[Due, ...]
    missed: int
    done_ms: int
    next_ms: int
    zone_rules: str

    @property
    def half(self) -> Fire:
        """Return the first half of several runs; the others stay due."""
        runs = self.runs[: len(self.runs) // 2]
        next_ms = self.runs[len(runs)].at_ms
        return replace(self, runs=runs, missed=0, done_ms=runs[-1].at_ms, next_ms=next_ms)


class FillBack(Struct, frozen=True, array_like=True, tag="fill_back", kw_only=True):
    """Take a step of a backfill; the leader's own operation. Fields as in `Fire`."""

    tenant: str
    id: str
    generation: int
    from_ms: int
    runs: tuple[Due, ...]
    done_ms: int

    @property
    def half(self) -> FillBack:
        """Return the first half of several runs; the walk goes on behind them."""
        runs = self.runs[: len(self.runs) // 2]
        return replace(self, runs=runs, done_ms=runs[-1].at_ms)


ScheduleOperation = (
    PutSchedule
    | DeleteSchedule
    | PauseSchedule
    | ResumeSchedule
    | TriggerSchedule
    | BackfillSchedule
    | Fire
    | FillBack
)


class RunEnded(Crossing, frozen=True, array_like=True, tag="run_ended", kw_only=True):
    """The end of a run's task, as it is relayed to the schedule's shard."""

    tenant: Annotated[str, OWNER]
    run: Annotated[Run, sound]
    status: Name
    ended_ms: Instant

    def home(self, shards: int) -> int:
        """Return the shard of the schedule, of so many."""
        return schedule_shard(self.tenant, self.run.schedule, shards)
