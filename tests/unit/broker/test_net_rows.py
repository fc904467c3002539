"""Net rows: an entry has an index row only if the row is there before or after it, not both."""

from __future__ import annotations

import asyncio

import pytest

from codeq_cluster.codec import entries, keyspace
from codeq_cluster.core.operations import Abandon
from codeq_cluster.core.outcomes import Claimed

from .conftest import Shard, claim, create

pytestmark = pytest.mark.asyncio


def _abandon(request: str) -> Abandon:
    return Abandon(request=request, id="a", tenant="acme", worker="ann")


async def _leased(shard: Shard) -> dict[bytes, bytes | None]:
    """Lease a task; in one entry, return it and lease it again twice; return the entry's rows."""
    await shard.engine.operate([create("a")])
    await shard.engine.operate([claim("1")])
    shard.log.held = True
    again = [_abandon("2"), claim("3"), _abandon("4"), claim("5", lease_ms=70_000)]
    asked = asyncio.create_task(shard.engine.operate(again))
    await asyncio.sleep(0)
    shard.log.take()
    [(_, payload)] = shard.log.taken
    shard.log.release()
    claimed = (await asked)[-1]
    assert isinstance(claimed, Claimed)
    assert ["a"] == [task.id for task in claimed.tasks]
    return entries.decode(payload).mutations


async def test_a_row_that_a_task_left_and_came_back_to_is_not_in_the_entry(shard: Shard) -> None:
    """The task is in progress before and after, and was ready only in between."""
    rows = await _leased(shard)
    indexes = {key.split(b"/")[1]: value for key, value in rows.items() if _is_index(key)}

    assert keyspace.inprog("render", "acme", task_id="a") not in rows
    assert not [key for key in rows if b"/pending/" in key]
    assert {b"lease", b"claim"} == indexes.keys()
    assert 2 == sum(value is None for key, value in rows.items() if _is_index(key))


def _is_index(key: bytes) -> bool:
    return keyspace.is_task_index(key)


async def test_the_leader_forgets_such_rows_with_the_entry(shard: Shard) -> None:
    """Rows kept above the store would take memory until the leadership ends."""
    await _leased(shard)

    assert not shard.engine.view._overlay
