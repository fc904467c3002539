"""Problems: the faults that the overview reports."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from msgspec.structs import asdict

from codeq_cluster.broker.polls import Poll
from codeq_cluster.broker.values import ShardStatus
from codeq_cluster.membership.node_report import NodeReport
from codeq_cluster.ui.views.problems import (
    SHOWN_MAX,
    Problem,
    Severity,
    of_asides,
    of_cluster,
    of_node,
    of_queues,
    of_shards,
    of_webhooks,
    polled,
)
from codeq_cluster.ui.views.queues import QueueRow, Rates
from codeq_cluster.ui.views.serving_node import NodeLink, ServingNode

NOW_MS = 1_000_000_000


def row(command: str, *, ready: int = 0, oldest_s: int = 0, paused: bool = False) -> QueueRow:
    """Return a queue with two created tasks a second and one claimed."""
    return QueueRow(
        command=command,
        ready=ready,
        delayed=0,
        held=0,
        in_progress=0,
        dlq=0,
        oldest_ready_seconds=oldest_s,
        paused=paused,
        rates=Rates(created=2.0, started=1.0, completed=1.0, failed=0.0),
    )


class _ComparedRow(QueueRow):
    """Counts how often rows are compared."""

    compared: ClassVar[int] = 0
    __hash__ = QueueRow.__hash__

    def __eq__(self, other: object) -> bool:
        _ComparedRow.compared += 1
        return super().__eq__(other)


def told(rows: Sequence[QueueRow], *polls: Poll, **died: int) -> list[Problem]:
    """Return the problems of queues."""
    asked = asyncio.run(polled({"n1": [], "n2": polls}, now_ms=NOW_MS))
    return list(of_queues(rows, asked, died))


def test_a_queue_that_is_worked_on_is_no_problem() -> None:
    """Neither briefly waiting tasks nor an empty queue is a problem."""
    rows = [row("a", ready=900, oldest_s=59), row("b")]

    assert [] == told(rows)
    assert [] == told([row("a", ready=1, oldest_s=299)], Poll("w", NOW_MS, 0, ("a",)))


def test_a_queue_without_workers_is_the_worst_problem() -> None:
    """Workers of other queues, and those that have not polled for a minute, do not count."""
    rows = [row("a", ready=1200, oldest_s=61)]
    expected = [
        Problem(
            id="unpolled/a",
            severity=Severity.BAD,
            text="No worker asks for a: 1,200 tasks, the oldest for 61 s",
            link="queues/a",
        )
    ]

    assert expected == told(rows)
    assert expected == told(rows, Poll("w", NOW_MS, 1, ("b",)))
    assert expected == told(rows, Poll("w", NOW_MS - 61_000, 0, ("a",)))


def test_a_worker_that_waits_or_asks_for_everything_counts() -> None:
    """A long poll may have started long ago."""
    rows = [row("a", ready=1, oldest_s=61)]

    assert [] == told(rows, Poll("w", NOW_MS - 100_000, 1, ("a",)))
    assert [] == told(rows, Poll("w", NOW_MS, 0, ()))


def test_a_queue_whose_workers_do_not_keep_up_is_behind() -> None:
    """The text has the rates of created and claimed tasks."""
    problems = told([row("a", ready=1, oldest_s=7300)], Poll("w", NOW_MS, 0, ("a",)))

    assert ["Queue a is behind: 1 task, the oldest for 2 h, 2/s come, 1/s are claimed"] == [
        problem.text for problem in problems
    ]
    assert problems[0].severity is Severity.WARN


def test_many_late_queues_are_not_compared_with_each_other() -> None:
    """The overview of a tenant with thousands of them is made in one step of the loop."""
    rows = [_ComparedRow(**asdict(row(f"q{n}", ready=1, oldest_s=400))) for n in range(100)]
    problems = told(rows, Poll("w", NOW_MS, 0, tuple(each.command for each in rows[::2])))

    assert 2 * (SHOWN_MAX + 1) == len(problems)
    assert ["The same of 45 more queues"] * 2 == [
        problem.text for problem in problems if problem.id in ("unpolled", "behind")
    ]
    assert 0 == _ComparedRow.compared


async def test_others_get_their_turn_while_polls_are_read() -> None:
    """A tenant may have thousands of workers, each with commands of its own."""
    polls = [Poll(f"w{n}", NOW_MS, 0, (f"a{n}", f"b{n}")) for n in range(5000)]
    reading = asyncio.ensure_future(polled({"n1": polls[:2500], "n2": polls[2500:]}, now_ms=NOW_MS))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    asked = await reading

    assert (10_000, False) == (len(asked.queues), asked.everything)
    assert turns >= 10


def test_a_paused_queue_with_tasks_is_reported_only_as_paused() -> None:
    """Waiting is intended there, and an empty paused queue is no problem."""
    problems = told([row("a", ready=3, oldest_s=200_000, paused=True), row("b", paused=True)])

    assert ["Queue a is paused: 3 tasks, the oldest for 2 days"] == [
        problem.text for problem in problems
    ]


def test_a_problem_keeps_its_id_while_it_grows_and_shares_it_with_no_other() -> None:
    """The page keeps a reader's place in the list by the id."""
    rows = [row("a", ready=3, oldest_s=400, paused=True), row("b", ready=3, oldest_s=400)]
    later = [row("b", ready=9, oldest_s=900), row("a", ready=9, oldest_s=900, paused=True)]
    many = [row(f"q{n}", ready=1, oldest_s=100) for n in range(SHOWN_MAX + 2)]
    first, second = told(rows, a=1, b=2), told(later, a=7, b=5)
    ids = [problem.id for problem in told([*rows, *many], a=1)]

    assert {problem.id for problem in second} == {problem.id for problem in first}
    assert [problem.text for problem in first] != [problem.text for problem in second]
    assert len(ids) == len(set(ids))


