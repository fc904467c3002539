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

    assert made == kept("acme", made, key="k", shards=count)
    assert made != kept("acm", made, key="k", shards=count)
    assert made != kept("", made, key="", shards=count)


@given(texts, texts, shards)
def test_a_new_id_is_the_same_each_time_and_the_tenants_own(old: str, key: str, count: int) -> None:
    """So an import can be repeated, and the key's shard decides about the task too."""
    made = kept("acme", old, key=key, shards=count)

    assert made == kept("acme", old, key=key, shards=count)
    assert made == kept("acme", made, key="", shards=count)
    assert shard_of(f"acme/{key}", count) == shard_of(made, count)
    assert made != kept("acme", f"{old}.", key=key, shards=count)
