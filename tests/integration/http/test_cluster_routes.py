"""Cluster routes: nodes, leaders, and leadership transfers through any node."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from codeq_cluster.cli.main import main
from codeq_cluster.codec.levels import LEVEL
from codeq_cluster.node.compose import Node
from codeq_cluster.settings import LimitSettings, PeerAddress
from tests.integration.http.client import OPERATOR, PATIENCE_S, Answer, Client, single
from tests.integration.http.operating import died, walked

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_cluster_is_shown(node: Client) -> None:
    """The cluster is one node that leads both shards, without peers."""
    shown: Any = (await node.get("admin/cluster", token=OPERATOR)).json

    assert "http-tests" == shown["clusterId"]
    [only] = shown["nodes"]
    assert ("n1", True, True) == (only["id"], only["self"], only["connected"])
    assert [0, 1] == only["leads"]
    assert only["addr"].startswith("127.0.0.1:")
    shards = shown["shards"]
    assert [
        (0, "n1", []),
        (1, "n1", []),
    ] == [(each["shard"], each["leader"], each["peers"]) for each in shards]
    assert all(0 < each["appliedIndex"] <= each["commitIndex"] for each in shards)


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"", 400, "invalid body"),
        (b"{}", 400, "invalid body"),
        (b'{"shard":"0"}', 400, "invalid body"),
        (b'{"shard":0,"to":1}', 400, "invalid body"),
        (b'{"shard":-1}', 400, "invalid 'shard' (use 0 to 1)"),
        (b'{"shard":2}', 400, "invalid 'shard' (use 0 to 1)"),
        (b'{"shard":0,"to":"n9"}', 400, "invalid 'to' (no such node)"),
        (b'{"shard":0}', 409, "leadership not transferred"),
    ],
)
async def test_an_impossible_transfer_is_refused(
    node: Client, body: bytes, status: int, text: str
) -> None:
    """A single node has no other node to transfer to."""
    answer = await node.post("admin/cluster/transfer", body, token=OPERATOR)

    assert (status, text) == (answer.status, answer.error)


async def test_a_transfer_to_the_leader_changes_nothing(node: Client) -> None:
    """A transfer to the current leader is not recorded either."""
    before = await walked(node, "admin/audit?limit=500", "records")
    answer = await node.post("admin/cluster/transfer", {"shard": 1, "to": "n1"}, token=OPERATOR)
    after = await walked(node, "admin/audit?limit=500", "records")

    assert {"shard": 1, "from": "n1", "leader": "n1", "changed": False} == answer.json
    assert len(before) == len(after)


async def test_the_formats_in_use_are_shown(node: Client) -> None:
    """The answer has the formats of the cluster, of each shard, and those the node knows."""
    shown: Any = (await node.get("admin/cluster", token=OPERATOR)).json

    assert LEVEL == shown["level"]
    assert [LEVEL] == [each["level"] for each in shown["nodes"]]
    assert [LEVEL, LEVEL] == [each["level"] for each in shown["shards"]]


@pytest.mark.parametrize("body", [b"", b"null", b"{}", b'{"dryRun":true}', b'{"LEVEL":%d}' % LEVEL])
async def test_formats_that_are_in_use_already_change_nothing(node: Client, body: bytes) -> None:
    """Such a request is not recorded either."""
    before = await walked(node, "admin/audit?limit=500", "records")
    answer = await node.post("admin/cluster/upgrade", body, token=OPERATOR)
    after = await walked(node, "admin/audit?limit=500", "records")
    done = b"dryRun" not in body

    assert 200 == answer.status
    assert {
        "level": LEVEL,
        "dryRun": not done,
        "changed": False,
        "shards": [
            {"shard": shard, "leader": "n1", "level": LEVEL, "levelAfter": LEVEL, "done": done}
            for shard in (0, 1)
        ],
        "nodes": [{"id": "n1", "level": LEVEL}],
    } == answer.json
    assert len(before) == len(after)


@pytest.mark.parametrize(
    ("body", "status", "code", "text"),
    [
        (b'{"level":"2"}', 400, "invalid-body", "invalid body"),
        (b'{"level":0}', 400, "out-of-range", "invalid 'level'"),
        (b'{"level":-1}', 400, "out-of-range", "invalid 'level'"),
        (b'{"level":99999999}', 400, "out-of-range", "invalid 'level'"),
        (b'{"level":%d}' % (LEVEL + 1), 409, "level-unknown", f"n1 (level {LEVEL}); start"),
    ],
)
async def test_formats_that_cannot_be_used_are_refused(
    node: Client, body: bytes, status: int, code: str, text: str
) -> None:
    """The refusal says what is wrong, and which node's release lacks them."""
    answer = await node.post("admin/cluster/upgrade", body, token=OPERATOR)

    assert (status, code) == (answer.status, answer.json["code"])
    assert text in answer.error


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def three(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, Client]]:
    """Run three nodes on one loop, over real sockets."""
    names = ("n1", "n2", "n3")
    with contextlib.ExitStack() as probes:
        ports = []
        for _ in names:
            probe = probes.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    peers = tuple(
        PeerAddress(id=name, link=f"127.0.0.1:{port}", http=f"http://{name}")
        for name, port in zip(names, ports, strict=True)
    )
    directory: Path = tmp_path_factory.mktemp("three")
    async with contextlib.AsyncExitStack() as stack:
        clients = {}
        for name, port in zip(names, ports, strict=True):
            settings = replace(
                single(directory / name, LimitSettings()),
                node_id=name,
                peers=peers,
                link_port=port,
            )
            node = Node(settings)
            await node.start()
            stack.push_async_callback(node.stop)
            clients[name] = Client(node.port)
        async with asyncio.timeout(PATIENCE_S):
            for client in clients.values():
                while (await client.get("/readyz")).status != 200:
                    pass  # The request in the condition paces the loop; the deadline bounds it.
        yield clients
        for client in clients.values():
            for writer in client.open:
                writer.close()


