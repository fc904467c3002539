"""Kept: who floods a bounded memory loses its own oldest things."""

from __future__ import annotations

from codeq_cluster.kept import Kept


def test_who_has_the_most_makes_room() -> None:
    """Others keep theirs, also the oldest of all."""
    kept: Kept[str, int] = Kept(10)
    kept.put("quiet", "first", 0)
    for number in range(100):
        kept.put("greedy", number, number)
    kept.put("late", "one", 1)

    assert [0] == kept.of("quiet")
    assert [1] == kept.of("late")
    assert list(range(92, 100)) == kept.of("greedy")
    assert 10 == len(kept.every())


def test_a_thing_that_is_put_again_is_the_newest() -> None:
    """It takes the place of the earlier one, with its own weight."""
    kept: Kept[str, str] = Kept(10)
    kept.put("acme", "a", "old", weight=4)
    kept.put("acme", "b", "b", weight=4)
    kept.put("acme", "a", "new", weight=2)
    kept.put("acme", "c", "c", weight=6)

    assert ["new", "c"] == kept.of("acme")
    assert "new" == kept.get("acme", "a")
    assert kept.get("acme", "b") is None


def test_a_thing_that_is_renewed_outlives_those_put_since() -> None:
    """With the weight that it has; one that is not there stays so."""
    kept: Kept[str, str] = Kept(10)
    kept.put("acme", "a", "a", weight=4)
    kept.put("acme", "b", "b", weight=4)
    assert ["a", None] == [kept.renewed("acme", name) for name in "ac"]
    kept.put("acme", "d", "d", weight=4)

    assert ["a", "d"] == kept.of("acme")
    assert kept.renewed("other", "a") is None


def test_what_is_dropped_leaves_its_room() -> None:
    """A drop of a thing that is not there changes nothing."""
    kept: Kept[str, int] = Kept(2)
    kept.put("acme", "a", 1, weight=2)
    for name in ("a", "a", "b"):
        kept.drop("acme", name)
    kept.put("acme", "b", 2)
    kept.put("other", "c", 3)

    assert [("acme", "b", 2), ("other", "c", 3)] == kept.every()
    assert [] == kept.of("nobody")


def test_a_thing_beyond_all_room_is_not_kept() -> None:
    """Nor does it push out a thing of somebody who has less."""
    kept: Kept[str, int] = Kept(4)
    kept.put("acme", "a", 1)
    kept.put("other", "b", 2, weight=5)

    assert [("acme", "a", 1)] == kept.every()
