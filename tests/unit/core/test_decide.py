"""Decisions, one story each."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from codeq_cluster.core.budget import Budget
from codeq_cluster.core.claiming import CLAIM_PAYLOAD_BYTES_MAX, CLAIM_SKIPS_MAX
from codeq_cluster.core.handling import Handling
from codeq_cluster.core.holds import Nack
from codeq_cluster.core.operations import (
    Abandon,
    Advance,
    Cancel,
    Delete,
    Heartbeat,
    Operation,
    PutTopic,
    Staging,
    Submit,
)
from codeq_cluster.core.outcomes import (
    Advanced,
    Cancelled,
    Changed,
    Created,
    Extended,
    Outcome,
    Rejected,
    Rejection,
    Returned,
    Submitted,
)
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.task import AttemptOutcome, State

from .shard import LEASE_MS, NOW_MS, Shard, create, submit

RULES = LifetimeRules()


def test_a_created_task_is_ready_at_once() -> None:
    """State, place and instants of a plain create."""
    shard = Shard()
    shard.create()
    task = shard.task()

    assert task.state is State.READY
    assert 1 == task.seq
    assert task.created_ms == task.updated_ms == task.ready_ms == NOW_MS
    assert "{}" == shard.view.payload("t")


def test_a_repeated_create_makes_one_task() -> None:
    """The id identifies a retry, even after the task has moved on."""
    shard = Shard()
    shard.create()
    shard.claim()
    again = shard.ask(create("t"))

    assert Created(shard.task(), replay=False, payload="") == again
    assert shard.task().state is State.LEASED


def test_an_id_that_is_taken_by_another_tenant_is_refused() -> None:
    """No caller gets another tenant's task as an answer."""
    shard = Shard()
    shard.create()

    outcome = shard.ask(create("t", tenant="umbrella"))

    assert Rejected(Rejection.IDEMPOTENCY_CONFLICT) == outcome


def test_a_start_time_wins_over_a_delay_and_a_past_one_means_now() -> None:
    """`run_at_ms` beats `delay_ms`, and only a future start delays."""
    shard = Shard()
    shard.create("delayed", delay_ms=5)
    shard.create("appointed", delay_ms=5, run_at_ms=NOW_MS + 9)
    shard.create("late", delay_ms=5, run_at_ms=NOW_MS - 9)

    assert NOW_MS + 5 == shard.task("delayed").due_ms
    assert NOW_MS + 9 == shard.task("appointed").due_ms
    assert shard.task("late").state is State.READY


def test_an_idempotency_key_answers_with_its_task() -> None:
    """The same key and content from another request is a replay, with the first payload."""
    shard = Shard()
    shard.create("first", idempotency_key="k", fingerprint="f", payload='{"a": 1}')
    outcome = shard.ask(create("second", idempotency_key="k", fingerprint="f"))

    assert Created(shard.task("first"), replay=True, payload='{"a": 1}') == outcome
    assert shard.view.task("second") is None


def test_a_keyed_create_sent_again_is_no_replay() -> None:
    """The original caller gets the same answer twice."""
    shard = Shard()
    made = create("first", idempotency_key="k", fingerprint="f")
    first = shard.ask(made)

    assert first == shard.ask(made)


def test_an_idempotency_key_with_other_content_is_a_conflict() -> None:
    """A key never stands for two tasks."""
    shard = Shard()
    shard.create("first", idempotency_key="k", fingerprint="f")
    outcome = shard.ask(create("second", idempotency_key="k", fingerprint="g"))

    assert Rejected(Rejection.IDEMPOTENCY_CONFLICT) == outcome


def test_an_idempotency_key_belongs_to_its_tenant() -> None:
    """Two tenants can use the same key independently."""
    shard = Shard()
    shard.create("first", idempotency_key="k", fingerprint="f")
    shard.create("second", idempotency_key="k", fingerprint="f", tenant="umbrella")

    assert shard.view.task("second") is not None


def test_a_claim_leases_under_a_new_token() -> None:
    """A lease has an owner, an end, a token and an attempt."""
    shard = Shard()
    shard.create()
    assert ["t"] == shard.claim()
    task = shard.task()

    assert (State.LEASED, 1, 1) == (task.state, task.attempts, task.lease_token)
    assert ("ann", "claim-1", 0) == (task.worker, task.claim, task.seq)
    assert (NOW_MS, NOW_MS + LEASE_MS) == (task.claimed_ms, task.lease_until_ms)


