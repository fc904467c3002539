"""Status: the command's reading of nodes' answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from codeq_cluster.cli.main import main
from tests.harness.ports import dead_url


def _group(node: str, *, leader: str, term: int, applied: int) -> Mapping[str, object]:
    return {
        "shardIdx": 0,
        "isLeader": node == leader,
        "selfId": node,
        "leaderId": leader,
        "term": term,
        "commitIndex": applied,
        "appliedIndex": applied,
        "digest": f"digest-{applied}",
        "logSync": f"sync-of-{node}",
    }


@asynccontextmanager
async def _node(
    status: object, *, code: int = 200, missing: tuple[str, ...] = ()
) -> AsyncIterator[str]:
    """Serve the three routes that `status` reads; yields the base URL."""

    async def healthz(_: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def readyz(_: web.Request) -> web.Response:
        body = {"error": "not ready", "missing": missing} if missing else {"status": "ok"}
        return web.json_response(body, status=503 if missing else 200)

    async def raft(_: web.Request) -> web.Response:
        return web.json_response(status, status=code)

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/v1/codeq/raft/status", raft)
    async with TestServer(app) as server:
        yield str(server.make_url(""))


async def _status(*arguments: str) -> int:
    """Run the command in a thread beside this loop, which serves the nodes."""
    return await asyncio.to_thread(main, ["status", *arguments])


async def test_a_replica_behind_shows_its_lag(capsys: pytest.CaptureFixture[str]) -> None:
    """The commit index is the highest any node knows, and the newest term names the leader."""
    leader = {"groups": [_group("n1", leader="n1", term=2, applied=9)]}
    behind = {"groups": [_group("n2", leader="n3", term=1, applied=4)]}
    async with _node(leader) as one, _node(behind) as two:
        urls = ("--url", one, "--url", two)
        code = await _status(*urls, "--json")
        document = json.loads(capsys.readouterr().out)
        assert 0 == await _status(*urls)
        table = capsys.readouterr().out

    (shard,) = document["shards"]
    assert 0 == code
    assert ("n1", 2, 9) == (shard["leader"], shard["term"], shard["commitIndex"])
    assert [("n1", 0), ("n2", 5)] == [(one["node"], one["lag"]) for one in shard["replicas"]]
    assert [[0], []] == [node["leads"] for node in document["nodes"]]
    assert ["sync-of-n1", "sync-of-n2"] == [node["logSync"] for node in document["nodes"]]
    assert "n1=9 (0)  n2=4 (5)" in table
    assert "sync-of-n2" in table


async def test_a_node_with_a_cluster_of_its_own_leads_no_shard_here(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It was started with itself alone in its configuration; its term may be the later one."""
    own = {"groups": [_group("n4", leader="n4", term=7, applied=3)]}
    async with _node(own) as alone:
        since = "2026-01-31T12:00:00Z"
        peer = {"id": "n4", "httpAddr": alone, "connected": False, "awaySince": since}
        member = {"groups": [{**_group("n1", leader="n1", term=2, applied=9), "peers": [peer]}]}
        async with _node(member) as url:
            code = await _status("--url", url, "--json")
    document = json.loads(capsys.readouterr().out)

    [shard] = document["shards"]
    assert 1 == code
    assert ("n1", 2) == (shard["leader"], shard["term"])
    assert ["n1"] == [each["node"] for each in shard["replicas"]]
    assert [None, since] == [each["awaySince"] for each in document["nodes"]]


async def test_a_node_that_is_not_ready_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    """The row says what is missing."""
    groups = {"groups": [_group("n1", leader="", term=1, applied=1)]}
    async with _node(groups, missing=("shard 0 has no leader",)) as url:
        code = await _status("--url", url)

    output = capsys.readouterr().out
    assert 1 == code
    assert "shard 0 has no leader" in output
    assert "none" in output


