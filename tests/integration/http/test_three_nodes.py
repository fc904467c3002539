"""Three nodes on one loop, over real sockets: one has lost something, and the others serve."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from codeq_cluster.offline.force_single_member import survivor
from codeq_cluster.settings import environment
from codeq_cluster.testing.ports import free_ports
from tests.integration.cli.terminal import run
from tests.integration.http.client import OPERATOR, Answer, eventually
from tests.integration.http.nodes import NAMES, Nodes, peers_at, three_nodes


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    """Run three nodes of two shards until the end of the test."""
    async with three_nodes(tmp_path) as running:
        yield running


async def test_a_node_without_data_whose_known_peers_are_gone_is_found(
    nodes: Nodes,
) -> None:
    """The members know its address; its `/readyz` names the nodes it waits for."""
    own = next(peer for peer in nodes.settings["n2"].peers if peer.id == "n2")
    gone = peers_at(dict(zip(("n8", "n9"), free_ports(2), strict=True)))
    for name in NAMES:
        await nodes.stop(name)
    shutil.rmtree(nodes.settings["n2"].data_dir)
    await nodes.start("n2", peers=(own, *gone))
    waits = await nodes.says("n2", lambda missing: "n8, n9" in str(missing))
    await nodes.start("n1")
    await nodes.start("n3")
    await nodes.ready(*NAMES)

    assert 1 == len(waits)
    assert "raft.peers" in waits[0]
    assert "`cluster join n2`" in waits[0]
    assert await nodes.clients["n2"].create("found")


async def test_a_node_whose_replicas_are_out_sends_callers_to_who_leads(nodes: Nodes) -> None:
    """A node without disk space says so once and serves nothing; waits are still answered."""
    await nodes.stop("n2")
    store = replace(nodes.settings["n2"].store, min_free_bytes=2**60)
    client = await nodes.start("n2", store=store)
    told = await nodes.says("n2", lambda missing: "minFreeBytes" in str(missing))
    wanted = {"commands": ["c"], "waitSeconds": 30}
    waiting = asyncio.create_task(by_a_leader(lambda: client.post("tasks/claim", wanted)))
    other = {"command": "other", "payload": {}}
    made = [await by_a_leader(lambda: client.post("tasks", other)) for _ in range(4)]
    tasks = [each.json["id"] for each in made]
    task_id = await nodes.clients["n1"].create("c")
    claimed = await waiting
    path = f"tasks/{task_id}/result?waitSeconds=30"
    result = asyncio.create_task(by_a_leader(lambda: client.get(path)))
    done = await nodes.clients["n3"].post(
        f"tasks/{task_id}/result", {"status": "COMPLETED", "result": {"by": "n3"}}
    )
    read = [await by_a_leader(partial(client.get, f"tasks/{each}")) for each in tasks]
    shards = nodes.running["n2"].status()

    assert ["shards 0, 1"] == [line.partition(":")[0] for line in told]
    assert (200, task_id) == (claimed.status, claimed.json["id"])
    assert 200 == done.status
    assert b'"n3"' in (await result).body
    assert tasks == [each.json["id"] for each in read]
    assert [False, False] == [shard.has_leader for shard in shards]
    assert {("n1", True), ("n3", True)} == {
        (peer.id, peer.connected) for shard in shards for peer in shard.peers
    }


async def by_a_leader(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Repeat a request while there is no leader: a busy machine may delay one."""
    answer = await eventually(
        ask, lambda answer: answer.status != 503 or answer.json["code"] != "no-leader"
    )
    assert 503 != answer.status, answer.body
    return answer


async def test_a_node_whose_replicas_are_out_waits_no_longer_than_for_an_election(
    nodes: Nodes,
) -> None:
    """Without a leader the answer comes within seconds, and says that nothing was done."""
    await nodes.stop("n2")
    store = replace(nodes.settings["n2"].store, min_free_bytes=2**60)
    client = await nodes.start("n2", store=store)
    await nodes.says("n2", lambda missing: "minFreeBytes" in str(missing))
    await nodes.stop("n3")
    await nodes.says("n1", lambda missing: "0, 1 has no leader" in str(missing))
    refused = await client.post("tasks", {"command": "c", "payload": {}})
    await nodes.stop("n1")
    alone = await client.post("tasks", {"command": "c", "payload": {}})

    assert (503, "no-leader") == (refused.status, refused.json["code"])
    assert (503, "no-leader") == (alone.status, alone.json["code"])


async def test_a_node_without_a_majority_says_who_is_missing_and_why(nodes: Nodes) -> None:
    """One peer is down, and the other has lost its data: only a recovery helps."""
    await nodes.stop("n2")
    await nodes.stop("n3")
    shutil.rmtree(nodes.settings["n2"].data_dir)
    away = await nodes.says("n1", lambda missing: _says(missing, "n2 is not connected"))
    await nodes.start("n2")
    lost = await nodes.says("n1", lambda missing: _says(missing, "n2 has lost its data"))

    assert len(away) == len(lost) == 1
    assert (
        "each of shards 0, 1 has no leader: 2 of its 3 voters are missing (n2 is not connected, "
        "n3 is not connected); start them on their data, or see `cluster recover` if that is lost "
        "for good"
    ) == away[0]
    assert "n3 is not connected" in lost[0]