def test_a_queue_gives_priority_first_then_the_oldest() -> None:
    """Within one queue, 9 goes before 0, and early before late."""
    shard = Shard()
    shard.create("low", priority=0)
    shard.create("high", priority=9)
    shard.create("high later", priority=9)

    assert ["high", "high later", "low"] == shard.claim(count=3)


def test_no_commands_means_every_queue_in_turn() -> None:
    """The queues of the tenant are served one after another, each in its own order."""
    shard = Shard()
    shard.create("b-1", command="b")
    shard.create("a-1", command="a")
    shard.create("b-2", command="b")
    shard.create("other", command="a", tenant="umbrella")

    assert ["a-1", "b-1", "b-2"] == shard.claim(commands=(), count=9)


def test_queues_ignore_case_and_tasks_keep_it() -> None:
    """Two spellings of a command are one queue, read once."""
    shard = Shard()
    shard.create(command="Render")

    assert ["t"] == shard.claim(commands=("RENDER", "render"), count=9)
    assert "Render" == shard.task().command


def test_a_repeated_claim_gets_the_same_tasks() -> None:
    """A lost answer leaves no leased task unknown to its worker."""
    shard = Shard()
    for task_id in "abc":
        shard.create(task_id)
    first = shard.claim(count=2)

    assert first == shard.claim(count=2, retry=True)
    assert shard.task("c").state is State.READY


def test_a_claim_sent_again_that_got_nothing_claims() -> None:
    """The first request never arrived, or its leases are over."""
    shard = Shard()
    shard.create()

    assert ["t"] == shard.claim(retry=True)


def test_a_claim_steps_over_expired_tasks_within_a_bound() -> None:
    """Expired tasks do not hide live ones, and many of them do not delay the shard."""
    shard = Shard()
    for number in range(CLAIM_SKIPS_MAX + 1):
        shard.create(f"short-{number}", ttl_ms=10)
    shard.create("long")
    shard.view.now_ms += 10

    assert [] == shard.claim()
    shard.ask(Advance(count=1))
    assert ["long"] == shard.claim()


