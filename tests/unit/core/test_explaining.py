"""The one reason why a task is where it is."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from codeq_cluster.core.explaining import Explanation, Facts, Reason, explain
from codeq_cluster.core.holds import Nack
from codeq_cluster.core.items import Policy, Topic
from codeq_cluster.core.operations import Cancel, PutTopic
from codeq_cluster.core.progress import Progress
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.task import More, State, Task

from .shard import LEASE_MS, NOW_MS, Shard, submit

READY = Task(
    id="t",
    tenant="acme",
    command="render",
    priority=0,
    max_attempts=3,
    created_ms=NOW_MS,
    updated_ms=NOW_MS,
    state=State.READY,
    seq=1,
)
FACTS = Facts(now_ms=NOW_MS)
LIMITED = Policy(Topic(tenant="acme", id="render", name="render", max_consumers=2))

# Each of these holds a ready task back; the first that applies is the reason.
HOLDS: list[tuple[Reason, dict[str, object], dict[str, object]]] = [
    (Reason.EXPIRING, {"expires_ms": NOW_MS}, {}),
    (Reason.QUEUE_PAUSED, {}, {"policy": replace(LIMITED, paused=True)}),
    (Reason.CONSUMER_LIMIT, {}, {"policy": LIMITED, "leased": 2}),
    (Reason.IN_FLIGHT_LIMIT, {}, {"tenant_leased": 9, "tenant_leased_max": 9}),
    (Reason.BEHIND_OTHERS, {}, {"ahead": 1}),
    (Reason.NO_CLAIM, {}, {}),
]


@pytest.mark.parametrize("first", range(len(HOLDS)))
def test_a_ready_task_has_the_first_reason_that_holds(first: int) -> None:
    """The reason that must be lifted first hides the later ones."""
    task, facts = READY, FACTS
    for _, fields, known in reversed(HOLDS[first:]):
        policy = known.get("policy", facts.policy)
        task, facts = replace(task, **fields), replace(facts, **known | {"policy": policy})

    assert explain(task, facts).reason is HOLDS[first][0]
    assert explain(task, facts).reason.waiting


@pytest.mark.parametrize(
    "facts",
    [
        replace(FACTS, policy=LIMITED, leased=1),
        replace(FACTS, tenant_leased=8, tenant_leased_max=9),
        replace(FACTS, leased=99, tenant_leased=99),
    ],
)
def test_a_limit_that_is_not_met_is_no_reason(facts: Facts) -> None:
    """If the count is one below the bound, or there is no bound, the next claim gets the task."""
    assert explain(READY, facts).reason is Reason.NO_CLAIM


def test_a_delayed_task_says_until_when() -> None:
    """The end is its start time, or the end of its time to live if that is earlier."""
    task = replace(READY, state=State.DELAYED, seq=0, due_ms=NOW_MS + 9)

    assert (Reason.SCHEDULED, NOW_MS + 9) == _told(task)
    assert (Reason.SCHEDULED, NOW_MS + 4) == _told(replace(task, expires_ms=NOW_MS + 4))
    assert (Reason.SCHEDULED, NOW_MS + 9) == _told(replace(task, expires_ms=NOW_MS + 20))
    assert (Reason.BACKING_OFF, NOW_MS + 9) == _told(replace(task, attempts=1))
    assert (Reason.BECOMING_READY, 0) == _told(replace(task, due_ms=NOW_MS))
    assert (Reason.EXPIRING, 0) == _told(replace(task, due_ms=NOW_MS, expires_ms=NOW_MS))


def test_a_leased_task_runs_until_its_lease_ends() -> None:
    """After that it waits for the broker to notice."""
    task = replace(READY, state=State.LEASED, seq=0, lease_until_ms=NOW_MS + 9, expires_ms=1)

    counted = replace(task, more=More(progress=Progress(done=3, total=10)))

    assert explain(counted, FACTS).text.endswith("holds it, 3 of 10 done")
    assert (Reason.RUNNING, NOW_MS + 9) == _told(task)
    assert not Reason.RUNNING.waiting
    assert (Reason.LEASE_EXPIRED, 0) == _told(replace(task, lease_until_ms=NOW_MS))
    assert Reason.LEASE_EXPIRED.waiting


def test_every_end_has_a_reason_of_its_own() -> None:
    """A worker that reports CANCELLED has failed; only the broker cancels."""
    for end, reason in (
        (submit(), Reason.COMPLETED),
        (submit(status="FAILED", body="", error="broken"), Reason.FAILED),
        (submit(status="FAILED", body="", error="CANCELLED"), Reason.FAILED),
        (Cancel(request="c", id="t", tenant="acme"), Reason.CANCELLED),
        (Nack(request="n", id="t", tenant="acme", worker="ann"), Reason.DEAD_LETTER),
    ):
        shard = Shard()
        shard.create(max_attempts=1)
        shard.claim()
        shard.ask(end)

        assert (reason, 0) == _told(shard.task())
        assert not reason.waiting


def test_a_task_cancelled_while_it_waited_is_cancelled() -> None:
    """A cancellation counts before any attempt, and after attempts that were given back."""
    shard = Shard(LifetimeRules(backoff_base_ms=1))
    shard.create()
    shard.ask(Cancel(request="c", id="t", tenant="acme"))
    shard.create("u")
    shard.claim()
    shard.ask(Nack(request="n", id="u", tenant="acme", worker="ann", delay_ms=5))
    shard.ask(Cancel(request="c", id="u", tenant="acme"))

    assert _told(shard.task("t")) == _told(shard.task("u")) == (Reason.CANCELLED, 0)


@pytest.mark.parametrize("state", State)
def test_a_task_set_aside_says_so_unless_it_has_ended(state: State) -> None:
    """Of an ended task only the deletion is set aside, which nobody waits for."""
    held = replace(READY, state=state, seq=0 if state is not State.READY else READY.seq)
    if state is State.LEASED:
        held = replace(held, attempts=1, worker="w", lease_token=1, lease_until_ms=NOW_MS + 9)
    found = explain(held, replace(FACTS, set_aside=True))

    assert state.terminal != (found.reason is Reason.SET_ASIDE)
    assert state.terminal or "aside show task.t" in found.text


def test_a_dead_letter_says_where_it_is_kept_and_why() -> None:
    """An operator finds it from the answer alone."""
    shard = Shard()
    topic = PutTopic(request="p", tenant="acme", name="render", by="ops", dead_letter="graves")
    shard.ask(topic)
    shard.create(max_attempts=1)
    shard.claim()
    shard.wait(LEASE_MS)

    text = "it is a dead letter of queue graves: LEASE_EXPIRED"
    assert Explanation(Reason.DEAD_LETTER, text) == explain(shard.task(), FACTS)


def _told(task: Task) -> tuple[Reason, int]:
    explanation = explain(task, FACTS)
    assert explanation.text
    return explanation.reason, explanation.until_ms
