"""Held keys: a worker lets nothing of its task's key go for a while."""

from __future__ import annotations

import pytest

from codeq_cluster.core.decide import decide
from codeq_cluster.core.explaining import Facts, Reason, explain
from codeq_cluster.core.holds import HoldKey, Nack
from codeq_cluster.core.lane import OnRetry, Order, PerKey
from codeq_cluster.core.new_task import CreateKeyed
from codeq_cluster.core.operations import Abandon, Requeue, UndoRequeue
from codeq_cluster.core.outcomes import Outcome, Rejected, Rejection, Returned
from codeq_cluster.core.rate import Rate
from codeq_cluster.core.task import AttemptOutcome, State

from .shard import LEASE_MS, NOW_MS, RULES, create
from .test_rates import Rated

HOLD_MS = 5_000


class Held(Rated):
    """A queue with a rule of its keys, which workers hold."""

    def hold(self, task_id: str, *, ms: int = HOLD_MS, commands: tuple[str, ...] = ()) -> Outcome:
        """Give a task back, and hold its key."""
        return self.ask(hold(task_id, token=self.task(task_id).lease_token, ms=ms, of=commands))

    def states(self, ids: str) -> list[State]:
        """Return the states of tasks."""
        return [self.task(each).state for each in ids]


def hold(task_id: str, *, token: int, ms: int = HOLD_MS, of: tuple[str, ...] = ()) -> HoldKey:
    """Return a worker's wish to hold the key of a task."""
    return HoldKey(nack=too_many(task_id, token=token, ms=ms), commands=of)


def too_many(task_id: str, *, token: int, ms: int) -> Nack:
    """Return the nack of a worker whose API wants less."""
    return Nack(
        request=f"hold {task_id} {token}",
        id=task_id,
        tenant="acme",
        worker="ann",
        token=token,
        delay_ms=ms,
        reason="429",
    )


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("on_retry", OnRetry)
def test_nothing_of_a_held_key_goes_and_then_the_task_that_was_given_back(
    order: Order, on_retry: OnRetry
) -> None:
    """Not even the one that was ready to be claimed; and it costs no attempt."""
    shard = Held(PerKey(max_running=3, order=order, on_retry=on_retry))
    shard.add("a", "b", "c", max_attempts=1)
    shard.ask(CreateKeyed(create("other", key="else")))
    first = shard.claim(count=1, request="one")
    answer = shard.hold("a")

    assert ["a"] == first
    assert Returned(dead=False, delay_ms=HOLD_MS) == answer
    assert [State.HELD] * 3 == shard.states("abc")
    assert ["other"] == shard.take()
    assert 0 == shard.wait(HOLD_MS - 1)
    assert [] == shard.take()
    assert 1 == shard.wait(1)
    assert [["a"], ["b"], ["c"]] == [shard.take() for _ in range(3)]
    assert 1 == shard.task("a").attempts


def test_those_that_come_back_or_arrive_meanwhile_wait_too() -> None:
    """A lease that ends, a task that is abandoned or new, and one that is more urgent."""
    shard = Held(PerKey(max_running=9))
    shard.add(*"abc")
    for _ in "abc":
        shard.take()
    shard.hold("b", ms=9 * LEASE_MS)
    shard.ask(Abandon(request="x", id="a", tenant="acme", worker="ann", token=1))
    shard.add("d", priority=9)
    shard.wait(LEASE_MS)

    assert [State.HELD] * 4 == shard.states("abcd")
    shard.wait(8 * LEASE_MS)
    assert [["d"], ["c"], ["a"], ["b"]] == [shard.take() for _ in range(4)]


def test_many_that_are_ready_at_once_are_taken_back_in_steps() -> None:
    """Their leases have ended in one entry, before another worker holds the key."""
    shard = Held(PerKey(max_running=99))
    names = [f"t{number:02}" for number in range(40)]
    shard.add(*names, "last")
    for _ in names:
        shard.take()
    [last] = shard.claim(count=1, request="last", lease_ms=9 * LEASE_MS)
    shard.view.now_ms += LEASE_MS
    shard.wait(0)
    ready = [shard.task(name).state for name in names]
    shard.hold(last, ms=9 * LEASE_MS)
    steps = 0
    while shard.wait(0):
        steps += 1

    assert [State.READY] * 40 == ready
    assert 2 == steps
    assert {State.HELD} == {shard.task(name).state for name in names}


def test_the_longer_of_two_holds_counts() -> None:
    """The second API answer may be the older one."""
    shard = Held(PerKey(max_running=2))
    shard.add(*"ab")
    shard.take()
    shard.take()
    shard.hold("a", ms=2 * HOLD_MS)
    shard.hold("b")

    assert 0 == shard.wait(2 * HOLD_MS - 1)
    assert 1 == shard.wait(1)