def test_dead_letters_that_grow_lead_to_them() -> None:
    """The queue with the most dead letters comes first."""
    problems = told([row("a"), row("b")], a=1, b=12)

    assert [
        ("Dead letters of b: 12 more in a quarter of an hour", "dead-letters/b"),
        ("Dead letters of a: 1 more in a quarter of an hour", "dead-letters/a"),
    ] == [(problem.text, problem.link) for problem in problems]


def test_many_of_a_kind_are_summed_up() -> None:
    """Those that have waited longest are named."""
    rows = [row(f"q{n}", ready=1, oldest_s=100 + n) for n in range(SHOWN_MAX + 2)]
    problems = told(rows)

    assert [
        *(f"queues/q{n}" for n in range(SHOWN_MAX + 1, 1, -1)),
        "queues",
    ] == [problem.link for problem in problems]
    assert ("The same of 2 more queues", "unpolled") == (problems[-1].text, problems[-1].id)


def test_a_node_that_is_not_ready_or_not_connected_is_reported() -> None:
    """The problem has the text of the readiness check."""
    serving = ServingNode(
        node="n1",
        nodes=[
            NodeLink(id="n1", http_addr="", connected=True, is_self=True),
            NodeLink(id="n2", http_addr="", connected=False, is_self=False),
        ],
        leaderless=[],
        shards=4,
        missing=["shard 0 has no leader"],
    )

    assert [
        "Node n1 is not ready: shard 0 has no leader",
        "Node n2 is not connected with n1",
    ] == [problem.text for problem in of_node(serving)]


def test_a_disk_that_fills_and_an_upgrade_in_progress_are_reported() -> None:
    """Both follow from the nodes' own reports."""

    def report(name: str, version: str, free: int) -> NodeReport:
        return NodeReport(
            id=name,
            version=version,
            started_ms=0,
            missing=(),
            disk_free_bytes=free,
            disk_bytes=100,
            memory_bytes=0,
            shards=(),
        )

    fine = {"n1": report("n1", "1", 10), "n2": report("n2", "1", 50)}
    not_fine = {"n1": report("n1", "1", 9), "n2": report("n2", "2", 50)}

    assert [] == list(of_cluster(fine))
    assert [
        "The disk of n1 is 91% full",
        "Nodes run releases 1 and 2: an upgrade is under way",
    ] == [problem.text for problem in of_cluster(not_fine)]


def test_dead_deliveries_are_reported() -> None:
    """Without dead deliveries there is no problem."""
    assert [] == list(of_webhooks(0))
    assert ["webhooks"] == [problem.link for problem in of_webhooks(2)]


def test_what_is_set_aside_is_reported_to_its_tenant_and_by_shard_to_operators() -> None:
    """The tenant's line names the command; the operators' names no tenant."""
    shards = [
        ShardStatus(shard_idx=n, is_leader=False, self_id="n1", self_addr="", aside=n)
        for n in (0, 2)
    ]

    assert [] == list(of_asides(0))
    assert ["Set aside after a failure of the broker: 3; codeq-cluster aside ls"] == [
        problem.text for problem in of_asides(3)
    ]
    assert ["Shard 2 has set aside 2 items after a failure of the broker"] == [
        problem.text for problem in of_shards(shards)
    ]
