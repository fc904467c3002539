"""A planned stop: waiting clients are answered, and no task stays leased."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace
from pathlib import Path

from codeq_cluster.node.compose import Node
from codeq_cluster.settings import LimitSettings
from tests.integration.http.client import DEADLINE_S, Client, eventually, read_answer, ready, single
from tests.integration.http.conftest import Running


async def test_waiting_clients_are_answered_when_the_node_stops(node_with: Running) -> None:
    """They are answered at once, as at the end of their wait."""
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        node = await stack.enter_async_context(node_with())
        task_id = await node.create("unfinished")
        body = json.dumps({"commands": ["none"], "waitSeconds": 30}).encode()
        claim, claim_writer = await node.connect()
        claim_writer.write(node.head("POST", "tasks/claim", len(body)) + body)
        result, result_writer = await node.connect()
        result_writer.write(node.head("GET", f"tasks/{task_id}/result?waitSeconds=30", 0))
        for _ in range(3):
            await node.depth("none")
        answers = asyncio.gather(read_answer(claim), read_answer(result))
        started_s = loop.time()
        # The connections stay open, so the stop must not wait for clients to close them.
        node.open.clear()
        await stack.aclose()
        claimed, awaited = await asyncio.wait_for(answers, DEADLINE_S)
        claim_writer.close()
        result_writer.close()

    assert 204 == claimed.status
    assert (404, "result not found") == (awaited.status, awaited.error)
    assert loop.time() - started_s < 20  # This is long before the waits would end.


async def test_a_node_that_stops_says_so_first_and_serves_meanwhile(tmp_path: Path) -> None:
    """For `limits.drainMs` it reports that it is not ready, and still serves requests."""
    settings = single(tmp_path, LimitSettings())
    # The drain lasts longer than the test; the test cancels it.
    node = Node(replace(settings, limits=replace(settings.limits, drain_ms=300_000)))
    await node.start()
    client = Client(node.port)
    await ready(client)
    stopping = asyncio.create_task(node.stop())
    leaving = await eventually(lambda: client.get("/readyz"), lambda answer: answer.status != 200)
    alive = await client.get("/healthz")
    task_id = await client.create("late")
    stopping.cancel()
    await asyncio.wait((stopping,))
    for writer in client.open:
        writer.close()

    assert 503 == leaving.status
    assert "draining" in leaving.body.decode()
    assert 200 == alive.status
    assert task_id


async def test_a_request_that_has_begun_is_answered_and_the_last_of_its_connection(
    node_with: Running,
) -> None:
    """New connections are refused, but a request in progress is not cut off."""
    async with contextlib.AsyncExitStack() as stack:
        node = await stack.enter_async_context(node_with())
        body = json.dumps({"command": "begun", "payload": {}}).encode()
        request = node.head("POST", "tasks", len(body)) + body
        reader, writer = await node.connect()
        writer.write(request[:20])
        await node.depth("none")
        node.open.clear()  # The client keeps the connection open; the stop must close it.
        stopping = asyncio.create_task(stack.aclose())
        async with asyncio.timeout(DEADLINE_S):
            await refused(node.port)
            writer.write(request[20:])
            answer = await read_answer(reader)
            rest = await reader.read()
            await stopping
        writer.close()

    assert 202 == answer.status
    assert "close" == answer.headers["connection"]
    assert b"" == rest


async def refused(port: int) -> None:
    """Wait until new connections are refused."""
    with contextlib.suppress(ConnectionRefusedError):
        while True:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            await writer.wait_closed()
