"""Task ids: an import keeps those that only its own tenant can have."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.core.sharding import shard_of, with_shard
from codeq_cluster.core.task_ids import kept, task_id

shards = st.integers(1, 256)
texts = st.text(min_size=1, max_size=40)


@given(shards, st.integers(0, 255))
def test_a_tenant_keeps_its_own_ids_on_every_shard(count: int, wanted: int) -> None:
    """The ending by which an id gets its shard is no part of the tag."""
    made = with_shard(task_id("acme", os.urandom(16)), shards=count, wanted=wanted % count)

    assert made == kept("acme", made, home=0, shards=count)
    assert made != kept("acm", made, home=0, shards=count)
    assert made != kept("", made, home=None, shards=count)


@given(texts, st.integers(0, 255), shards)
def test_a_new_id_is_the_same_each_time_and_the_tenants_own(
    old: str, wanted: int, count: int
) -> None:
    """So an import can be repeated, and the task is where its keys are."""
    home = wanted % count
    made = kept("acme", old, home=home, shards=count)

    assert made == kept("acme", old, home=home, shards=count)
    assert made == kept("acme", made, home=None, shards=count)
    assert home == shard_of(made, count)
    assert made != kept("acme", f"{old}.", home=home, shards=count)
