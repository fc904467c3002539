"""Held queues: a worker lets nothing of its task's whole queue go for a while."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.core.decide import decide
from codeq_cluster.core.explaining import Facts, Reason, explain
from codeq_cluster.core.gate import PerQueue
from codeq_cluster.core.holds import HoldQueue
from codeq_cluster.core.lane import PerKey
from codeq_cluster.core.new_task import CreateKeyed
from codeq_cluster.core.operations import Abandon
from codeq_cluster.core.outcomes import Outcome, Rejected, Rejection, Returned
from codeq_cluster.core.rate import Rate
from codeq_cluster.core.task import AttemptOutcome, State

from .shard import LEASE_MS, NOW_MS, RULES, create, submit
from .test_held_keys import too_many
from .test_queue_limits import SLOW, TOKEN_MS, Limited

HOLD_MS = 5_000
WIDE = PerQueue(max_running=9)


class Held(Limited):
    """A queue with a limit, which workers hold."""

    def hold(self, task_id: str, *, ms: int = HOLD_MS, commands: tuple[str, ...] = ()) -> Outcome:
        """Give a task back, and hold its queue."""
        return self.ask(hold(task_id, token=self.task(task_id).lease_token, ms=ms, of=commands))


def hold(task_id: str, *, token: int, ms: int = HOLD_MS, of: tuple[str, ...] = ()) -> HoldQueue:
    """Return a worker's wish to hold the queue of a task."""
    return HoldQueue(nack=too_many(task_id, token=token, ms=ms), commands=of)


def test_nothing_of_a_held_queue_goes_and_then_the_task_that_was_given_back() -> None:
    """Not to a claim of any command either; other queues go on, and it costs no attempt."""
    shard = Held(WIDE)
    for each in "abc":
        shard.create(each, max_attempts=1)
    shard.create("high", priority=9)
    shard.create("other", command="thumb")
    shard.claim(count=2, request="one")
    answer = shard.hold("a")
    claims = [shard.claim(count=9, commands=of, request=f"{of}") for of in (("render",), ())]

    assert Returned(dead=False, delay_ms=HOLD_MS) == answer
    assert [[], ["other"]] == claims
    shard.create("new")
    assert 0 == shard.wait(HOLD_MS - 1)
    assert [] == shard.take()
    assert 1 == shard.wait(1)
    assert shard.gate is None
    assert ["a", "b", "c", "new"] == shard.take()
    assert 1 == shard.task("a").attempts


def test_a_task_that_comes_back_goes_first_of_its_own_priority() -> None:
    """More urgent ones stay before it, and others that are given back later go before it."""
    shard = Held(WIDE)
    for each in "abc":
        shard.create(each)
    shard.claim(count=2, request="one")
    shard.create("high", priority=9)
    shard.hold("a")
    shard.hold("b")
    shard.wait(HOLD_MS)

    assert ["high", "b", "a", "c"] == shard.take()


def test_the_longer_of_two_holds_counts() -> None:
    """The second API answer may be the older one."""
    shard = Held(WIDE)
    shard.create("a")
    shard.create("b")
    shard.take()
    shard.hold("a", ms=2 * HOLD_MS)
    shard.hold("b")

    assert 0 == shard.wait(2 * HOLD_MS - 1)
    assert 1 == shard.wait(1)