async def _leader(client: Client, shard: int) -> str:
    shards: Any = (await client.get("admin/cluster", token=OPERATOR)).json["shards"]
    return str(shards[shard]["leader"])


async def _leadership(client: Client, shard: int) -> tuple[str, int]:
    """Return a shard's leader as a node knows it, and its term."""
    found: Any = (await client.get("admin/cluster", token=OPERATOR)).json["shards"][shard]  # type: ignore[index]
    return str(found["leader"]), int(found["term"])


async def _known_to_all(nodes: dict[str, Client], shard: int, *, after: int) -> tuple[str, int]:
    """Wait until all nodes know the same leader of a shard, in a later term; return both."""
    while True:
        found = {await _leadership(client, shard) for client in nodes.values()}
        [(leader, term), *others] = found
        if leader and term > after and not others:
            return leader, term


async def _transferred(client: Client, body: dict[str, object]) -> Answer:
    """Repeat a transfer until it succeeds: with a peer that is slow right now it answers 409."""
    async with asyncio.timeout(PATIENCE_S):
        while (
            answer := await client.post("admin/cluster/transfer", body, token=OPERATOR)
        ).status == 409:
            assert answer.json["retryable"] is True
        return answer


async def test_leadership_is_transferred_whichever_node_is_asked(
    three: dict[str, Client],
) -> None:
    """The leader, the target and the third node can all be asked, and each transfer is recorded."""
    told = []
    known = {each["id"] for each in await walked(three["n1"], "admin/audit", "records")}
    for asked in ("n1", "n2", "n3"):
        leader = await _leader(three[asked], 0)
        [to, *_] = [name for name in three if name not in (leader, asked)]
        answer = await _transferred(three[asked], {"shard": 0, "to": to})
        before = str(answer.json["from"])
        assert (200, to) == (answer.status, answer.json["leader"])
        assert answer.json["changed"] is (before != to)
        if before != to:
            told.insert(0, f"{before} to {to}")
    records = [
        each
        for each in await walked(three["n1"], "admin/audit", "records")
        if each["target"] == "shard 0" and each["id"] not in known
    ]

    assert told
    assert told == [each["detail"] for each in records]
    assert {("cluster.transfer", "o")} == {(each["action"], each["actor"]) for each in records}
    assert await three["n2"].create("after")


