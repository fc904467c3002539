"""Newer kinds: items written by a newer version while a cluster is upgraded node by node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from codeq_cluster.broker.background import Background
from codeq_cluster.broker.engine.catalogue import Catalogue
from codeq_cluster.codec import entries
from codeq_cluster.codec.levels import LEVEL
from codeq_cluster.core.outcomes import Subscribed
from codeq_cluster.webhooks.queue_ready import Notices
from tests.fakes.memory_store import MemoryShard
from tests.unit.broker.conftest import START_MS, Shard, TestClock, subscribe
from tests.unit.webhooks.test_notification_queue import World, opened
from tests.unit.webhooks.test_outbox import Setting, setting_over

pytestmark = pytest.mark.asyncio

_PAST = (START_MS - 1).to_bytes(8, "big")
_ROWS = {
    b"codeq/item/alarm/acme/a1": b"?",
    b"codeq/outbox/%b/alarm/acme/a1" % _PAST: b"",
    b"codeq/expiry/%b/alarm/acme/a1" % _PAST: b"",
}


@pytest_asyncio.fixture
async def older() -> AsyncIterator[Setting]:
    """Yield a shard with its outbox jobs, without leadership."""
    made = setting_over(MemoryShard(), TestClock())
    yield made
    await made.stop()


def _apply(shard: Shard, rows: dict[bytes, bytes | None]) -> None:
    """Apply an entry of a newer leader."""
    payload = entries.encode(entries.Entry(shard.log.term, 1, START_MS, 1, rows), level=LEVEL)
    shard.engine.apply(shard.engine.applied_index + 1, shard.log.term, payload)


async def test_an_older_node_applies_rows_that_it_does_not_know(older: Setting) -> None:
    """The node stores and deletes the rows unchanged, and continues."""
    world, shard = World(), older.shard
    catalogue = Catalogue([shard.store.state])
    catalogue.follow(shard.engine)
    box = opened(world, Background())
    notices = Notices(catalogue, [shard.engine], notification_queue=box, on_outcome=world.counted)
    shard.engine.on_rows(notices.rows)
    _apply(shard, dict(_ROWS))

    assert [b"?", b"", b""] == shard.store.state.get_many(list(_ROWS))

    _apply(shard, dict.fromkeys(_ROWS))

    assert [None, None, None] == shard.store.state.get_many(list(_ROWS))
    notices.stop()


async def test_an_older_leader_runs_the_jobs_it_knows(older: Setting) -> None:
    """A job of an unknown kind is due earlier, and waits for a newer leader."""
    _apply(older.shard, dict(_ROWS))
    older.shard.log.lead()
    await older.end("a")
    async with asyncio.timeout(60):
        await older.gone("a.1")

    assert ["a.1"] == older.world.begun
    assert [b"?", b"", b""] == older.shard.store.state.get_many(list(_ROWS))


async def test_an_older_leader_ends_the_items_it_knows(older: Setting) -> None:
    """An item of an unknown kind has expired earlier, and waits for a newer leader."""
    shard = older.shard
    _apply(shard, dict(_ROWS))
    shard.log.lead()
    operation = subscribe(ttl_ms=10)
    [first] = await shard.engine.operate([operation])
    applied = asyncio.Event()
    shard.engine.on_rows(lambda _: applied.set())
    shard.clock.pass_ms(10)
    async with asyncio.timeout(60):
        await applied.wait()
    [second] = await shard.engine.operate([operation])

    assert isinstance(first, Subscribed)
    assert isinstance(second, Subscribed)
    assert first.subscription.created_ms < second.subscription.created_ms
    assert [b"?", b"", b""] == shard.store.state.get_many(list(_ROWS))
