"""Turns: the queue that has paid least is next."""

from __future__ import annotations

import pytest

from codeq_cluster.core import fairness
from codeq_cluster.core.fairness import WEIGHT_MAX, Turns


def test_among_equals_the_first_in_order_is_due() -> None:
    """The caller gives the order."""
    assert "b" == Turns().due(["b", "a"])
    assert "a" == Turns().due(iter(["a", "b"]))


def test_a_turn_costs_one_over_the_weight() -> None:
    """Weight 2 pays half as much as weight 1, even after many turns."""
    turns = Turns()
    order = _serve(turns, {"heavy": 2, "light": 1}, 300)

    assert ["heavy", "light", "heavy", "heavy", "light", "heavy"] == order[:6]
    assert 200 == order.count("heavy")


@pytest.mark.parametrize("weight", [1, 3, 7, 97, WEIGHT_MAX])
def test_no_weight_leaves_a_rest(weight: int) -> None:
    """As many turns as the weight cost exactly one turn of weight 1."""
    turns = Turns()
    order = _serve(turns, {"light": 1, "heavy": weight}, 5 * (weight + 1))

    assert 5 == order.count("light")


def test_a_queue_that_comes_late_joins_at_the_present_time() -> None:
    """A late queue gets the next turn, and from then on no more than its share."""
    turns = Turns()
    _serve(turns, {"old": 1}, 50)

    assert 3 == _serve(turns, {"old": 1, "new": 1}, 6).count("new")


@pytest.mark.parametrize("weight", [0, WEIGHT_MAX + 1])
def test_a_weight_out_of_bounds_is_a_bug(weight: int) -> None:
    """Topics are checked before they are stored."""
    with pytest.raises(AssertionError):
        Turns().served("a", weight=weight)


def test_only_so_many_queues_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound all queues restart; a known queue takes no more room."""
    monkeypatch.setattr(fairness, "QUEUES_MAX", 2)
    turns = Turns()
    for queue in ("a", "b"):
        turns.served(queue, weight=1)
    assert "c" == turns.due(["b", "a", "c"])
    turns.served("c", weight=1)

    assert 1 == turns.begun
    assert "b" == turns.due(["b", "a"])
    assert "b" == turns.due(["c", "b"])


def test_a_queue_that_is_as_good_as_forgotten_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues that have paid no more than the present time make room, and no queue restarts."""
    monkeypatch.setattr(fairness, "QUEUES_MAX", 2)
    turns = Turns()
    for queue in ("a", "b", "b", "c"):
        turns.served(queue, weight=1)

    assert 0 == turns.begun
    assert "a" == turns.due(["b", "c", "a"])
    assert "d" == turns.due(["b", "d"])


def _serve(turns: Turns, weights: dict[str, int], count: int) -> list[str]:
    order: list[str] = []
    for _ in range(count):
        queue = turns.due(weights)
        turns.served(queue, weight=weights[queue])
        order.append(queue)
    return order
