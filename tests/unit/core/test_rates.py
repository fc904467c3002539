"""Rates: how often the tasks of a key are claimed, exactly, and who goes when a token comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.core.explaining import Facts, Reason, explain
from codeq_cluster.core.holds import Nack
from codeq_cluster.core.lane import Lane, OnRetry, PerKey
from codeq_cluster.core.new_task import CreateKeyed
from codeq_cluster.core.operations import Abandon, Cancel, PutFlow, PutTopic
from codeq_cluster.core.outcomes import Created, Rejected, Rejection
from codeq_cluster.core.rate import BURST_MAX, COUNT_MAX, PERIOD_S_MAX, Rate
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import COST_MAX, State

from .shard import LEASE_MS, NOW_MS, Shard, create

TOKEN_MS = 1000
SLOW = PerKey(max_running=9, rate=Rate(1))  # A token a second, and none saved up.

rates = st.builds(
    Rate, st.integers(1, COUNT_MAX), st.integers(1, PERIOD_S_MAX), st.integers(1, BURST_MAX)
)


class Rated(Shard):
    """A queue with a rule of its keys."""

    def __init__(self, rule: PerKey = SLOW) -> None:
        super().__init__()
        self.put(rule)

    def put(self, rule: PerKey | None) -> None:
        """Put a rule in force, and let the lanes follow it."""
        topic = PutTopic(request=str(rule), tenant="acme", name="render", by="ops")
        self.ask(PutFlow(topic=topic, per_key=rule, shards=1))
        self.wait(0)

    def add(self, *ids: str, **fields: object) -> None:
        """Create tasks of the key `k`."""
        for task_id in ids:
            made = self.ask(CreateKeyed(create(task_id, key="k", **fields)))
            assert isinstance(made, Created)

    def take(self) -> list[str]:
        """Claim all that is there."""
        return self.claim(count=9, request=f"claim {self.view.now_ms}")

    @property
    def lane(self) -> Lane | None:
        """Return the row of the key, if there is one."""
        found = self.items(ItemKind.LANE)
        return found[0] if found and isinstance(found[0], Lane) else None


@given(rate=rates, costs=st.lists(st.integers(1, COST_MAX), max_size=30), data=st.data())
def test_no_window_has_more_than_the_burst_and_what_the_rate_adds(
    rate: Rate, costs: list[int], data: st.DataObject
) -> None:
    """Each waits until it may go, or longer; and after that wait it does go."""
    now_ms, spent_us, gone = NOW_MS, 0, list[tuple[int, int]]()
    for cost in costs:
        now_ms = max(now_ms, rate.free_ms(spent_us, cost))
        now_ms += data.draw(st.integers(0, 2 * TOKEN_MS))
        spent_us = rate.spent_us(spent_us, cost, now_ms=now_ms)
        gone.append((now_ms, min(cost, rate.burst)))
    for first, (begun_ms, _) in enumerate(gone):
        spent = 0
        for at_ms, cost in gone[first:]:
            spent += cost
            # In units of a thousandth token a period, all numbers are whole.
            added = rate.count * (at_ms - begun_ms)
            assert (spent - rate.burst) * rate.per_s * 1000 <= added


@given(rate=rates, cost=st.integers(1, COST_MAX))
def test_a_key_that_rested_may_go_at_once(rate: Rate, cost: int) -> None:
    """And one that has spent its burst waits for what it costs, not a millisecond longer."""
    spent_us = rate.spent_us(0, BURST_MAX, now_ms=NOW_MS)
    free_ms = rate.free_ms(spent_us, cost)
    token_us = rate.per_s * 1_000_000 / rate.count

    assert rate.free_ms(0, BURST_MAX) <= NOW_MS
    assert free_ms - 1 < NOW_MS + min(cost, rate.burst) * (token_us + 1) / 1000


def test_the_next_task_goes_when_the_token_comes_and_not_before() -> None:
    """Nobody polls: the key's row has the instant."""
    shard = Rated()
    shard.add("a", "b", "c")

    assert ["a"] == shard.take()
    assert 0 == shard.wait(TOKEN_MS - 1)
    assert [] == shard.take()
    assert 1 == shard.wait(1)
    assert ["b"] == shard.take()
    assert (State.LEASED, State.HELD) == (shard.task("a").state, shard.task("c").state)


def test_a_burst_is_saved_up_and_spent() -> None:
    """A claim gets one task of a key, the next claim the next one, while there are tokens."""
    shard = Rated(PerKey(max_running=9, rate=Rate(1, 1, 3)))
    shard.add(*"abcde")

    assert [["a"], ["b"], ["c"], []] == [shard.take() for _ in range(4)]
    shard.wait(2 * TOKEN_MS)
    assert [["d"], ["e"]] == [shard.take() for _ in range(2)]


@pytest.mark.parametrize("on_retry", ["hold", "yield"])
def test_a_retry_spends_a_token_too(on_retry: str) -> None:
    """It goes before the others of its key, and not before its token."""
    shard = Rated(PerKey(rate=Rate(1), on_retry=OnRetry(on_retry)))
    shard.add("a", "b")
    shard.take()
    shard.ask(Abandon(request="x", id="a", tenant="acme", worker="ann", token=1))

    assert State.HELD is shard.task("a").state
    assert [] == shard.take()
    shard.wait(TOKEN_MS)
    assert ["a" if on_retry == "hold" else "b"] == shard.take()


