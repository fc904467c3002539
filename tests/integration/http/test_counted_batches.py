"""Counted batches: a task is counted, whichever routes it was created and ended by."""

from __future__ import annotations

import pytest

from tests.integration.http.client import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_what_batches_do_is_counted_task_by_task(node: Client) -> None:
    """Creates, claims and both kinds of ends are counted, with the time each task took."""
    item = {"command": "tallied", "payload": {}}
    await node.post("tasks/batch", {"tasks": [item, {"command": "a b", "payload": {}}, item, item]})
    claimed = await node.post("tasks/claim/batch", {"count": 9, "commands": ["tallied"]})
    tasks = claimed.json["tasks"]
    assert isinstance(tasks, list)
    results: list[dict[str, object]] = [
        {"taskId": task["id"], "status": "COMPLETED", "result": {}} for task in tasks
    ]
    results[2] = {"taskId": tasks[2]["id"], "status": "FAILED", "error": "e"}
    # This one is sent twice and must count once.
    ended = await node.post("tasks/batch/results", {"results": [*results, results[0]]})
    await node.post("tasks/batch/results", {"results": results})
    scraped = (await node.get("/metrics")).body.decode().splitlines()

    said = [each.get("retryable") for each in ended.json["results"]]  # type: ignore[attr-defined]
    assert [None, None, None, False] == said
    seconds = "codeq_task_processing_latency_seconds_count"
    for line in (
        'codeq_task_created_total{command="tallied"} 3.0',
        'codeq_task_claimed_total{command="tallied"} 3.0',
        'codeq_task_completed_total{command="tallied",status="COMPLETED"} 2.0',
        'codeq_task_completed_total{command="tallied",status="FAILED"} 1.0',
        seconds + '{command="tallied",status="COMPLETED"} 2.0',
        seconds + '{command="tallied",status="FAILED"} 1.0',
    ):
        assert line in scraped