async def test_events_of_nodes_are_printed_while_the_majority_is_lost(
    nodes: Nodes, tmp_path: Path
) -> None:
    """The audit and the dead letters have no leader then; the node that is left answers."""
    kept = ("PATH", "HOME", "PYTHONPATH")
    asked = {
        "CODEQ_BASE_URL": f"http://127.0.0.1:{nodes.running['n1'].port}",
        "CODEQ_TOKEN": nodes.clients["n1"].token,
        "CODEQ_CONFIG_DIR": str(tmp_path / "profiles"),
    }
    variables = {name: value for name, value in environment().items() if name in kept} | asked
    with run("tail", "--interval", "1", "--lines", "1", environment=variables) as before:
        await nodes.clients["n1"].send("PUT", "admin/topics/told", b'{"weight": 2}')
        await asyncio.to_thread(before.shows, "topic.put told")
        await nodes.stop("n2")
        await nodes.stop("n3")
        for gone in ("Node n2 is not connected", "Node n3 is not connected", "has no leader"):
            await asyncio.to_thread(before.shows, gone)
        with run("tail", "--interval", "1", environment=variables) as since:
            for gone in ("Node n2 is not connected", "Node n3 is not connected"):
                await asyncio.to_thread(since.shows, gone)
            await nodes.start("n2")
            await asyncio.to_thread(since.shows, "topic.put told")
            told = await asyncio.to_thread(before.shows, "over")

    assert "away" not in told


async def test_a_node_with_another_secret_says_what_to_compare(nodes: Nodes) -> None:
    """The node says so with its data, and without it, before it knows its cluster."""
    told = "n1 is not connected: compare the cluster secret of both nodes"
    await nodes.stop("n3")
    await nodes.start("n3", cluster_secret="w" * 32)
    member = await nodes.says("n3", lambda missing: told in str(missing))
    await nodes.stop("n3")
    shutil.rmtree(nodes.settings["n3"].data_dir)
    await nodes.start("n3", cluster_secret="w" * 32)
    joining_node = await nodes.says("n3", lambda missing: "n2: compare the" in str(missing))

    assert len(member) == len(joining_node) == 1


async def test_a_snapshot_that_a_majority_waits_for_is_fetched_without_a_pace(nodes: Nodes) -> None:
    """A node was away for longer than the log; then one of the other two is lost."""
    slow = replace(nodes.settings["n1"].raft, log_bytes_max=2**17, snapshot_bytes_per_s=2**16)
    for name in NAMES:
        await nodes.stop(name)
    for name in NAMES:
        await nodes.start(name, raft=slow)
    await nodes.ready(*NAMES)
    await nodes.stop("n3")
    # A log is truncated by four MiB at once, and at the usual pace a snapshot of that takes
    # minutes.
    for _ in range(24):
        await nodes.clients["n1"].create(payload=os.urandom(2**18).hex())
    await nodes.stop("n2")
    await nodes.start("n3", raft=slow)
    await nodes.ready("n1", "n3")

    assert await nodes.clients["n3"].create("served")


async def test_data_that_the_cluster_was_recovered_without_is_refused_until_it_is_emptied(
    nodes: Nodes,
) -> None:
    """Its log has committed entries that the recovered cluster no longer has."""
    await nodes.stop("n1")
    await nodes.ready("n2", "n3")
    lost = [await nodes.clients["n2"].create("lost") for _ in range(20)]
    await nodes.stop("n2")
    await nodes.stop("n3")
    with survivor(nodes.settings["n1"].data_dir) as alone:
        alone.recover()
    await nodes.start("n1")
    await nodes.ready("n1")
    kept = [await nodes.clients["n1"].create("kept") for _ in range(40)]
    await nodes.start("n2")
    own = nodes.settings["n2"].peers[1]
    joined = await nodes.clients["n1"].post(
        "admin/cluster/join",
        {"nodeId": "n2", "addr": own.link, "httpAddr": own.http},
        token=OPERATOR,
    )
    told = await nodes.says("n2", lambda missing: "was recovered" in str(missing))
    await nodes.stop("n2")
    shutil.rmtree(nodes.settings["n2"].data_dir)
    client = await nodes.start("n2")
    await nodes.ready("n2")

    assert 200 == joined.status
    assert 1 == len(told)
    assert "by the word of n1: stop it, empty its data directory" in told[0]
    assert 404 == (await client.get(f"tasks/{lost[0]}")).status
    assert 200 == (await client.get(f"tasks/{kept[0]}")).status


def _says(missing: object, words: str) -> bool:
    """Return whether a node reports a text for both shards, since they fail one by one."""
    return "shards 0, 1" in str(missing) and words in str(missing)
