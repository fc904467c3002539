"""Schedules: the client says when tasks are created, and reads what has become of it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import fields as fields_of

from codeq_cluster.api.routes.schedule_bodies import ScheduleBody
from codeq_cluster.api.routes.schedule_views import ScheduleView
from codeq_cluster.auth.identity import WORKER_SCOPES
from codeq_cluster.client import (
    NewSchedule,
    NewTask,
    Operator,
    Refused,
    ScheduleRecord,
    SyncOperator,
    Task,
    Worker,
)
from codeq_cluster.client.schedules import Schedules
from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.testing.broker import TOKEN, LocalBroker
from tests.harness.waiting import until

NIGHTLY = NewSchedule(
    "nightly",
    NewTask("report", {"region": "eu"}, priority=5, timeout=timedelta(minutes=10)),
    cron="30 2 * * MON-FRI",
    zone="Europe/Berlin",
    overlap="queueOne",
    missed="all",
    missed_window=timedelta(hours=2),
    jitter=90,
    start_at=datetime(2026, 1, 1, tzinfo=UTC),
    end_at=datetime(2096, 1, 1, tzinfo=UTC),
    max_runs=1000,
    pause_after_failures=3,
    note="for the board",
)
NEVER = datetime(2090, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """Run a broker whose workers have other tokens too: one for a command, one without a scope."""
    all_ = {"token": TOKEN, "subject": "test", "scopes": sorted(WORKER_SCOPES), "eventTypes": ["*"]}
    few = {
        "token": "narrow",
        "subject": "narrow",
        "scopes": ["codeq:schedule"],
        "eventTypes": ["allowed"],
    }
    none = {"token": "unscoped", "subject": "u", "scopes": ["codeq:claim"], "eventTypes": ["*"]}
    worker = {"kind": "static", "tokens": [all_, few, none]}
    with LocalBroker(
        tmp_path_factory.mktemp("broker"), settings={"auth": {"worker": [worker]}}
    ) as running:
        yield running


def test_every_field_of_the_api_can_be_said_and_read() -> None:
    """A schedule of the client has them all, and so has the record."""
    every = NewSchedule("other", NewTask("c", 1), every="1h", offset=timedelta(minutes=5))
    said = NIGHTLY.document().keys() | every.document().keys()
    known = {field.encode_name for field in fields_of(ScheduleBody)}
    read = {field.encode_name for field in fields_of(ScheduleRecord)}

    assert known - {"owner"} == said - {"id"}
    assert {field.encode_name for field in fields_of(ScheduleView)} == read
    assert ["every", "offset"] == [
        each.name for each in fields(NIGHTLY) if getattr(NIGHTLY, each.name) is None
    ]


def test_the_sync_operator_has_every_call() -> None:
    """Both faces have the same calls with the same arguments."""
    calls = {
        name: call
        for name, call in inspect.getmembers(Schedules, inspect.iscoroutinefunction)
        if "schedule" in name
    }

    assert 10 == len(calls)
    for name, call in calls.items():
        assert inspect.signature(call) == inspect.signature(getattr(SyncOperator, name))


async def test_a_schedule_is_put_read_changed_and_deleted(broker: LocalBroker) -> None:
    """Each answer is the schedule as it then stands."""
    async with broker.operator() as operator:
        made = await operator.put_schedule(NIGHTLY)
        again = await operator.put_schedule(NIGHTLY)
        changed = await operator.put_schedule({"id": "nightly", **_hourly("report")})
        read = await operator.schedule("nightly")
        await operator.delete_schedule("nightly")
        await operator.delete_schedule("nightly")
        with pytest.raises(Refused) as gone:
            await operator.schedule("nightly")

    assert ("nightly", "active", 1) == (made.id, made.state, made.version)
    assert ("30 2 * * MON-FRI", "Europe/Berlin", "queueOne") == (made.cron, made.zone, made.overlap)
    assert ("all", 7200, 0) == (
        made.missed.policy,
        made.missed.window_seconds,
        made.missed.count,
    )
    assert (90, 1000, 3) == (made.jitter_seconds, made.max_runs, made.pause_after_failures)
    assert (NIGHTLY.start_at, NIGHTLY.end_at) == (made.start_at, made.end_at)
    assert ("report", b'{"region":"eu"}', 5, 600) == (
        made.task.command,
        bytes(made.task.payload),
        made.task.priority,
        made.task.timeout_seconds,
    )
    assert 10 == len(made.next)
    assert {"02:30:00"} == {each.local[11:] for each in made.next}
    assert made == again
    assert (2, "1h", "") == (changed.version, changed.every, changed.cron)
    assert changed == read
    assert 404 == gone.value.status


async def test_schedules_are_listed_in_pages(broker: LocalBroker) -> None:
    """A page has those of an owner, each with its first instant alone."""
    async with broker.operator() as operator:
        ids = [f"listed-{n}" for n in range(5)]
        await operator.apply_schedules("lister", [{"id": each, **_hourly()} for each in ids])
        await operator.put_schedule({"id": "listed-by-nobody", **_hourly()})
        found: list[Any] = []
        cursor = ""
        while True:
            page = await operator.schedules(owner="lister", limit=2, cursor=cursor)
            found += page.rows
            if not (cursor := page.cursor):
                break
        emptied = await operator.apply_schedules("lister", [])

    assert ids == [row["id"] for row in found] == list(emptied.removed)
    assert {1} == {len(row["next"]) for row in found}


def test_a_run_is_asked_for_without_an_event_loop(broker: LocalBroker) -> None:
    """It is made although the schedule is paused, once for its key, and is listed as a run."""
    with broker.sync_operator() as operator, broker.sync_client() as client:
        operator.put_schedule(NewSchedule("asked", NewTask("asked", [1]), every="366d"))
        paused = operator.pause_schedule("asked")
        run = operator.trigger_schedule("asked", idempotency_key="once")
        again = operator.trigger_schedule("asked", idempotency_key="once")
        refused = operator.trigger_schedule("asked")
        other = operator.trigger_schedule("asked", overlap="allow")
        queued = operator.trigger_schedule("asked", overlap="queue")
        task = client.task(run.task_id)
        known = operator.schedule("asked")
        resumed = operator.resume_schedule("asked", catch_up=True)
        for each in (run, other):
            client.cancel(each.task_id)
        operator.delete_schedule("asked")

    assert ("paused", "test", "active") == (paused.state, paused.paused_by, resumed.state)
    assert ("created", run) == (run.outcome, again)
    assert ("skipped", "created", "queued") == (refused.outcome, other.outcome, queued.outcome)
    assert run.task_id != other.task_id
    assert ("asked", "[1]", "asked") == (task.command, task.payload, task.schedule_id)
    assert (2, 1, 0) == (known.running, known.queued, known.skipped)
    assert {"OPEN", "QUEUED"} == {each.status for each in known.last_runs}
    assert {run.task_id, other.task_id, ""} == {each.task_id for each in known.last_runs}


async def test_past_instants_fire_when_they_are_asked_for(broker: LocalBroker) -> None:
    """A dry run says which they are; one key is one backfill."""
    first, last = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 1, 11, tzinfo=UTC)
    async with broker.operator() as operator:
        await operator.put_schedule(NewSchedule("back", NewTask("back", 1), every="1h"))
        shown = await operator.backfill_schedule("back", first=first, last=last, dry_run=True)
        before = await operator.schedule("back")
        for _ in range(2):
            begun = await operator.backfill_schedule(
                "back", first=first, last=last, overlap="allow", idempotency_key="once"
            )
        known = await until(_filled(operator, "back"), what="the runs of the backfill")
        await operator.purge("back")

    assert (12, True) == (shown.count, shown.dry_run)
    assert 10 == len(shown.instants)
    assert first == shown.instants[0].at
    assert (0, 0, None) == (before.running, before.queued, before.backfill)
    assert (12, False) == (begun.count, begun.dry_run)
    assert 12 == known.running


async def test_a_worker_puts_the_schedules_of_its_handlers(broker: LocalBroker) -> None:
    """What a release has no more is removed; its tasks reach the handlers by themselves."""
    seen: list[Task[Any]] = []

    def release(*, weekly: bool) -> Worker:
        worker = broker.worker()

        @worker.task("tick", every=timedelta(seconds=1), overlap="skip")
        async def tick(task: Task[Any]) -> None:
            seen.append(task)

        if weekly:

            @worker.task(
                "tidy", cron="@weekly", zone="Europe/Berlin", schedule_id="w", payload={"all": True}
            )
            async def tidy(_: Task[Any]) -> None: ...

        @worker.task("by-hand")
        async def by_hand(_: Task[Any]) -> None: ...

        return worker

    first, second = release(weekly=True), release(weekly=False)
    async with broker.operator() as operator:
        planned = await first.apply_schedules(owner="app", dry_run=True)
        nothing = await operator.schedules(owner="app")
        made = await first.apply_schedules(owner="app", revision=1)
        same = await first.apply_schedules(owner="app", revision=1)
        weekly = await operator.schedule("w")
        await second.serve(tasks_max=2)
        later = await second.apply_schedules(
            owner="app",
            revision=2,
            others=[NewSchedule("more", NewTask("tick", 1), cron="@yearly")],
        )
        with pytest.raises(Refused, match="a later revision of the set stands: revision 2"):
            await first.apply_schedules(owner="app", revision=1)
        left = await operator.schedules(owner="app")
        await operator.apply_schedules("app", [])

    assert (("tick", "w"), True, []) == (planned.created, planned.dry_run, nothing.rows)
    assert (("tick", "w"), False) == (made.created, made.dry_run)
    assert (("tick", "w"), ()) == (same.unchanged, same.created)
    assert ("@weekly", "Europe/Berlin", "tidy") == (weekly.cron, weekly.zone, weekly.task.command)
    assert b'{"all":true}' == bytes(weekly.task.payload)
    assert (("more",), ("w",), ("tick",)) == (later.created, later.removed, later.unchanged)
    assert ["more", "tick"] == [row["id"] for row in left.rows]
    assert [({}, "tick")] * 2 == [(task.payload, task.record.schedule_id) for task in seen]
    [one, other] = [datetime.fromisoformat(task.record.scheduled_for) for task in seen]
    assert one < other
    assert {0} == {one.microsecond, other.microsecond}


async def test_a_worker_schedules_what_its_token_allows(broker: LocalBroker) -> None:
    """It needs the scope, and the commands of the set; nothing is changed otherwise."""
    unscoped, narrow = (
        Worker([broker.url], token=token, discover=False) for token in ("unscoped", "narrow")
    )

    def scheduled(worker: Worker, command: str) -> None:
        @worker.task(command, cron="@yearly")
        async def handler(_: Task[Any]) -> None: ...

    scheduled(unscoped, "allowed")
    scheduled(narrow, "allowed")
    with pytest.raises(Refused, match="missing scope"):
        await unscoped.apply_schedules(owner="narrow")
    made = await narrow.apply_schedules(owner="narrow")
    scheduled(narrow, "elsewhere")
    with pytest.raises(Refused, match="event type not allowed"):
        await narrow.apply_schedules(owner="narrow")
    async with broker.operator() as operator:
        await operator.apply_schedules("ops", [NewSchedule("ops", NewTask("c", 1), cron="@daily")])
        with pytest.raises(Refused, match="event type not allowed"):
            await Worker([broker.url], token="narrow").apply_schedules(owner="ops")
        with pytest.raises(
            Refused, match="the schedule belongs to another owner: its owner is nar"
        ):
            await operator.apply_schedules("ops", [NIGHTLY, {"id": "allowed", **_hourly("c")}])
        found = await operator.schedules(owner="narrow")
        theirs = await operator.schedules(owner="ops")
        for owner in ("narrow", "ops"):
            await operator.apply_schedules(owner, [])

    assert ("allowed",) == made.created
    assert ["allowed"] == [row["id"] for row in found.rows]
    assert ["ops"] == [row["id"] for row in theirs.rows]


@pytest.mark.parametrize(
    ("commands", "options", "said"),
    [
        (("a", "b"), {"cron": "@daily"}, "a schedule is for one command"),
        (("*",), {"every": "1h"}, "a schedule is for one command"),
        (("a",), {"cron": "@daily", "schedule_id": "known"}, "give another schedule_id"),
        (("a",), {"zone": "Europe/Berlin"}, "give it cron or every"),
        (("a",), {"payload": 1}, "give it cron or every"),
        (("a",), {"overlap": "allow"}, "give it cron or every"),
        (("a",), {"schedule_id": "a"}, "give it cron or every"),
    ],
)
def test_a_handler_without_a_schedule_of_its_own_is_refused(
    commands: tuple[str, ...], options: dict[str, Any], said: str
) -> None:
    """The error comes where the handler is registered."""
    worker = Worker(["http://127.0.0.1:1"], token="t")

    async def handler(_: Task[Any]) -> None: ...

    worker.task("known", cron="@daily")(handler)
    with pytest.raises(ConfigInvalid, match=said):
        worker.task(*commands, **options)(handler)


def test_an_instant_needs_its_time_zone() -> None:
    """Nobody guesses which clock was meant."""
    naive = NewSchedule("s", NewTask("c", 1), cron="@daily", end_at=datetime(2027, 1, 1))  # noqa: DTZ001

    with pytest.raises(ValueError, match="end_at=2027-01-01 00:00:00: must be an instant"):
        naive.document()


def test_durations_are_in_whole_seconds() -> None:
    """An interval is a text of the broker, or a duration."""
    task = NewTask("c", msgspec.Raw(b"[1.0]"))
    made = NewSchedule("s", task, every=timedelta(minutes=90), offset="5m", jitter=0.5).document()

    assert ("5400s", "5m", 1) == (made["every"], made["offset"], made["jitterSeconds"])
    assert b'{"command":"c","payload":[1.0],"priority":0}' == bytes(made["task"])  # type: ignore[call-overload]


def _hourly(command: str = "hourly") -> dict[str, object]:
    return {"every": "1h", "startAt": NEVER.isoformat(), "task": {"command": command, "payload": 1}}


def _filled(operator: Operator, schedule_id: str) -> Any:
    async def filled() -> ScheduleRecord | None:
        known = await operator.schedule(schedule_id)
        return known if known.backfill is None else None

    return filled
