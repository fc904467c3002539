"""Demo checks: each of them objects when what it promises does not hold."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import Raw

from codeq_cluster.cli.local.dev.demo_checks import (
    BURST,
    RATE_COUNT,
    Seen,
    completed_once,
    ended_once,
    fired_once,
    one_at_a_time,
    within_rate,
)
from codeq_cluster.client import GroupRecord, ScheduleRecord
from codeq_cluster.client.scheduling import MissedRecord, TemplateRecord

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> str:
    """Return an instant as the API writes it."""
    return (BEGAN + timedelta(seconds=seconds)).isoformat()


def row(name: str, *spans: tuple[float, float], **fields: Any) -> dict[str, Any]:
    """Return a completed task of one key, with its deliveries."""
    history = [{"startedAt": at(since), "endedAt": at(until)} for since, until in spans]
    ends = at(spans[-1][1] if spans else 1)
    task = {"id": name, "status": "COMPLETED", "key": "k", "createdAt": at(0), "updatedAt": ends}
    return {**task, "history": history, **fields}


def group(**fields: Any) -> GroupRecord:
    """Return a group of two that has ended."""
    known = {"total": 2, "live": 0, "completed": 2, "failed": 0, "cancelled": 0, "dead": 0}
    said: dict[str, Any] = {"id": "g", "status": "COMPLETED", "then_task_id": "then", **known}
    return GroupRecord(then_if="ended", on_failure="continue", created_at=BEGAN, **said | fields)


def then(**fields: Any) -> dict[str, Any]:
    """Return its completion task."""
    said = {"createdAt": at(2), "group": {"total": 2, "completed": 2}}
    return row("then", **said | fields)


def schedule(*, made: int, missed: int = 0) -> ScheduleRecord:
    """Return a schedule of every second."""
    return ScheduleRecord(
        id="s",
        state="paused",
        task=TemplateRecord(command="tick", payload=Raw(b"{}")),
        overlap="allow",
        missed=MissedRecord(policy="all", window_seconds=60, count=missed),
        version=1,
        next=(),
        last_runs=(),
        running=0,
        queued=0,
        made=made,
        skipped=0,
        zone_rules="",
        created_at=BEGAN,
        updated_at=BEGAN,
    )


@pytest.mark.parametrize(
    ("rows", "completed"),
    [
        ([row("b")], {"b": 1}),
        ([row("a", status="FAILED"), row("b")], {"b": 1}),
        ([row("a"), row("b")], {"a": 2, "b": 1}),
    ],
    ids=["lost", "failed", "twice"],
)
def test_a_task_that_did_not_end_exactly_once_is_found(
    rows: list[dict[str, Any]], completed: dict[str, int]
) -> None:
    """It is gone, has not completed, or two deliveries of it completed."""
    seen = Seen(acknowledged={"a", "b"}, completed=Counter(completed))

    assert not ended_once(seen, rows).holds
    assert ended_once(Seen(acknowledged={"a", "b"}), [row("a"), row("b")]).holds


@pytest.mark.parametrize(
    ("record", "thens"),
    [
        (group(completed=1), [then()]),
        (group(), []),
        (group(), [then(), then(id="twin")]),
        (group(), [then(createdAt=at(0.5))]),
        (group(), [then(group={"total": 2, "completed": 1})]),
    ],
    ids=["miscounted", "forgotten", "twice", "early", "untrue"],
)
def test_a_group_that_did_not_complete_once_is_found(
    record: GroupRecord, thens: list[dict[str, Any]]
) -> None:
    """So is one whose completion task is early or has other counts."""
    members = [row("a", (0, 1)), row("b", (0, 2))]

    assert not completed_once(record, members, thens).holds
    assert completed_once(group(), members, [then()]).holds


def test_two_tasks_of_one_key_at_once_are_found() -> None:
    """Those of another key may be in progress at the same time."""
    assert not one_at_a_time([row("a", (0, 2)), row("b", (1, 3))]).holds
    assert one_at_a_time([row("a", (0, 2)), row("b", (2, 3)), row("c", (1, 2), key="l")]).holds


def test_a_key_that_is_too_fast_is_found() -> None:
    """More than the burst may go only as the rate adds tokens."""
    every_s = 1 / RATE_COUNT
    kept = [row(f"{n}", (n * every_s, n * every_s)) for n in range(20)]
    burst = [row(f"b{n}", (-1, -1)) for n in range(BURST)]

    assert within_rate(kept + burst).holds
    assert not within_rate([*kept, row("more", (10 * every_s, 10 * every_s)), *kept[:2]]).holds


@pytest.mark.parametrize(
    ("seconds", "made", "missed"),
    [([1, 2, 4], 3, 0), ([1, 2, 2, 3], 3, 0), ([1, 2, 3], 4, 0), ([1, 2, 3], 3, 1)],
    ids=["forgotten", "twice", "lost", "missed"],
)
def test_an_instant_that_did_not_fire_once_is_found(
    seconds: list[int], made: int, missed: int
) -> None:
    """The schedule's own counts are held against its tasks."""
    ticks = [row(f"{n}", scheduledFor=at(each)) for n, each in enumerate(seconds)]
    whole = [row(f"{n}", scheduledFor=at(n)) for n in range(3)]

    assert not fired_once(schedule(made=made, missed=missed), ticks).holds
    assert fired_once(schedule(made=3), whole).holds


def test_a_promise_about_nothing_does_not_hold() -> None:
    """Work that never began must not end in a good verdict."""
    check = ended_once(Seen(), [])

    assert not check.holds
    assert str(check).startswith("unknown")