async def test_leadership_goes_to_whoever_is_ready_when_nobody_is_named(
    three: dict[str, Client],
) -> None:
    """It goes to another node, and every node learns of it."""
    leader, known = "", ("", 0)
    async with asyncio.timeout(PATIENCE_S):
        # The preferred leader takes it back after a while, perhaps before all nodes were asked.
        while known[0] != leader or not leader:
            _, before = await _leadership(three["n3"], 1)
            answer = await _transferred(three["n3"], {"shard": 1})
            leader = str(answer.json["leader"])
            known = await _known_to_all(three, 1, after=before)

            assert answer.json["from"] != leader
            assert answer.json["changed"] is True


async def test_every_node_answers_an_operator_alike(three: dict[str, Client]) -> None:
    """Lists, cursors, queue policies and actions on dead letters are the same at every node."""
    one, two, last = three.values()
    tasks = {await died(each, "anywhere", "e") for each in (one, two, last, one)}
    await two.send("PUT", "admin/topics/anywhere", b'{"maxAttempts":2}')
    await last.post("admin/queues/anywhere/pause")
    lists = [
        await walked(each, "admin/queues/anywhere/dlq?limit=1", "tasks")
        for each in (one, two, last)
    ]
    first = (await one.get("admin/queues/anywhere/dlq?limit=1")).json
    path = f"admin/queues/anywhere/dlq?limit=3&cursor={first['cursor']}"
    rest = (await last.get(path)).json["tasks"]
    topics = [(await each.get("admin/topics/anywhere")).json for each in (one, two, last)]
    depths = [await each.depth("anywhere") for each in (one, two, last)]
    reasons = [(await each.get(f"tasks/{min(tasks)}/explain")).json for each in (one, two, last)]
    done = await two.post("admin/queues/anywhere/dlq/requeue")

    assert tasks == {each["id"] for each in lists[0]}
    assert [lists[0]] * 3 == lists
    assert lists[0][1:] == rest
    assert [topics[0]] * 3 == topics
    assert [(4, True)] * 3 == [(each["dlq"], each["paused"]) for each in depths]
    assert ["dead-letter"] * 3 == [each["reason"] for each in reasons]
    assert 4 == done.json["requeued"]
    assert 204 == (await one.post("tasks/claim", {"commands": ["anywhere"]})).status
    await one.post("admin/queues/anywhere/resume")
    assert tasks == {(await each.claim("anywhere"))["id"] for each in (one, two, last, two)}


async def test_leaderships_are_spread_at_once_when_an_operator_says_so(
    three: dict[str, Client], capsys: pytest.CaptureFixture[str]
) -> None:
    """One command moves them to their preferred nodes; a repetition has nothing to do."""
    one = three["n1"]
    shards: Any = (await one.get("admin/cluster", token=OPERATOR)).json["shards"]
    preferred = {int(each["shard"]): str(each["preferred"]) for each in shards}
    [away, *_] = [name for name in three if name != preferred[1]]
    command = ["cluster", "rebalance", "--url", f"http://127.0.0.1:{one.port}", "--token", OPERATOR]
    done: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        # A slow peer may refuse now; after a while its leadership returns by itself.
        while f"shard 1 is led by {preferred[1]}" not in done:
            await _transferred(one, {"shard": 1, "to": away})
            await asyncio.to_thread(main, command)
            done += capsys.readouterr().err.splitlines()
        while {shard: await _leader(one, shard) for shard in preferred} != preferred:
            pass  # The node asked may learn of the new leader later than the others.
    again = await asyncio.to_thread(main, command)

    assert 0 == again
    assert "every shard is led by the node that should lead it" in capsys.readouterr().err