def test_a_hold_is_remembered_by_a_key_without_tasks_and_no_longer_than_it_lasts() -> None:
    """Cancelling the task and creating another is no way round it."""
    shard = Held(PerKey())
    shard.add("a", ttl_ms=1)
    shard.take()
    shard.hold("a")
    shard.wait(1)
    idle = shard.lane
    shard.add("b")

    assert State.DEAD is shard.task("a").state
    assert idle is not None
    assert idle.is_idle
    assert State.HELD is shard.task("b").state
    shard.wait(HOLD_MS)
    assert ["b"] == shard.take()
    assert shard.lane is not None
    assert 0 == shard.lane.held_until_ms


def test_a_rate_and_a_hold_both_count() -> None:
    """After the hold the next one waits for its token, as ever."""
    shard = Held(PerKey(max_running=9, rate=Rate(1, 10)))
    shard.add(*"ab")
    shard.take()
    shard.hold("a")
    shard.wait(HOLD_MS)

    assert [] == shard.take()
    shard.wait(10_000 - HOLD_MS)
    assert ["a"] == shard.take()


def test_a_rule_that_ends_lets_a_held_key_go() -> None:
    """There is nothing left that holds it, also when a rule comes back."""
    shard = Held(PerKey())
    shard.add(*"ab")
    shard.take()
    shard.hold("a")
    shard.put(None)
    free = shard.states("ab")
    shard.put(PerKey())

    assert [State.READY] * 2 == free
    assert State.READY is shard.task("a").state


def test_what_cannot_be_held_is_refused_and_stays_leased() -> None:
    """No key, no rule, another command's right, another worker's lease."""
    shard = Held(PerKey())
    shard.add("a")
    shard.create("plain")
    shard.claim(count=2)
    other = shard.hold("a", commands=("scan",))
    keyless = shard.hold("plain")
    shard.put(None)
    ruleless = shard.hold("a")

    assert Rejected(Rejection.EVENT_TYPE_NOT_ALLOWED) == other
    assert Rejected(Rejection.NOTHING_TO_HOLD, "key") == keyless
    assert Rejected(Rejection.NOTHING_TO_HOLD, "key") == ruleless
    assert Rejected(Rejection.LEASE_LOST) == shard.ask(hold("a", token=7))
    assert Rejected(Rejection.NOT_FOUND) == shard.ask(hold("b", token=1))
    assert State.LEASED is shard.task("a").state


def test_a_hold_that_is_sent_again_changes_nothing() -> None:
    """The history remembers it, with its reason."""
    shard = Held(PerKey())
    shard.add("a")
    shard.take()
    asked = hold("a", token=1, of=("Render",))
    first = shard.ask(asked)
    again = decide(shard.view, asked, RULES)
    [attempt] = shard.task("a").history

    assert (first, ()) == (again.outcome, again.changes)
    assert (AttemptOutcome.KEY_HELD, "429") == (attempt.outcome, attempt.error)


def test_a_requeue_that_is_undone_counts_no_hold_as_an_attempt() -> None:
    """The attempts are counted again from the history."""
    shard = Held(PerKey())
    shard.add("a", max_attempts=1)
    shard.take()
    shard.hold("a")
    shard.wait(HOLD_MS)
    shard.take()
    shard.ask(Abandon(request="x", id="a", tenant="acme", worker="ann"))
    dead = shard.task("a")
    shard.ask(Requeue(request="r", tenant="acme", by="ops", ids=("a",)))
    shard.ask(UndoRequeue(request="u", tenant="acme", by="ops", requeue="r", ids=("a",)))

    again = shard.task("a")

    assert (State.DEAD, 1) == (dead.state, dead.attempts)
    assert (dead.attempts, dead.history) == (again.attempts, again.history)


def test_a_held_task_says_until_when_a_worker_holds_its_key() -> None:
    """And not that the rate of the key does."""
    shard = Held(PerKey())
    shard.add("a")
    shard.take()
    shard.hold("a")
    assert shard.lane is not None
    until_ms = shard.lane.held_until_ms
    waits = explain(shard.task("a"), Facts(now_ms=NOW_MS, held_until_ms=until_ms))
    goes = explain(shard.task("a"), Facts(now_ms=until_ms, held_until_ms=until_ms))

    assert (NOW_MS + HOLD_MS, 0) == (until_ms, shard.lane.limited_until_ms)
    assert (Reason.KEY_HELD, until_ms) == (waits.reason, waits.until_ms)
    assert Reason.KEY_BUSY is goes.reason
