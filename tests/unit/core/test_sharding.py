"""A task's shard follows from its id alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.core.sharding import SHARDS_MAX, fnv1a_64, home_shard, shard_of, with_shard
from codeq_cluster.core.task_ids import kept


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0xCBF29CE484222325), ("a", 0xAF63DC4C8601EC8C), ("foobar", 0x85944171F73967E8)],
)
def test_the_hash_is_fnv1a(text: str, expected: int) -> None:
    """The published test vectors hold."""
    assert expected == fnv1a_64(text)


def test_a_shard_is_one_of_those_there_are() -> None:
    """0 <= shard < shards, and every shard gets its share."""
    assert {0, 1, 2, 3} == {shard_of(str(number), 4) for number in range(64)}


@given(text=st.text(), shards=st.integers(1, SHARDS_MAX))
def test_a_shard_is_the_hash_modulo_their_number(text: str, shards: int) -> None:
    """The bits of the hash that are not computed do not matter."""
    assert fnv1a_64(text) % shards == shard_of(text, shards)


def test_tenants_live_on_every_shard_and_the_nameless_one_like_the_others() -> None:
    """A tenant's home shard never changes, and no shard is every tenant's home."""
    homes = {home_shard(f"tenant-{number}", 4) for number in range(64)}

    assert {0, 1, 2, 3} == homes
    assert home_shard("", 4) == home_shard("_", 4) == shard_of("tenant/_", 4)


@given(
    bits=st.integers(0, 2**128 - 1),
    shards=st.integers(1, SHARDS_MAX),
    data=st.data(),
)
def test_an_id_is_drawn_for_the_shard_that_is_wanted(
    bits: int, shards: int, data: st.DataObject
) -> None:
    """Only the id's ending is chosen, so its length and nearly all its randomness remain."""
    wanted = data.draw(st.integers(0, shards - 1))
    text = f"{bits:032x}"

    drawn = with_shard(text, shards=shards, wanted=wanted)

    assert drawn[:-4] == text[:-4]
    assert len(text) == len(drawn)
    assert wanted == shard_of(drawn, shards)
    assert _next_on(text, shards, wanted) == drawn


def _next_on(text: str, shards: int, wanted: int) -> str:
    number = int(text[-4:], 16)
    while True:
        drawn = f"{text[:-4]}{number & 0xFFFF:04x}"
        if fnv1a_64(drawn) % shards == wanted:
            return drawn
        number += 1


def test_the_id_of_an_imported_task_is_the_one_that_0_1_0_gave() -> None:
    """An import that is repeated after an upgrade finds its tasks."""
    made = kept("acme", "task-17", home=2, shards=4)

    assert "2cd3a92a-88d1-ac31-712a-2441625e6252" == made
