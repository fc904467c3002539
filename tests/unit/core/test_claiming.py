"""Claims from several queues, and the limits that hold a queue's tasks back."""

from __future__ import annotations

import pytest

from codeq_cluster.core.budget import Budget
from codeq_cluster.core.operations import DeleteTopic, PauseQueue, PutTopic, Requeue, ResumeQueue
from codeq_cluster.core.outcomes import Changed, Created, Rejected, Rejection, Submitted
from codeq_cluster.core.rules import LifetimeRules

from .shard import NOW_MS, Shard, claim, create, submit


def test_priority_goes_before_turns() -> None:
    """A high priority goes first, whichever queue was served last."""
    shard = Shard()
    for task_id, command, priority in (
        ("b-1", "b", 5),
        ("a-1", "a", 5),
        ("b-2", "b", 5),
        ("a-2", "a", 5),
        ("a-0", "a", 0),
        ("b-9", "b", 9),
    ):
        shard.create(task_id, command=command, priority=priority)

    assert ["b-9", "a-1", "a-2", "b-1", "b-2", "a-0"] == shard.claim(commands=("a", "b"), count=9)


def test_queues_of_one_priority_take_turns_from_claim_to_claim() -> None:
    """The command named first gets the first turn, not all of them."""
    shard = _two_queues()

    order = [shard.claim(commands=("a", "b"), request=f"c{number}")[0][0] for number in range(6)]

    assert ["a", "b", "a", "b", "a", "b"] == order


def test_a_weight_is_a_share() -> None:
    """A weight of three gets three of four tasks, also within one claim."""
    shard = _two_queues()
    shard.ask(PutTopic(request="p", tenant="acme", name="A", by="op", weight=3))

    assert 6 == [each[0] for each in shard.claim(commands=("a", "b"), count=8)].count("a")


def test_a_queue_claimed_alone_pays_for_no_turn() -> None:
    """A claim of one queue takes nothing from workers that wait for others."""
    shard = _two_queues()
    shard.claim(commands=("b",), count=3)

    assert ["b", "a"] == [each[0] for each in shard.claim(commands=("b", "a"), count=2)]


def test_a_paused_queue_hands_out_nothing_until_it_is_resumed() -> None:
    """Case does not matter; other queues and leased tasks continue."""
    shard = _two_queues()
    shard.claim(commands=("a",))
    shard.ask(PauseQueue(request="p", tenant="acme", queue="A", by="op"))
    assert [] == shard.claim(commands=("a",))
    assert ["b"] * 6 == [each[0] for each in shard.claim(commands=(), count=9)]
    assert isinstance(shard.ask(submit(id="a-0")), Submitted)
    shard.ask(ResumeQueue(request="r", tenant="acme", queue="a", by="op"))

    assert ["a-1"] == shard.claim(commands=("a",), request="later")


def test_no_more_tasks_are_in_progress_than_the_topic_allows() -> None:
    """The limit holds across claims and within one; a finished task makes room."""
    shard = _two_queues()
    shard.ask(PutTopic(request="p", tenant="acme", name="a", by="op", max_consumers=2))
    assert ["a-0", "a-1"] == shard.claim(commands=("a",), count=9)
    assert [] == shard.claim(commands=("a",), request="more")
    assert ["b", "b"] == [each[0] for each in shard.claim(commands=("a", "b"), count=2)]
    shard.ask(submit(id="a-0"))
    assert [
        "a-2", "b-2", "b-3", "b-4", "b-5",
    ] == shard.claim(commands=("a", "b"), request="room", count=9)  # fmt: skip
    shard.ask(DeleteTopic(request="d", tenant="acme", name="a", by="op"))

    assert ["a-3", "a-4", "a-5"] == shard.claim(commands=("a",), request="free", count=9)


def test_a_tenant_has_no_more_in_progress_than_its_budget() -> None:
    """A claim gets the rest of the budget, then a refusal names it; a retry gets its own tasks."""
    shard = _two_queues(LifetimeRules(budgets={"acme": Budget(leased_max=3)}))
    first = shard.claim(commands=(), count=9)
    refused = shard.ask(claim(request="more", commands=()))

    assert 3 == len(first)
    assert Rejected(Rejection.BUDGET_EXCEEDED, "inFlight") == refused
    assert sorted(first) == sorted(shard.claim(commands=(), count=9, retry=True))


@pytest.mark.parametrize(
    ("budget", "limit"),
    [(Budget(waiting_max=2), "readyTasks"), (Budget(bytes_max=5), "storedBytes")],
)
def test_a_create_beyond_the_budget_is_refused_and_one_sent_again_is_not(
    budget: Budget, limit: str
) -> None:
    """A retry gets its task; the refusal names the budget; other tenants have their own."""
    shard = Shard(LifetimeRules(budgets={"acme": budget}))
    shard.create("one")
    shard.create("two", delay_ms=1)

    assert Rejected(Rejection.BUDGET_EXCEEDED, limit) == shard.ask(create("three"))
    shard.create("two", delay_ms=1)
    shard.create("three", tenant="umbrella")