def test_several_that_come_back_at_once_have_no_places_left() -> None:
    """Their leases end in one entry, and there is a token for one of them."""
    shard = Rated(PerKey(max_running=9, rate=Rate(1, 1, 3)))
    shard.add(*"abc")
    for _ in range(3):
        shard.take()
    shard.wait(LEASE_MS)

    assert [["a"], ["b"], ["c"], []] == [shard.take() for _ in range(4)]


def test_a_dearer_task_waits_for_all_its_tokens_and_none_passes_it() -> None:
    """The order of the key stands."""
    shard = Rated(PerKey(max_running=9, rate=Rate(1, 1, 3)))
    shard.add("a")
    shard.add("dear", cost=3)
    shard.add("b")
    shard.take()

    assert [] == shard.take()
    shard.wait(TOKEN_MS)
    assert ["dear"] == shard.take()
    assert [] == shard.take()


def test_a_better_priority_takes_no_place_without_its_tokens() -> None:
    """Else nothing of the key would go, although one can."""
    shard = Rated(PerKey(max_running=9, rate=Rate(1, 1, 3)))
    shard.add("a", "b")
    shard.take()
    shard.add("dear", cost=3, priority=9)

    assert (State.READY, State.HELD) == (shard.task("b").state, shard.task("dear").state)
    assert ["b"] == shard.take()


def test_a_task_dearer_than_the_burst_is_refused_and_costs_the_burst_if_that_is_lowered() -> None:
    """It would never go."""
    shard = Rated(PerKey(max_running=9, rate=Rate(1, 1, 3)))
    refused = shard.ask(CreateKeyed(create("x", key="k", cost=4)))
    shard.add("a", cost=3)
    shard.put(PerKey(max_running=9, rate=Rate(1, 1, 2)))

    assert Rejected(Rejection.INVALID_COST, "3") == refused
    assert ["a"] == shard.take()
    assert shard.lane is not None
    assert (NOW_MS + 2 * TOKEN_MS) * 1000 == shard.lane.spent_us


def test_a_task_without_a_key_may_cost_more_than_the_burst_of_one() -> None:
    """No rate binds it."""
    shard = Rated(PerKey(max_running=9, rate=Rate(1, 1, 3)))
    made = shard.ask(create("x", cost=4))

    assert isinstance(made, Created)
    assert ["x"] == shard.take()


def test_a_key_without_tasks_is_remembered_until_its_tokens_are_back() -> None:
    """So ending a task and creating the next one is no way round the rate."""
    shard = Rated()
    shard.add("a")
    shard.take()
    shard.ask(Cancel(request="x", id="a", tenant="acme"))
    shard.add("b")
    held = shard.task("b").state
    shard.ask(Cancel(request="y", id="b", tenant="acme"))

    assert State.HELD is held
    assert shard.lane is not None
    assert shard.lane.is_idle
    shard.wait(TOKEN_MS)
    assert shard.lane is None


def test_a_rule_that_ends_lets_all_go_and_one_that_comes_holds_the_spent_ones() -> None:
    """The walk over the keys does it, as for every rule."""
    shard = Rated()
    shard.add("a", "b", "c")
    shard.take()
    shard.put(PerKey(max_running=9))
    free = shard.task("b").state
    shard.put(SLOW)

    assert State.READY is free
    assert State.HELD is shard.task("b").state
    shard.wait(TOKEN_MS)
    assert ["b"] == shard.take()


def test_a_stopped_or_full_key_waits_for_no_token() -> None:
    """Its row says no instant that would come in vain."""
    shard = Rated(PerKey(max_running=1, rate=Rate(1)))
    shard.add("a", "b")
    shard.take()

    assert shard.lane is not None
    assert 0 == shard.lane.expires_ms
    shard.wait(TOKEN_MS)
    shard.ask(Nack(request="x", id="a", tenant="acme", worker="ann", token=1, delay_ms=1))
    assert 0 == shard.lane.expires_ms


def test_a_held_task_says_until_when_the_rate_holds_it() -> None:
    """And once that has come, that it is about to go."""
    shard = Rated()
    shard.add("a", "b")
    shard.take()
    assert shard.lane is not None
    until_ms = shard.lane.limited_until_ms
    waits = explain(shard.task("b"), Facts(now_ms=NOW_MS, limited_until_ms=until_ms))
    goes = explain(shard.task("b"), Facts(now_ms=until_ms, limited_until_ms=until_ms))

    assert (Reason.RATE_LIMITED, NOW_MS + TOKEN_MS) == (waits.reason, waits.until_ms)
    assert (Reason.KEY_BUSY, 0) == (goes.reason, goes.until_ms)


def test_a_task_that_gives_way_to_a_better_priority_keeps_its_turn() -> None:
    """It was there before the others of its own priority."""
    shard = Rated(PerKey(max_running=1))
    shard.add("a", "b", "c")
    shard.take()
    shard.ask(Cancel(request="x", id="a", tenant="acme"))
    shard.add("urgent", priority=9)
    turns = []
    for _ in range(3):
        [task_id] = shard.take()
        turns.append(task_id)
        shard.ask(Cancel(request=f"end {task_id}", id=task_id, tenant="acme"))

    assert ["urgent", "b", "c"] == turns
