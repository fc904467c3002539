"""Scheduling: tasks that the broker creates again and again, and what has become of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from msgspec import Raw, Struct

from codeq_cluster.client.codecs import JSON, Codec
from codeq_cluster.client.producing import Duration, NewTask, body_of, whole_seconds

Interval: TypeAlias = timedelta | str  # A text is the broker's: `15m`, `1h30m`.


@dataclass(frozen=True, slots=True)
class NewSchedule:
    """A schedule to be put; what is None gets the broker's default.

    Attributes:
        id: Its name; 1 to 128 of A-Za-z0-9._:-, a letter or a digit first.
        task: The task of each run, without a key and a start of its own.
        cron: Five fields: minute, hour, day of the month, month, day of the week; six have seconds
            first; or `@daily` and its kin.
        zone: The time zone of `cron`, by its IANA name; None for UTC.
        every: Instead of `cron`: an interval, aligned to the Unix epoch.
        offset: How far each instant is behind a multiple of `every`.
        overlap: What happens to an instant while an earlier run has not ended: skip, queueOne,
            queue, allow or cancel; None for skip.
        missed: Which of the late instants fire: one, all or skip; None for one, the latest.
        missed_window: Those that are later than this never fire; None for a day.
        jitter: Each instant fires up to so much later, by a hash of the schedule and the instant.
        start_at: With its time zone; no instant before.
        end_at: With its time zone; no instant from then on.
        max_runs: It fires so often; None for ever.
        pause_after_failures: So many failed runs in a row pause it; None for never.
        note: For people.
    """

    id: str
    task: NewTask
    _: KW_ONLY
    cron: str | None = None
    zone: str | None = None
    every: Interval | None = None
    offset: Interval | None = None
    overlap: str | None = None
    missed: str | None = None
    missed_window: Duration | None = None
    jitter: Duration | None = None
    start_at: datetime | None = None
    end_at: datetime | None = None
    max_runs: int | None = None
    pause_after_failures: int | None = None
    note: str | None = None

    def document(self, codec: Codec = JSON) -> dict[str, object]:
        """Return it as the API has it; `codec` writes the payload of its task.

        Raises:
            ValueError: An instant has no time zone.
        """
        late: dict[str, object] = {}
        if self.missed is not None:
            late["policy"] = self.missed
        if self.missed_window is not None:
            late["windowSeconds"] = whole_seconds(self.missed_window)
        fields = {
            "cron": self.cron,
            "zone": self.zone,
            "every": _interval(self.every),
            "offset": _interval(self.offset),
            "overlap": self.overlap,
            "missed": late or None,
            "jitterSeconds": None if self.jitter is None else whole_seconds(self.jitter),
            "startAt": _instant("start_at", self.start_at),
            "endAt": _instant("end_at", self.end_at),
            "maxRuns": self.max_runs,
            "pauseAfterFailures": self.pause_after_failures,
            "note": self.note,
        }
        given = {name: value for name, value in fields.items() if value is not None}
        task = Raw(body_of(self.task, codec, keyless=True))
        return {"id": self.id, "task": task, **given}


ScheduleLike: TypeAlias = NewSchedule | Mapping[str, Any]  # A mapping is a schedule as in the API.


class InstantRecord(Struct, frozen=True, kw_only=True):
    """An instant of a schedule.

    Attributes:
        at: In UTC.
        local: What the clock of the schedule's zone shows then, or was to show.
        fold: 1 if the clock shows it for the second time.
    """

    at: datetime
    local: str
    fold: int = 0


class RunRecord(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A run of a schedule.

    Attributes:
        at: The instant it is for.
        status: `OPEN` until its task ends, `QUEUED` before there is one, then `COMPLETED`,
            `FAILED`, `CANCELLED` or `DEAD`.
        late: It could not fire in time.
    """

    at: datetime
    status: str
    task_id: str = ""
    late: bool = False
    ended_at: datetime | None = None


class MissedRecord(Struct, frozen=True, kw_only=True, rename="camel"):
    """What becomes of late instants of a schedule; `count` is how many did not fire."""

    policy: str
    window_seconds: int
    count: int


class BackfillRecord(Struct, frozen=True, kw_only=True, rename="camel"):
    """A backfill under way: how far it has come, and how many runs it has made."""

    done_until: datetime
    to: datetime
    made: int


class TemplateRecord(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The task of each run; 0 and an empty text stand for the queue's own."""

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


class ScheduleRecord(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A schedule as the broker keeps it, and what has become of it.

    Attributes:
        state: `active`, `paused` or `over`.
        version: Grows by one with every change.
        revision: Of the set that wrote it last; see `owner`.
        next: Its next instants.
        last_runs: The newest first.
        running: Runs whose tasks have not ended.
        queued: Runs that wait for them.
        made: Instants that have fired.
        skipped: Instants that did not, because another run was open.
        backfill: Under way; None for none.
        zone_rules: The release of the rules of time zones by which its next instant was found.
    """

    id: str
    state: str
    cron: str = ""
    every: str = ""
    offset: str = ""
    zone: str = ""
    task: TemplateRecord
    overlap: str
    missed: MissedRecord
    jitter_seconds: int = 0
    start_at: datetime | None = None
    end_at: datetime | None = None
    max_runs: int = 0
    pause_after_failures: int = 0
    owner: str = ""
    revision: int = 0
    note: str = ""
    version: int
    next: tuple[InstantRecord, ...]
    last_runs: tuple[RunRecord, ...]
    running: int
    queued: int
    made: int
    skipped: int
    paused_at: datetime | None = None
    paused_by: str = ""
    backfill: BackfillRecord | None = None
    zone_rules: str
    created_at: datetime
    updated_at: datetime


class Triggered(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A run that was asked for: `created`, `queued` or `skipped`; `task_id` once it is created."""

    outcome: str
    task_id: str = ""


class Backfilled(Struct, frozen=True, kw_only=True, rename="camel"):
    """How many past instants are to fire, and the first ten of them."""

    count: int
    instants: tuple[InstantRecord, ...] = ()
    dry_run: bool = False


class Applied(Struct, frozen=True, kw_only=True, rename="camel"):
    """The ids of an owner's schedules that were created, changed, left as they were, and removed.

    With `dry_run`, those that would be.
    """

    created: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    dry_run: bool = False


def document_of(schedule: ScheduleLike, codec: Codec = JSON) -> dict[str, Any]:
    """Return a schedule as the API has it, with its id."""
    return schedule.document(codec) if isinstance(schedule, NewSchedule) else dict(schedule)


def set_of(schedules: Iterable[ScheduleLike], *, revision: int, dry_run: bool) -> dict[str, Any]:
    """Return the body of a request that puts a set."""
    made = list(map(document_of, schedules))
    return {"schedules": made, "revision": revision, "dryRun": dry_run}


def _interval(given: Interval | None) -> str | None:
    return f"{whole_seconds(given)}s" if isinstance(given, timedelta) else given


def _instant(name: str, given: datetime | None) -> str | None:
    if given is None:
        return None
    if given.tzinfo is None:
        raise ValueError(f"{name}={given}: must be an instant with its time zone")
    return given.isoformat()
