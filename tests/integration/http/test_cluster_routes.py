"""Cluster routes: nodes, leaders, and leadership transfers through any node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from codeq_cluster.cli.main import main
from codeq_cluster.codec.levels import LEVEL
from tests.integration.http.client import OPERATOR, Answer, Client, eventually
from tests.integration.http.nodes import three_nodes
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


async def test_a_transfer_that_failed_says_what_may_be_wrong(node: Client) -> None:
    """A node whose replica is out stays so, however often the transfer is repeated."""
    answer = await node.post("admin/cluster/transfer", b'{"shard":0}', token=OPERATOR)

    assert "its replica is out (its /readyz says so, and why)" in str(answer.json["detail"])


async def test_a_transfer_to_the_leader_changes_nothing(node: Client) -> None:
    """A transfer to the current leader succeeds without a record in the audit."""
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
    """The request succeeds without a record in the audit."""
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
    async with three_nodes(tmp_path_factory.mktemp("three")) as nodes:
        yield nodes.clients


async def _leader(client: Client, shard: int) -> str:
    shards: Any = (await client.get("admin/cluster", token=OPERATOR)).json["shards"]
    return str(shards[shard]["leader"])


async def _leadership(client: Client, shard: int) -> tuple[str, int]:
    """Return a shard's leader as a node knows it, and its term."""
    found: Any = (await client.get("admin/cluster", token=OPERATOR)).json["shards"][shard]  # type: ignore[index]
    return str(found["leader"]), int(found["term"])


async def _known_to_all(nodes: dict[str, Client], shard: int, *, after: int) -> tuple[str, int]:
    """Wait until all nodes know the same leader of a shard, in a later term; return both."""

    async def found() -> list[tuple[str, int]]:
        return list({await _leadership(client, shard) for client in nodes.values()})

    def is_known(found: list[tuple[str, int]]) -> bool:
        [(leader, term), *others] = found
        return bool(leader) and term > after and not others

    return (await eventually(found, is_known))[0]


async def _transferred(client: Client, body: dict[str, object]) -> Answer:
    """Repeat a transfer until it succeeds: it answers 409 while a peer is slow."""
    return await eventually(
        lambda: client.post("admin/cluster/transfer", body, token=OPERATOR),
        lambda answer: answer.status != 409 or answer.json["retryable"] is not True,
    )


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


async def test_without_a_named_target_leadership_goes_to_a_ready_node(
    three: dict[str, Client],
) -> None:
    """The leadership goes to another node, and every node learns of it."""

    async def transferred() -> bool:
        _, before = await _leadership(three["n3"], 1)
        answer = await _transferred(three["n3"], {"shard": 1})
        assert answer.json["from"] != answer.json["leader"]
        assert answer.json["changed"] is True
        known, _ = await _known_to_all(three, 1, after=before)
        return answer.json["leader"] == known

    # The preferred leader takes it back after a while, perhaps before all nodes were asked.
    await eventually(transferred)


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

    async def rebalanced() -> bool:
        await _transferred(one, {"shard": 1, "to": away})
        await asyncio.to_thread(main, command)
        return f"shard 1 is led by {preferred[1]}" in capsys.readouterr().err.splitlines()

    async def leaders() -> dict[int, str]:
        return {shard: await _leader(one, shard) for shard in preferred}

    # A slow peer may refuse now; after a while its leadership returns by itself.
    await eventually(rebalanced)
    # The node asked may learn of the new leader later than the others.
    await eventually(leaders, lambda led: led == preferred)
    again = await asyncio.to_thread(main, command)

    assert 0 == again
    assert "every shard is led by the node that should lead it" in capsys.readouterr().err
