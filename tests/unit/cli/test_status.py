"""Status: the command's reading of nodes' answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from codeq_cluster.cli.main import main


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
