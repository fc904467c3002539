"""Events: the changes between two looks at a cluster."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from codeq_cluster.cli.operate.events import Event, audited, begun, between, counted, died
from codeq_cluster.cli.operate.look import (
    Flowed,
    FlowLine,
    Look,
    OverviewLines,
    ProblemLine,
    ServingNodeLine,
    ShardLine,
)

_AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


def _look(*problems: str, leader: str | None = "n1", trouble: str = "") -> Look:
    return Look(
        at_s=0.0,
        cluster="c",
        serving=ServingNodeLine(node="n1"),
        totals=None,
        overview=OverviewLines(problems=[_problem(text) for text in problems]),
        shards=(ShardLine(0, "n1", leader, 7),),
        trouble=trouble,
    )


def _problem(text: str) -> ProblemLine:
    """Return a problem whose text is its id, a colon and a figure."""
    return ProblemLine(text.partition(":")[0], "bad", text)


def _dead(**attempt: str) -> dict[str, object]:
    """Return a dead letter with one attempt."""
    return {
        "updatedAt": "2026-01-31T12:00:00Z",
        "id": "t",
        "command": "greet",
        "error": "e\nf",
        "history": [{"worker": "w", **attempt}],
    }


def _told(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.kind, event.text) for event in events]


def test_nothing_happens_where_nothing_changes() -> None:
    """Two equal looks give no event."""
    assert [] == [*between(_look("a"), _look("a"), at=_AT)]


def test_a_problem_that_grows_is_the_same_problem() -> None:
    """A problem is reported once, however its figures change."""
    assert [] == [*between(_look("a is behind: 7 tasks"), _look("a is behind: 9"), at=_AT)]


def test_a_problem_that_follows_another_is_reported_and_the_other_is_over() -> None:
    """Two problems with similar texts are told apart by their ids."""
    before, now = "Node n2 is not connected with n1", "Node n3 is not connected with n1"
    events = [*between(_look(before), _look(now), at=_AT)]

    assert [("wrong", f"{now} (bad)"), ("over", before)] == _told(events)


def test_problems_at_the_first_look_are_reported() -> None:
    """The first look reports all problems that exist."""
    assert [("wrong", "a (bad)"), ("wrong", "b (bad)")] == _told([*begun(_look("a", "b"), at=_AT)])


def test_a_node_that_cannot_show_everything_says_of_nothing_that_it_is_over() -> None:
    """A part that is missing from its answer is unknown."""
    assert [] == [*between(_look("a"), _look(trouble="no leader for shard"), at=_AT)]


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        ("n1", "n2", "shard 0 is led by n2, term 7; n1 before"),
        ("n1", None, "shard 0 has no leader, term 7; n1 before"),
        (None, "n1", "shard 0 is led by n1, term 7; nobody before"),
    ],
)
def test_a_change_of_a_shards_leader_is_reported(
    before: str | None, now: str | None, text: str
) -> None:
    """A shard without a leader is reported too."""
    events = [*between(_look(leader=before), _look(leader=now), at=_AT)]

    assert [("leader", text)] == _told(events)


def test_tasks_are_counted_by_queue_up_to_the_end_of_the_last_slot() -> None:
    """Zero counts are left out, and many queues share one line."""
    told = Flowed(
        step=5,
        last=int(_AT.timestamp()) // 5 - 1,
        queues=[FlowLine("greet", 1200, 2, 0, 0), FlowLine("a\x1b[31mb", 0, 0, 3, 4)],
        more=2,
        others=FlowLine(created=1, failed=1),
    )
    events = [*counted(told)]

    assert {_AT} == {event.at for event in events}
    assert [
        ("tasks", "greet: 1,200 created, 2 claimed"),
        ("tasks", "a [31mb: 3 completed, 4 failed"),
        ("tasks", "2 more queues: 1 created, 1 failed"),
    ] == _told(events)


def test_the_audit_and_dead_letters_have_their_own_time() -> None:
    """The time is the broker's, and control characters are removed."""
    record = {
        "at": "2026-01-31T12:00:00.500Z",
        "actor": "me\x1b[2J",
        "action": "topic.put",
        "target": "greet",
    }
    task = _dead(endedAt="2026-01-31T11:00:00Z")

    assert {
        "at": "2026-01-31T12:00:00.500Z",
        "kind": "audit",
        "text": "me [2J topic.put greet",
    } == audited(record).row
    assert (_AT, "t of greet: e f") == (died(task).at, died(task).text)


@pytest.mark.parametrize(
    ("named", "by"), [({}, "w"), ({"workerName": "resizer\n@h:7"}, "w/resizer @h:7")]
)
def test_a_dead_letter_names_the_worker_of_its_last_attempt(named: dict[str, str], by: str) -> None:
    """An attempt that ended before the task died has not killed it."""
    event = died(_dead(endedAt="2026-01-31T12:00:00Z", **named))

    assert f"t of greet, by {by}: e f" == event.text
