"""Helpers for tests of the operators' routes: dead tasks, and walks through lists."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from tests.integration.http.client import Answer, Client


async def died(node: Client, command: str, error: str = "e", **fields: object) -> str:
    """Create a task and make it a dead letter; return its id."""
    task_id = await node.create(command, maxAttempts=1, **fields)
    claimed = await node.claim(command)
    assert task_id == claimed["id"]
    nacked = await node.post(f"tasks/{task_id}/nack", {"reason": error})
    assert "dlq" == nacked.json["status"], nacked.body
    return task_id


async def finished(node: Client, command: str) -> str:
    """Create a task and complete it; return its id."""
    task_id = await node.create(command)
    await node.claim(command)
    done = await node.post(f"tasks/{task_id}/result", {"status": "COMPLETED", "result": {}})
    assert 200 == done.status, done.body
    return task_id


async def pages(node: Client, path: str) -> AsyncIterator[dict[str, Any]]:
    """Yield the pages of a list from its start to its end."""
    answer = await node.get(path)
    while True:
        assert 200 == answer.status, answer.body
        page = answer.json
        yield page
        if "cursor" not in page:
            return
        answer = await node.get(f"{path}{'&' if '?' in path else '?'}cursor={page['cursor']}")


async def walked(node: Client, path: str, name: str) -> list[dict[str, Any]]:
    """Return a whole list, page by page."""
    return [entry async for page in pages(node, path) for entry in page[name]]


async def delete(node: Client, path: str, body: bytes = b"", *, token: str | None = None) -> Answer:
    """Send a DELETE."""
    return await node.send("DELETE", path, body, token=token)


def quoted(text: str) -> str:
    """Return a text quoted for a query."""
    return quote(text, safe="")