@pytest.mark.parametrize(("http", "code"), [(401, 3), (403, 3), (500, 4), (404, 4), (503, 1)])
async def test_a_refusal_decides_the_exit_code(
    http: int, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script can tell a wrong token, a wrong answer and a failing node apart."""
    async with _node({"error": "no"}, code=http) as url:
        assert code == await _status("--url", url)

    assert "no" in capsys.readouterr().out


@pytest.mark.parametrize("status", [{}, {"groups": 1}, {"groups": [{}]}, {"groups": ["x"]}])
async def test_a_status_in_another_form_ends_with_4(
    status: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says that the answer cannot be read."""
    async with _node(status) as url:
        assert 4 == await _status("--url", url)

    assert "unknown form" in capsys.readouterr().out


_SINCE = "2026-01-31T12:00:00Z"


def _seen(node: str, at: Mapping[str, str], *away: str) -> Mapping[str, object]:
    """Return a status of one of the nodes at these addresses, some of which it cannot reach."""
    peers = [
        {"id": peer, "httpAddr": url, "connected": peer not in away}
        | ({"awaySince": _SINCE} if peer in away else {})
        for peer, url in at.items()
        if peer != node
    ]
    group = _group(node, leader="n1", term=1, applied=1)
    return {"groups": [{**group, "selfHTTPAddr": at[node], "peers": peers}]}


async def _rows(capsys: pytest.CaptureFixture[str], *urls: str) -> tuple[int, list[dict[str, Any]]]:
    named = [word for url in urls for word in ("--url", url)]
    code = await _status(*named, "--json", "--utc")
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["nodes"]
    return code, rows


async def test_a_profile_with_two_of_three_nodes_shows_a_third_that_is_dead(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The nodes of the profile say who the third is and since when it is away."""
    at = {"n1": "http://n1.invalid", "n2": "http://n2.invalid", "n3": dead_url("node")}
    async with _node(_seen("n1", at, "n3")) as one, _node(_seen("n2", at, "n3")) as two:
        init = ("init", "--url", one, "--url", two, "--token", "t", "--no-prompt")
        assert 0 == await asyncio.to_thread(main, init)
        capsys.readouterr()
        code, rows = await _rows(capsys)

    assert 1 == code
    assert [("n1", one), ("n2", two), ("n3", at["n3"])] == [(it["id"], it["url"]) for it in rows]
    assert [None, None, _SINCE] == [row["awaySince"] for row in rows]
    assert "n1 and n2 cannot reach it since 2026-01-31T12:00:00" in rows[2]["problem"]


async def test_a_balancer_s_address_shows_every_member_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The node behind it answers, and the others are asked at their own addresses."""
    at = {"n1": "http://n1.invalid", "n3": dead_url("node")}
    async with _node(_seen("n2", at | {"n2": "http://n2.invalid"}, "n3")) as two:
        at["n2"] = two
        async with _node(_seen("n1", at, "n3")) as balancer:
            code, rows = await _rows(capsys, balancer)

    assert 1 == code
    assert [("n1", balancer), ("n2", two), ("n3", at["n3"])] == [
        (row["id"], row["url"]) for row in rows
    ]


async def test_a_dead_node_that_is_named_by_another_address_is_one_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Only one member is away, so the address without an answer is that one's."""
    at = {"n1": "http://n1.invalid", "n3": dead_url("node")}
    forwarded = dead_url("node")
    async with _node(_seen("n1", at, "n3")) as one:
        code, rows = await _rows(capsys, one, forwarded)

    assert 1 == code
    assert [("n1", one), ("n3", forwarded)] == [(row["id"], row["url"]) for row in rows]
    assert "no connection; n1 cannot reach it since" in rows[1]["problem"]


async def test_an_address_that_may_be_one_of_several_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing tells which of the dead members it belongs to."""
    at = {"n1": "http://n1.invalid", "n2": dead_url("node"), "n3": dead_url("node")}
    forwarded = dead_url("node")
    async with _node(_seen("n1", at, "n2", "n3")) as one:
        code, rows = await _rows(capsys, one, forwarded)
        sound = _seen("n1", {"n1": one})
        async with _node(sound) as alone:
            _, mistyped = await _rows(capsys, alone, forwarded)

    assert 1 == code
    assert ["n1", "n2", "n3", None] == [row["id"] for row in rows]
    doubt = "no connection; no member gives this address"
    assert f"{doubt}; it may be that of n2 or n3" == rows[3]["problem"]
    assert doubt == mistyped[1]["problem"]
