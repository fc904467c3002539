"""Peer logs: a cursor is only expired if every connected node says that it lacks the entries."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from codeq_cluster.broker.feed.cursor import CursorExpired, Position
from codeq_cluster.broker.feed.feed import Feed
from codeq_cluster.broker.ports import LogEntry
from codeq_cluster.errors import NoLeader
from codeq_cluster.node.peer_logs import PeerLogs
from codeq_cluster.routing import ask_all
from codeq_cluster.routing.ask_all import AskAll
from tests.fakes.linked_nodes import Link

from .conftest import shards_of
from .test_feed import Cluster, create


@pytest.mark.parametrize(
    ("silent", "others_have_it", "told"),
    [
        ((), True, ["a"]),
        (("n2",), True, ["a"]),
        (("n2",), False, NoLeader),
        ((), False, CursorExpired),
    ],
)
async def test_entries_of_a_peer_that_is_slow_are_not_said_to_be_gone(
    monkeypatch: pytest.MonkeyPatch,
    *,
    silent: tuple[str, ...],
    others_have_it: bool,
    told: list[str] | type[Exception],
) -> None:
    """The watcher may ask again; only what no log has is expired."""
    monkeypatch.setattr(ask_all, "WAIT_S", 0.05)
    cluster = Cluster()
    after = (await cluster.reader(0, "")).cursor
    await cluster.operate(0, create("a"))
    cluster.follow()
    cluster.leads[0].log.trim(9)
    if not others_have_it:
        cluster.follows[0].log.trim(9)
    link = Link()
    link.silent.update(silent)
    for node, shards in (("n1", cluster.leads), ("n2", cluster.follows), ("n3", cluster.follows)):
        asking = AskAll(node_id=node, peers=lambda: ("n1", "n2", "n3"), calls=link)
        logs = PeerLogs(asking)
        feed = Feed(shards_of(*shards), failed=cluster._failed, elsewhere=logs.entries)
        logs.answer_from(feed)
        link.nodes[node] = asking
        if node == "n1":
            cluster.feeds[0] = feed
    try:
        found: object = [event.task_id for event in await (await cluster.reader(0, after)).next(0)]
    except (NoLeader, CursorExpired) as refused:
        found = type(refused)
    cluster.stop()

    assert told == found


async def test_a_look_that_is_cut_short_has_passed_over_nothing() -> None:
    """What it has found of one shard is told after the cursor when another shard's peer is slow."""
    cluster = Cluster()
    after = (await cluster.reader(0, "")).cursor
    await cluster.operate(0, create("a"))
    await cluster.operate(1, create("b"))
    cluster.follow()
    cluster.leads[0].log.trim(9)
    asked = asyncio.Event()

    async def slow(shard: int, position: Position, bytes_max: int) -> Sequence[LogEntry] | None:
        if bytes_max:
            asked.set()
            await asyncio.Event().wait()
        return cluster.feeds[1].logged(shard, position, bytes_max)

    cluster.feeds[0] = Feed(shards_of(*cluster.leads), failed=cluster._failed, elsewhere=slow)
    reader = await cluster.reader(0, after)
    looking = asyncio.ensure_future(reader.next(60))
    async with asyncio.timeout(20):
        await asked.wait()
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    found = await (await cluster.reader(1, reader.cursor)).next(0)
    cluster.stop()

    assert {"a", "b"} == {event.task_id for event in found}
