"""A database that takes no writes: its shard waits when it must, and other shards do not.

The stall is RocksDB's own: level 0 has more files than the stop trigger, and nothing compacts them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from codeq_cluster.core.sharding import shard_of
from codeq_cluster.node.compose import Node
from codeq_cluster.settings import LimitSettings, StoreSettings
from tests.integration.http.client import Answer, Client, eventually, running_node, single
from tests.integration.http.nodes import Nodes, three_nodes

SHARDS = 2
STALLED, WELL = 0, 1
WAIT_S = 2.0  # Of a request that is not answered before.
STORE = StoreSettings(block_cache_bytes=2**20, memtable_bytes=2**20, unspilled_bytes=2**16)
PAYLOAD = {"text": "x" * 20_000}
_numbers = count()


@contextlib.contextmanager
def stalled(node: Node, shard: int) -> Iterator[None]:
    """Make RocksDB refuse every write of a shard, as if compactions were behind."""
    family = node.parts.storage.databases[shard].state.family
    family.set_options({"level0_file_num_compaction_trigger": "1000"})
    family.put(b"codeq/test/stall", b"")
    family.flush()
    family.set_options(
        {"level0_slowdown_writes_trigger": "1", "level0_stop_writes_trigger": "1"},
    )
    assert 1 == node.parts.storage.databases[shard].properties()["write_stopped"]
    try:
        yield
    finally:
        family.set_options(
            {
                "level0_stop_writes_trigger": "36",
                "level0_slowdown_writes_trigger": "20",
                "level0_file_num_compaction_trigger": "4",
            }
        )


async def create(client: Client, shard: int) -> Answer:
    """Create a task on a given shard."""
    key = next(name for n in _numbers if shard_of(f"acme/{(name := f'key-{n}')}", SHARDS) == shard)
    return await client.post(
        "tasks", {"command": "stalled", "payload": PAYLOAD, "idempotencyKey": key}
    )


@contextlib.asynccontextmanager
async def alone(path: Path) -> AsyncIterator[tuple[Node, Client]]:
    """Run one node whose requests may take two seconds."""
    settings = single(path, LimitSettings(request_timeout_ms=round(WAIT_S * 1000)))
    async with running_node(replace(settings, store=STORE)) as both:
        yield both


async def refused(client: Client) -> Answer:
    """Fill a stalled shard's memory; return the first answer that is not a success."""
    # Each task adds to the writes that wait in memory.
    return await eventually(lambda: create(client, STALLED), lambda answer: answer.status != 202)


async def served_beside(client: Client, waiting: asyncio.Task[Answer]) -> set[int]:
    """Create tasks on the other shard until a request to the stalled one is given up.

    Returns:
        The tenths of its wait in which a create was answered.
    """
    loop = asyncio.get_running_loop()
    ended: list[float] = []
    waiting.add_done_callback(lambda _: ended.append(loop.time()))
    answered: list[float] = []
    while not waiting.done():
        assert 202 == (await create(client, WELL)).status
        answered.append(loop.time())
    await waiting
    during = [each for each in answered if 0 <= ended[0] - each < WAIT_S]
    return {int((ended[0] - each) / WAIT_S * 10) for each in during}


async def test_a_stalled_shard_stops_no_other_and_answers_in_time(tmp_path: Path) -> None:
    """Writes to it succeed while memory has room; then their outcome is unknown."""
    async with alone(tmp_path) as (node, client):
        with stalled(node, STALLED):
            first = await create(client, STALLED)
            waiting = asyncio.create_task(refused(client))
            tenths = await served_beside(client, waiting)
            answer = waiting.result()
            alive = await client.get("/healthz")
            unspilled = node.parts.storage.shards[STALLED].size
        # The database takes writes again.
        after = await eventually(
            lambda: create(client, STALLED), lambda answer: answer.status == 202
        )

    assert 202 == first.status
    assert (503, "outcome-unknown") == (answer.status, answer.json["code"])
    # A loop that waits for the database is heard of at the ends of its wait alone.
    assert len(tenths) >= 5, tenths
    assert 200 == alive.status
    assert unspilled < 2 * STORE.unspilled_bytes
    assert 202 == after.status


async def leader_of(nodes: Nodes, shard: int) -> str:
    """Return the leader of a shard in the newest term, as that node reports it."""
    seen = {name: await seen_by(client, shard) for name, client in nodes.clients.items()}
    return max((term, name) for name, (leads, term) in seen.items() if leads)[1]


async def seen_by(client: Client, shard: int) -> tuple[bool, int]:
    """Return whether a node leads a shard, and the shard's term by its word."""
    groups: Any = (await client.get("raft/status")).json["groups"]
    return groups[shard]["isLeader"], groups[shard]["term"]


async def test_another_node_leads_a_shard_whose_leader_is_stalled(tmp_path: Path) -> None:
    """The stalled node keeps its role in the other shard, in the same term."""
    limits = LimitSettings(request_timeout_ms=2_000, drain_ms=0)
    async with three_nodes(tmp_path, store=STORE, limits=limits) as nodes:
        name = await leader_of(nodes, STALLED)
        stuck, client = nodes.running[name], nodes.clients[name]
        others = [nodes.clients[other] for other in nodes.clients if other != name]
        _, term = await seen_by(client, WELL)
        with stalled(stuck, STALLED):
            answer = await refused(client)
            # Repeated until a new leader is elected and this node knows it.
            await eventually(partial(leader_of, nodes, STALLED), lambda leader: leader != name)
            moved = await eventually(
                lambda: create(others[0], STALLED), lambda answer: answer.status == 202
            )
            there = [await create(each, WELL) for each in (client, *others) for _ in range(5)]
            alive = await client.get("/healthz")
            terms = [(await seen_by(each, WELL))[1] for each in nodes.clients.values()]

    assert "outcome-unknown" == answer.json["code"]
    assert 202 == moved.status
    assert [202] * 15 == [each.status for each in there]
    assert 200 == alive.status
    assert [term] * 3 == terms
