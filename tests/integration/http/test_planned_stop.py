"""A planned stop: who waits is answered, and nothing is left leased."""

from __future__ import annotations

import asyncio
import contextlib
import json

from tests.integration.http.client import DEADLINE_S, read_answer
from tests.integration.http.conftest import Running


async def test_waiting_clients_are_answered_when_the_node_stops(node_with: Running) -> None:
    """As if their time were over, and at once."""
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
        node.open.clear()  # The connections stay open: the node must not need them closed.
        await stack.aclose()
        claimed, awaited = await asyncio.wait_for(answers, DEADLINE_S)
        claim_writer.close()
        result_writer.close()

    assert claimed.status == 204
    assert (awaited.status, awaited.error) == (404, "result not found")
    assert loop.time() - started_s < 10