@pytest.mark.parametrize("hold_ms", [TOKEN_MS // 2, 3 * TOKEN_MS])
def test_a_rate_and_a_hold_both_count(hold_ms: int) -> None:
    """Whichever lasts longer; tokens that come meanwhile are saved up, to the burst."""
    shard = Held(PerQueue(rate=Rate(1, 1, 2)))
    for each in "abcd":
        shard.create(each)
    shard.take()
    shard.hold("a", ms=hold_ms)
    before = shard.wait(max(hold_ms, TOKEN_MS) - 1)

    assert (0, []) == (before, shard.take())
    shard.wait(1)
    assert (["a"] if hold_ms < TOKEN_MS else ["a", "c"]) == shard.take()
    assert shard.gate is not None
    assert 0 == shard.gate.held_until_ms


@given(
    rate=st.none() | st.builds(Rate, st.integers(1, 9), st.just(1), st.integers(1, 4)),
    steps=st.lists(
        st.tuples(st.integers(0, 900), st.integers(0, 3), st.sampled_from([0, 0, 1, 400, 2_000])),
        max_size=25,
    ),
)
def test_between_a_hold_and_its_end_nothing_goes_and_afterwards_all_that_may(
    rate: Rate | None, steps: list[tuple[int, int, int]]
) -> None:
    """Whatever arrives, ends or is held again meanwhile; nothing is lost, and no attempt counts."""
    shard = Held(PerQueue(max_running=3, rate=rate))
    running: list[str] = []
    until_ms = 0
    for number, (span_ms, count, hold_ms) in enumerate(steps):
        for each in range(count):
            shard.create(f"{number}.{each}", max_attempts=1)
        shard.wait(span_ms)
        ready = shard.view.ready("acme", "render")
        wanted = min(3 - len(running), len(list(ready)))
        taken = shard.take()
        running += taken
        is_held = shard.view.now_ms < until_ms
        assert not (is_held and taken)
        assert is_held or rate is not None or wanted == len(taken)
        if running and hold_ms:
            shard.hold(running.pop(), ms=hold_ms)
            until_ms = max(until_ms, shard.view.now_ms + hold_ms)
        elif running:
            token = shard.task(running[0]).lease_token
            shard.ask(submit(id=running.pop(0), request=f"r{number}", token=token))
    shard.view.now_ms = max(shard.view.now_ms, until_ms)
    for _ in range(9 * len(steps)):
        shard.wait(TOKEN_MS)
        for each in (*running, *shard.take()):
            token = shard.task(each).lease_token
            shard.ask(submit(id=each, request=f"end {each}", token=token))
        running = []

    assert {State.DONE} >= {task.state for task in shard.view.tasks.values()}
    assert {1} >= {task.attempts for task in shard.view.tasks.values()}


def test_a_hold_lasts_at_most_as_long_as_any_backoff() -> None:
    """Whatever delay is asked for, or the topic says for its own tasks."""
    shard = Held(WIDE)
    shard.create("a")
    shard.create("b")
    shard.take()
    first = shard.hold("a", ms=10 * RULES.backoff_max_ms)

    assert Returned(dead=False, delay_ms=RULES.backoff_max_ms) == first


def test_another_limit_keeps_a_hold_and_its_end_lets_the_queue_go() -> None:
    """Also a limit that has, or had, a rate."""
    shard = Held(SLOW)
    shard.create("a")
    shard.create("b")
    shard.take()
    shard.hold("a", ms=9 * HOLD_MS)
    for rule in (WIDE, PerQueue(rate=Rate(9, 1, 9)), WIDE):
        shard.wait(1)
        shard.put(rule)
        assert [] == shard.take()
    shard.put(None)

    assert shard.gate is None
    assert ["a", "b"] == shard.take()


def test_leases_of_others_go_on_and_what_comes_back_waits() -> None:
    """A hold stops what would begin, not what runs."""
    shard = Held(WIDE)
    shard.create("a")
    shard.create("b")
    shard.create("c")
    shard.take()
    shard.hold("a", ms=9 * LEASE_MS)
    shard.ask(Abandon(request="x", id="b", tenant="acme", worker="ann", token=1))
    shard.wait(LEASE_MS)

    assert [State.READY] * 3 == [shard.task(each).state for each in "abc"]
    assert [] == shard.take()
    shard.wait(8 * LEASE_MS)
    assert ["a", "b", "c"] == shard.take()


def test_keys_keep_their_places_and_their_rates() -> None:
    """The task keeps the place of its key; with a rate it waits for another token, too."""
    shard = Held(None)
    shard.put(WIDE, PerKey())
    for each in ("a1", "a2", "b1"):
        shard.ask(CreateKeyed(create(each, key=each[0])))
    shard.take()
    shard.hold("a1")
    shard.wait(HOLD_MS)

    assert State.HELD is shard.task("a2").state
    assert ["a1"] == shard.take()


def test_what_cannot_be_held_is_refused_and_stays_leased() -> None:
    """No limit, a task from before it, another command's right, another worker's lease."""
    shard = Held(None)
    shard.create("before")
    shard.create("free")
    shard.take()
    unlimited = shard.hold("free")
    shard.put(WIDE)
    shard.create("a")
    shard.take()
    earlier = shard.hold("before")
    other = shard.hold("a", commands=("scan",))

    assert Rejected(Rejection.NOTHING_TO_HOLD, "queue") == unlimited == earlier
    assert Rejected(Rejection.EVENT_TYPE_NOT_ALLOWED) == other
    assert Rejected(Rejection.LEASE_LOST) == shard.ask(hold("a", token=7))
    assert Rejected(Rejection.NOT_FOUND) == shard.ask(hold("b", token=1))
    assert {State.LEASED} == {shard.task(each).state for each in ("a", "free", "before")}


def test_a_hold_that_is_sent_again_changes_nothing() -> None:
    """The history remembers it, with its reason."""
    shard = Held(WIDE)
    shard.create("a")
    shard.take()
    asked = hold("a", token=1, of=("Render",))
    first = shard.ask(asked)
    again = decide(shard.view, asked, RULES)
    [attempt] = shard.task("a").history

    assert (first, ()) == (again.outcome, again.changes)
    assert (AttemptOutcome.QUEUE_HELD, "429") == (attempt.outcome, attempt.error)


def test_a_ready_task_says_until_when_a_worker_holds_its_queue() -> None:
    """And not that the rate of the queue does."""
    shard = Held(SLOW)
    shard.create("a")
    shard.take()
    shard.hold("a")
    gate = shard.gate
    assert gate is not None
    facts = Facts(now_ms=NOW_MS, held_until_ms=gate.held_until_ms, limited_until_ms=gate.opens_ms)
    waits = explain(shard.task("a"), facts)

    assert NOW_MS + TOKEN_MS == gate.opens_ms
    assert (Reason.QUEUE_HELD, NOW_MS + HOLD_MS) == (waits.reason, waits.until_ms)