def test_results_count_as_stored_bytes_and_are_never_refused() -> None:
    """Finished work is always stored; the next create finds the budget used up."""
    shard = Shard(LifetimeRules(budget=Budget(bytes_max=6)))
    shard.create()
    shard.claim()
    shard.ask(submit(body='"ü"'))

    assert 4 == shard.task().result_bytes
    assert Rejected(Rejection.BUDGET_EXCEEDED, "storedBytes") == shard.ask(create("u"))


@pytest.mark.parametrize(
    ("asked", "most", "attempts"), [(0, 0, 5), (0, 2, 2), (9, 2, 2), (1, 2, 1)]
)
def test_a_topic_is_default_and_ceiling_of_a_tasks_attempts(
    asked: int, most: int, attempts: int
) -> None:
    """Without a topic the broker's default holds; with one, its maximum is the ceiling."""
    shard = Shard()
    if most:
        shard.ask(PutTopic(request="p", tenant="acme", name="render", by="op", max_attempts=most))
    shard.create(max_attempts=asked)

    assert attempts == shard.task().max_attempts


@pytest.mark.parametrize(
    ("tiers", "priority", "taken"),
    [
        ((), 7, True),
        ((1, 3, 5), 3, True),
        ((1, 3, 5), 2, False),
        ((1, 3, 5), 0, False),
        ((0, 5), 0, True),
        ((0, 10), 9, True),
        ((0, 10), 8, False),
    ],
)
def test_a_new_task_has_one_of_its_topics_priorities(
    tiers: tuple[int, ...], priority: int, taken: bool
) -> None:
    """The case of the command does not matter; other queues and tenants are free."""
    shard = Shard()
    shard.ask(PutTopic(request="p", tenant="acme", name="Render", by="op", priority_tiers=tiers))
    outcome = shard.ask(create(command="RENDER", priority=priority))
    shard.create("free", command="other", priority=priority)
    shard.create("theirs", tenant="umbrella", priority=priority)

    refused = Rejected(Rejection.INVALID_PRIORITY, ", ".join(map(str, tiers)))
    assert (Created(shard.task()) if taken else refused) == outcome
    assert taken == (shard.view.task("t") is not None)


def test_tiers_judge_no_task_that_is_there() -> None:
    """A retried create gets its answer, also by its key; a revived task keeps its priority."""
    shard = Shard()
    shard.create("first", priority=7, idempotency_key="k", fingerprint="f", ttl_ms=5)
    shard.ask(PutTopic(request="p", tenant="acme", name="render", by="op", priority_tiers=(1,)))
    made = shard.task("first")
    again = shard.ask(create("first", priority=7, idempotency_key="k", fingerprint="f"))
    keyed = shard.ask(create("second", priority=7, idempotency_key="k", fingerprint="f"))
    shard.wait(5)
    revived = shard.ask(Requeue(request="r", tenant="acme", ids=("first",), by="op"))

    assert Created(made) == again
    assert Created(made, replay=True, payload="{}") == keyed
    assert Changed(1) == revived
    assert 7 == shard.task("first").priority
    assert ["first"] == shard.claim()


def test_a_priority_is_judged_before_a_budget() -> None:
    """A create that can never be accepted is not told to try again."""
    shard = Shard(LifetimeRules(budget=Budget(waiting_max=1)))
    shard.create("one")
    shard.ask(PutTopic(request="p", tenant="acme", name="render", by="op", priority_tiers=(1,)))

    assert Rejected(Rejection.INVALID_PRIORITY, "1") == shard.ask(create("two"))


def test_a_topic_says_how_long_an_ended_task_is_kept_but_not_a_dead_letter() -> None:
    """The topic's retention is for results; dead letters wait for an operator."""
    shard = Shard()
    shard.ask(PutTopic(request="p", tenant="acme", name="render", by="op", retention_s=1))
    shard.create("done")
    shard.claim()
    shard.ask(submit(id="done"))
    shard.create("dead", ttl_ms=5)
    shard.wait(5)

    assert NOW_MS + 1_000 == shard.task("done").retain_until_ms
    assert NOW_MS + 5 + shard.rules.dlq_retention_ms == shard.task("dead").retain_until_ms


def _two_queues(rules: LifetimeRules | None = None) -> Shard:
    shard = Shard(rules or LifetimeRules())
    for number in range(6):
        for queue in ("a", "b"):
            shard.create(f"{queue}-{number}", command=queue)
    return shard
