"""Key rules: an admin gives one key its own limits, or pauses it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from codeq_cluster.core import key_rules
from codeq_cluster.core.decide import decide
from codeq_cluster.core.explaining import Facts, Reason, explain
from codeq_cluster.core.lane import KeyRule, OwnRule, PerKey, SetKey, lane_id, lane_name
from codeq_cluster.core.operations import Abandon
from codeq_cluster.core.outcomes import Changed, Imported, Outcome, Rejected, Rejection
from codeq_cluster.core.rate import Rate
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.tally import Tally
from codeq_cluster.core.task import State

from .shard import LEASE_MS, NOW_MS, RULES
from .test_held_keys import Held
from .test_importing import IMPORT

ID = lane_id("render", lane_name("k"))


class Ruled(Held):
    """A queue whose key `k` may have a rule of its own."""

    def own(self, own: OwnRule | None, *, key: str = "k") -> Outcome:
        """Give the key a rule."""
        request = f"{key} {own} {self.view.now_ms}"
        return self.ask(
            SetKey(request=request, tenant="acme", queue="render", key=key, own=own, by="ops")
        )


def test_a_key_may_run_more_than_the_others_and_then_fewer() -> None:
    """Those that are ready beyond its new limit wait again, in their order."""
    shard = Ruled(PerKey(max_running=1))
    shard.add(*"abcdef")
    assert ["a"] == shard.take()
    shard.own(OwnRule(max_running=4, weight=2))
    more = shard.states("bcd")
    both = shard.claim(count=2, request="two")
    shard.own(OwnRule(max_running=3))
    fewer = shard.states("def")
    shard.own(None)
    for each in "abc":
        shard.ask(Abandon(request=f"x{each}", id=each, tenant="acme", worker="ann"))

    assert [State.READY, State.READY, State.HELD] == more
    assert ["b", "c"] == both
    assert [State.HELD] * 3 == fewer
    assert ["c"] == shard.take()
    assert [] == shard.take()


def test_a_paused_key_rests_until_it_is_resumed() -> None:
    """Also what was ready, what comes back, what arrives; and it survives a key without tasks."""
    shard = Ruled(PerKey(max_running=9))
    shard.own(OwnRule(paused=True))
    idle = shard.lane
    shard.add("a")
    shard.own(OwnRule(max_running=5))
    shard.add("b")
    shard.take()
    shard.own(OwnRule(paused=True))
    shard.add("c", priority=9)
    shard.wait(LEASE_MS)
    rests = shard.states("abc")
    why = explain(shard.task("a"), Facts(now_ms=NOW_MS, key_paused=True))
    shard.own(None)

    assert idle is not None
    assert idle.is_idle
    assert [State.HELD] * 3 == rests
    assert Reason.KEY_PAUSED is why.reason
    assert [["c"], ["a"], ["b"]] == [shard.take() for _ in range(3)]


def test_a_key_has_its_own_rate_instead_of_that_of_its_queue() -> None:
    """And its weight says nothing then: only its next task is ready."""
    shard = Ruled(PerKey(max_running=9))
    shard.own(OwnRule(rate=Rate(1, 10), weight=9))
    shard.add(*"ab")
    first = shard.claim(count=9, request="all", lease_ms=99_000)

    assert ["a"] == first
    assert 0 == shard.wait(9_999)
    assert 1 == shard.wait(1)
    assert ["b"] == shard.take()


def test_many_that_were_ready_are_held_again_in_steps() -> None:
    """Each entry is small, and time goes on with the rest."""
    shard = Ruled(PerKey())
    shard.own(OwnRule(max_running=99))
    names = [f"t{number:02}" for number in range(40)]
    shard.add(*names)
    for _ in names:
        shard.take()
    shard.view.now_ms += LEASE_MS
    shard.wait(0)
    ready = [shard.task(name).state for name in names]
    shard.own(None)
    steps = 0
    while shard.wait(0):
        steps += 1
    states = [shard.task(name).state for name in names]

    assert [State.READY] * 40 == ready
    assert 2 == steps
    assert [State.READY] + [State.HELD] * 39 == states


def test_a_rule_of_a_key_waits_for_one_of_its_queue() -> None:
    """Without that, nothing is limited; with one, the key has its own at once."""
    shard = Ruled(PerKey())
    shard.put(None)
    shard.own(OwnRule(max_running=2, weight=2))
    shard.add(*"abc")
    free = shard.states("abc")
    shard.put(PerKey())

    assert [State.READY] * 3 == free
    assert [State.READY, State.READY, State.HELD] == shard.states("abc")


def test_a_rule_ends_with_its_row_and_the_same_again_changes_nothing() -> None:
    """A key without tasks and rule leaves nothing behind, and its tally neither."""
    shard = Ruled(PerKey())
    for own in (OwnRule(), OwnRule(weight=3), None):
        asked = SetKey(request=str(own), tenant="acme", queue="render", key="k", own=own, by="ops")
        first, again = shard.ask(asked), decide(shard.view, asked, RULES)
        assert (Changed(1), ()) == (first, again.changes)
        assert first == again.outcome

    assert shard.lane is None
    assert shard.view.item(ItemKind.KEY_RULE, "acme", ID) is None
    assert shard.view.item(ItemKind.TALLY, "acme", "keyrules") is None


def test_a_tenant_has_so_many_rules_on_a_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that it has may change."""
    monkeypatch.setattr(key_rules, "KEY_RULES_MAX", 1)
    shard = Ruled(PerKey())
    first = shard.own(OwnRule(weight=2))
    second = shard.own(OwnRule(weight=2), key="j")
    changed = shard.own(OwnRule(weight=3))

    assert (Changed(1), Changed(1)) == (first, changed)
    assert Rejected(Rejection.TOO_MANY, "keys with rules of their own") == second


def test_rules_of_keys_come_with_an_import() -> None:
    """A key that has one here keeps it; tasks of the key follow the one that came."""
    shard = Ruled(PerKey())
    shard.own(OwnRule(weight=2), key="j")
    shard.add("a")
    own = OwnRule(paused=True)
    items = tuple(
        KeyRule(tenant="zeta", id=lane_id("render", lane_name(key)), key=key, own=own)
        for key in "jk"
    )
    outcome = shard.ask(replace(IMPORT, items=items))
    again = shard.ask(replace(IMPORT, request="again", items=items))
    found = [each for each in shard.items(ItemKind.KEY_RULE) if isinstance(each, KeyRule)]

    assert isinstance(outcome, Imported)
    assert isinstance(again, Imported)
    assert (1, 1) == (outcome.items_imported, outcome.items_present)
    assert (0, 2) == (again.items_imported, again.items_present)
    assert {"j": OwnRule(weight=2), "k": own} == {each.key: each.own for each in found}
    assert State.HELD is shard.task("a").state
    tally = shard.view.item(ItemKind.TALLY, "acme", "keyrules")
    assert Tally(tenant="acme", id="keyrules", count=2) == tally