def test_a_claim_hands_out_no_more_than_fits_an_answer() -> None:
    """The other tasks stay ready; a single task always fits."""
    shard = Shard()
    half = '"' + "x" * (CLAIM_PAYLOAD_BYTES_MAX // 2) + '"'
    for task_id in ("a", "b", "c"):
        shard.create(task_id, payload=half)

    assert ["a"] == shard.claim(request="claim-1", count=3)
    assert ["b"] == shard.claim(request="claim-2", count=3)
    assert 0 == shard.task("c").attempts


def test_a_claim_counts_the_size_of_its_tasks_in_the_answer() -> None:
    """A history of long errors counts like a payload, at four bytes per character."""
    shard = Shard(LifetimeRules(backoff_base_ms=0))
    small = '"' + "x" * (CLAIM_PAYLOAD_BYTES_MAX // 20) + '"'
    for n in range(20):
        shard.create(f"t-{n:02}", payload=small, max_attempts=1000)
    plain = len(shard.claim(request="plain", count=20))

    heavy = Shard(LifetimeRules(backoff_base_ms=0))
    for n in range(20):
        heavy.create(f"t-{n:02}", payload=small, max_attempts=1000)
    for n in range(20 * 20):
        [task_id] = heavy.claim(request=f"claim-{n}")
        reason = "\N{SKULL}" * 1024
        heavy.ask(Nack(request=f"nack-{n}", id=task_id, tenant="acme", worker="ann", reason=reason))

    assert len(heavy.claim(request="heavy", count=20)) < plain


def test_a_heartbeat_moves_the_end_of_the_lease() -> None:
    """The lease ends at now + extension."""
    shard = _leased()
    shard.view.now_ms += 10
    outcome = shard.ask(Heartbeat(id="t", tenant="acme", worker="ann", extend_ms=7))

    assert Extended(NOW_MS + 17) == outcome
    assert NOW_MS + 17 == shard.task().lease_until_ms


def test_a_lease_is_held_until_its_end_is_decided() -> None:
    """Past its last instant the holder may still act, because there is no other."""
    shard = _leased()
    shard.view.now_ms += LEASE_MS + 1

    assert isinstance(shard.ask(_submit()), Submitted)


def test_an_expired_lease_goes_to_the_tail() -> None:
    """The history keeps the attempt, and the task keeps its token."""
    shard = _leased()
    assert 0 == shard.wait(LEASE_MS - 1)
    assert 1 == shard.wait(1)
    task = shard.task()

    assert (State.READY, 2, 1, "") == (task.state, task.seq, task.lease_token, task.worker)
    assert [AttemptOutcome.LEASE_EXPIRED] == [attempt.outcome for attempt in task.history]


def test_leases_are_left_alone_during_a_new_leaders_grace() -> None:
    """Without leases, time acts on everything else."""
    shard = _leased()
    shard.create("u", delay_ms=10)
    shard.view.now_ms += LEASE_MS

    assert Advanced(1) == shard.ask(Advance(count=100, leases_too=False))
    assert shard.task().state is State.LEASED


def test_a_late_worker_cannot_complete_a_task_leased_again() -> None:
    """The fencing token of an expired lease is refused, even from the same worker."""
    shard = _leased()
    shard.wait(LEASE_MS)
    shard.claim(request="claim-2")

    assert Rejected(Rejection.LEASE_LOST) == shard.ask(_submit(token=1))
    assert isinstance(shard.ask(_submit(token=2)), Submitted)


@pytest.mark.parametrize(
    ("fields", "rejection"),
    [
        ({"id": "nowhere"}, Rejection.NOT_FOUND),
        ({"tenant": "umbrella"}, Rejection.NOT_FOUND),
        ({"worker": "bob"}, Rejection.NOT_OWNER),
        ({"worker": "bob", "token": 7}, Rejection.LEASE_LOST),
        ({"token": 7}, Rejection.LEASE_LOST),
    ],
)
def test_only_the_holder_may_act(fields: dict[str, object], rejection: Rejection) -> None:
    """All four worker operations refuse a stranger alike, and change nothing."""
    shard = _leased()
    before = shard.task()
    asked: dict[str, object] = {"id": "t", "tenant": "acme", "worker": "ann", **fields}
    outcomes = [
        shard.ask(Heartbeat(**asked, extend_ms=1)),  # type: ignore[arg-type]
        shard.ask(Abandon(**asked, request="q")),  # type: ignore[arg-type]
        shard.ask(Nack(**asked, request="q")),  # type: ignore[arg-type]
        shard.ask(_submit(**fields)),
    ]

    assert [Rejected(rejection)] * 4 == outcomes
    assert before == shard.task()


def test_a_task_nobody_holds_cannot_be_ended() -> None:
    """A ready task is not in progress; the holder of an older token has lost its lease."""
    shard = _leased()
    shard.ask(_abandon())

    assert Rejected(Rejection.NOT_IN_PROGRESS) == shard.ask(_submit())
    assert Rejected(Rejection.NOT_IN_PROGRESS) == shard.ask(_submit(token=1))
    shard.claim(request="claim-2")
    shard.ask(_abandon(request="abandon-2"))
    assert Rejected(Rejection.LEASE_LOST) == shard.ask(_submit(token=1))


def test_an_abandoned_task_goes_to_the_tail_once() -> None:
    """Retried after the task was claimed again, the abandon has no effect."""
    shard = _leased()
    first = shard.ask(_abandon())
    shard.claim(request="claim-2")

    assert Returned(dead=False) == first == shard.ask(_abandon())
    assert shard.task().state is State.LEASED


def test_a_claim_that_reached_nobody_does_not_count() -> None:
    """The delivery is undone, but its token is used up; a retry undoes nothing more."""
    shard = _leased()
    undo = replace(_abandon(), token=1, undelivered=True)

    assert Returned(dead=False) == shard.ask(undo)
    task = shard.task()
    assert (State.READY, 0, 1, ()) == (task.state, task.attempts, task.lease_token, task.history)
    assert Rejected(Rejection.NOT_IN_PROGRESS) == shard.ask(undo)
    shard.claim(request="claim-2")
    assert Rejected(Rejection.LEASE_LOST) == shard.ask(undo)


@pytest.mark.parametrize(("asked_ms", "delay_ms"), [(7, 7), (10**9, 900_000), (0, 5_000)])
def test_a_nacked_task_rests(asked_ms: int, delay_ms: int) -> None:
    """The delay is the one asked for, up to the cap, or that of the back-off policy."""
    shard = _leased()

    assert Returned(dead=False, delay_ms=delay_ms) == shard.ask(_nack(delay_ms=asked_ms))
    assert NOW_MS + delay_ms == shard.task().due_ms
    assert "busy" == shard.task().history[0].error
    assert 1 == shard.wait(delay_ms)
    assert shard.task().state is State.READY


def test_a_lease_is_not_extended_beyond_its_task_s_time_limit() -> None:
    """The overtime is room for the worker's report; what the claim asked for stays."""
    rules = LifetimeRules(overtime_ms=500)
    shard, patient = Shard(rules), Shard(rules)
    for each, limit_ms in ((shard, LEASE_MS + 1_000), (patient, 1)):
        each.ask(replace(create(), handling=Handling(timeout_ms=limit_ms)))
        each.claim()
    beat = Heartbeat(id="t", tenant="acme", worker="ann", extend_ms=10**6)
    last_ms = NOW_MS + LEASE_MS + 1_500

    assert [Extended(last_ms)] * 2 == [shard.ask(beat), shard.ask(beat)]
    assert Extended(NOW_MS + LEASE_MS) == patient.ask(beat)
    assert 1 == shard.wait(LEASE_MS + 1_500)
    assert AttemptOutcome.LEASE_EXPIRED is shard.task().history[0].outcome


@pytest.mark.parametrize(
    ("own", "topics", "delay_ms"),
    [
        (None, Handling(backoff_base_ms=2_000), 2_000),
        (None, Handling(backoff="linear", backoff_base_ms=2_000, backoff_max_ms=1_500), 1_500),
        (Handling(backoff_base_ms=700), Handling(backoff="fixed", backoff_base_ms=9_000), 700),
        (Handling(timeout_ms=1_000), Handling(timeout_ms=2_000), 5_000),
    ],
)
def test_a_backoff_is_the_task_s_else_its_topic_s_else_the_broker_s(
    own: Handling | None, topics: Handling, delay_ms: int
) -> None:
    """Each field is looked up on its own; a topic's counts for tasks that exist already, too."""
    shard = Shard(LifetimeRules(backoff_policy="fixed"))
    shard.ask(replace(create(), handling=own))
    shard.claim()
    shard.ask(PutTopic(request="p", tenant="acme", name="render", by="op", handling=topics))

    assert Returned(dead=False, delay_ms=delay_ms) == shard.ask(_nack())


def test_a_nack_sent_again_hears_the_same_delay() -> None:
    """The answer stays the same after the delay, while another worker holds the task."""
    shard = _leased()
    first = shard.ask(_nack(delay_ms=7))
    shard.wait(7)
    shard.claim(request="claim-2")

    assert first == shard.ask(_nack(delay_ms=7))


def test_a_backoff_of_nothing_makes_the_task_ready() -> None:
    """The full jitter may draw 0."""
    shard = _leased()
    shard.view.draw = 0.0

    assert Returned(dead=False) == shard.ask(_nack())
    assert shard.task().state is State.READY


@pytest.mark.parametrize(
    ("last_act", "error"),
    [
        (Abandon(request="q", id="t", tenant="acme", worker="ann"), "MAX_ATTEMPTS"),
        (Nack(request="q", id="t", tenant="acme", worker="ann"), "MAX_ATTEMPTS"),
        (Nack(request="q", id="t", tenant="acme", worker="ann", reason="busy"), "busy"),
    ],
)
def test_the_last_attempt_ends_in_the_dead_letters(last_act: Operation, error: str) -> None:
    """A FAILED result keeps anyone from waiting for ever, and the longer retention applies."""
    shard = Shard()
    shard.create(max_attempts=1)
    shard.claim()

    assert Returned(dead=True) == shard.ask(last_act) == shard.ask(last_act)
    task = shard.task()
    result = shard.view.result("t")
    assert result is not None
    assert (State.DEAD, error, "q") == (task.state, task.error, task.ended_by)
    assert ("FAILED", error, "") == (result.status, result.error, result.worker)
    assert NOW_MS + RULES.dlq_retention_ms == task.retain_until_ms


def test_five_attempts_are_five_deliveries() -> None:
    """Only deliveries count; the fifth expiry kills."""
    shard = Shard()
    shard.create(max_attempts=5)
    deliveries = 0
    while shard.claim(request=f"claim-{deliveries}"):
        deliveries += 1
        shard.wait(LEASE_MS)

    assert 5 == deliveries
    assert (State.DEAD, "LEASE_EXPIRED") == (shard.task().state, shard.task().error)


def test_an_undelivered_task_dies_when_its_time_is_up() -> None:
    """A ready or a delayed task dies at its time, whichever instant comes first."""
    shard = Shard()
    shard.create("ready", ttl_ms=10)
    shard.create("delayed", ttl_ms=10, delay_ms=20)
    assert 2 == shard.wait(10)

    for task_id in ("ready", "delayed"):
        assert shard.task(task_id).state is State.DEAD
        assert "MESSAGE_EXPIRED" == shard.task(task_id).error
        assert shard.task(task_id).has_result


def test_a_delivered_task_outlives_its_time_to_live() -> None:
    """The time to live does not shorten a lease."""
    shard = Shard()
    shard.create(ttl_ms=10)
    shard.claim()

    assert 0 == shard.wait(10)


def test_a_result_ends_the_task_for_good() -> None:
    """Result and task are one change; the same content again gets the same answer."""
    shard = _leased()
    first = shard.ask(_submit())
    task = shard.task()

    assert isinstance(first, Submitted)
    assert first.result == shard.view.result("t")
    assert (State.DONE, True, "submit-1") == (task.state, task.has_result, task.ended_by)
    assert ("", 0) == (task.worker, task.lease_until_ms)
    assert first == shard.ask(_submit())
    assert first == shard.ask(_submit(request="submit-2"))


def test_a_second_result_is_refused() -> None:
    """Other content, or another worker, comes too late for a terminal task."""
    shard = _leased()
    shard.ask(_submit())

    for late in (
        _submit(request="submit-2", body='"other"'),
        _submit(request="submit-3", worker="bob"),
    ):
        assert Rejected(Rejection.NOT_IN_PROGRESS) == shard.ask(late)


def test_a_failure_said_by_the_worker_is_no_dead_letter() -> None:
    """FAILED keeps the worker's error in task, result and history."""
    shard = _leased()
    shard.ask(_submit(status="FAILED", body="", error="broken"))
    task = shard.task()

    assert (State.FAILED, "broken", "broken") == (task.state, task.error, task.history[0].error)
    assert task.history[0].outcome is AttemptOutcome.FAILED


def test_a_cancelled_worker_learns_it_from_its_next_call() -> None:
    """The worker has lost its lease; for others the task is just not in progress."""
    shard = _leased()
    cancelled = shard.ask(_cancel())
    assert Cancelled(shard.task()) == cancelled

    heartbeat = Heartbeat(id="t", tenant="acme", worker="ann", extend_ms=1)
    assert Rejected(Rejection.LEASE_LOST) == shard.ask(heartbeat)
    assert Rejected(Rejection.LEASE_LOST) == shard.ask(_submit())
    assert Rejected(Rejection.NOT_IN_PROGRESS) == shard.ask(replace(heartbeat, worker="bob"))


def test_a_cancel_sent_again_is_answered_again() -> None:
    """Another request's cancel comes too late."""
    shard = Shard()
    shard.create()
    first = shard.ask(_cancel())

    assert first == shard.ask(_cancel())
    assert Rejected(Rejection.ALREADY_TERMINAL) == shard.ask(_cancel(request="cancel-2"))
    assert (State.FAILED, "CANCELLED") == (shard.task().state, shard.task().error)


def test_retention_counts_from_the_end_and_deletes() -> None:
    """Time never deletes live tasks, and deletes ended ones at their instant."""
    shard = _leased()
    shard.view.now_ms += 1_000
    shard.ask(_submit())
    assert 0 == shard.wait(RULES.retention_ms - 1)
    assert 1 == shard.wait(1)

    assert shard.view.task("t") is None


def test_a_key_outlives_a_short_retention() -> None:
    """The key lives with its task, and both live at least a day from the create."""
    shard = Shard(LifetimeRules(retention_ms=10, key_retention_ms=1_000))
    shard.create(idempotency_key="k", fingerprint="f")
    shard.ask(_cancel())
    assert 0 == shard.wait(999)
    assert 1 == shard.wait(1)

    assert shard.view.keyed("acme", "k") is None


def test_a_poison_task_keeps_its_newest_attempts_only() -> None:
    """The history is bounded, however many attempts are allowed."""
    shard = Shard(LifetimeRules(history_attempts_max=3))
    shard.create(max_attempts=10)
    for number in range(5):
        shard.claim(request=f"claim-{number}")
        shard.ask(_abandon(request=f"abandon-{number}"))

    kept = [attempt.request for attempt in shard.task().history]

    assert ["abandon-2", "abandon-3", "abandon-4"] == kept


def test_time_acts_on_the_oldest_first_and_only_so_much() -> None:
    """An advance is bounded, so a flood of timers does not delay the shard."""
    shard = Shard()
    shard.create("late", delay_ms=20)
    shard.create("early", delay_ms=10)
    shard.view.now_ms += 20

    assert Advanced(1) == shard.ask(Advance(count=1))
    assert shard.task("early").state is State.READY
    assert shard.task("late").state is State.DELAYED


def _leased() -> Shard:
    shard = Shard()
    shard.create()
    assert ["t"] == shard.claim()
    return shard


def _abandon(request: str = "abandon-1") -> Abandon:
    return Abandon(request=request, id="t", tenant="acme", worker="ann")


def _nack(delay_ms: int = 0) -> Nack:
    return Nack(
        request="nack-1", id="t", tenant="acme", worker="ann", delay_ms=delay_ms, reason="busy"
    )


def _submit(**fields: object) -> Submit:
    submit = Submit(
        request="submit-1", id="t", tenant="acme", worker="ann", status="COMPLETED", body="{}"
    )
    return replace(submit, **fields)


def _cancel(request: str = "cancel-1") -> Cancel:
    return Cancel(request=request, id="t", tenant="acme")


def test_a_tenant_has_so_many_queues_with_tasks_and_no_more() -> None:
    """A queue counts until its last task is deleted; other tenants have their own bound."""
    shard = Shard(LifetimeRules(queues_max=2, key_retention_ms=0))
    shard.create("a", command="one")
    shard.create("b", command="two")
    refused = shard.ask(create("c", command="three"))
    shard.create("d", command="ONE")
    shard.create("e", command="three", tenant="other")
    shard.claim(commands=("one",))
    shard.ask(Cancel(request="r", id="b", tenant="acme"))
    still = shard.ask(create("c", command="three"))
    shard.ask(Delete(request="x", tenant="acme", ids=("b",), by="ops"))
    shard.create("c", command="three")

    assert Rejected(Rejection.TOO_MANY, "2") == refused == still
    assert "three" == shard.task("c").command


def test_artifacts_count_against_the_budget_of_stored_bytes() -> None:
    """An announced size counts at once, the stored one from then on, and a kept one to the end."""
    shard = Shard(LifetimeRules(budget=Budget(bytes_max=100)))
    shard.create(payload="{}")
    shard.claim()

    def stage(upload: str, size: int) -> Outcome:
        return shard.ask(Staging(id="t", tenant="acme", worker="ann", upload=upload, size=size))

    announced = [stage("one", 90), stage("two", 20)]
    corrected = [stage("one", 40), stage("one", 40), stage("two", 20), stage("three", 39)]
    full = shard.ask(create("u", payload='"longer than what is left of the budget, 38 bytes"'))
    shard.ask(submit(uploads=("two",), body=""))
    kept = shard.view.usage("acme").stored_bytes
    shard.ask(Delete(request="x", tenant="acme", ids=("t",), by="ops"))

    over = Rejected(Rejection.BUDGET_EXCEEDED, "storedBytes")
    assert [Changed(1), over] == announced
    assert [Changed(1), Changed(1), Changed(1), over] == corrected
    assert over == full
    assert 2 + 20 == kept
    assert 0 == shard.view.usage("acme").stored_bytes
