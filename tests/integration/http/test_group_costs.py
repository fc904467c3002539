"""Costs of groups: how many log entries a group adds to those of its members."""

from __future__ import annotations

import pytest

from codeq_cluster.core.groups import ADDED_MAX
from tests.integration.http.client import Client
from tests.integration.http.conftest import Running

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Its begin and its seal, the claim and the result of its completion task; the rest is room for
# what a leader writes by itself.
ENTRIES_MAX = 10
# A request for a hundred members is one entry: they are added, claimed and ended.
REQUESTS = 3


async def test_a_group_adds_no_entry_for_its_members(node_with: Running) -> None:
    """Twice the members make twice the entries of members, and the group's stay as few."""
    async with node_with() as client:
        beyond = [await _entries_beyond(client, f"g{many}", many) for many in (1000, 2000)]

    assert max(beyond) <= ENTRIES_MAX
    assert min(beyond) > 0


async def _entries_beyond(client: Client, name: str, many: int) -> int:
    """Let a group live; return its entries beyond those of its members."""
    before = await _entries(client)
    await client.post("groups", {"id": name, "then": {"command": f"{name}.then", "payload": {}}})
    for _ in range(many // ADDED_MAX):
        tasks = [{"command": name, "payload": {}}] * ADDED_MAX
        assert 202 == (await client.post(f"groups/{name}/tasks", {"tasks": tasks})).status
    await client.post(f"groups/{name}/seal", {})
    ended = 0
    while ended < many:
        ended += await _work(client, name)
    assert 1 == await _work(client, f"{name}.then")
    return await _entries(client) - before - REQUESTS * many // ADDED_MAX


async def _work(client: Client, command: str) -> int:
    """Claim and end up to a hundred tasks; return how many."""
    asked = {"commands": [command], "count": ADDED_MAX}
    claimed = await client.post("tasks/claim/batch", asked)
    tasks = claimed.json["tasks"]
    assert isinstance(tasks, list)
    assert tasks
    results = [{"taskId": task["id"], "status": "COMPLETED", "result": {}} for task in tasks]
    await client.post("tasks/batch/results", {"results": results})
    return len(tasks)


async def _entries(client: Client) -> int:
    """Return the committed entries of all shards."""
    lines = (await client.get("/metrics")).body.decode().splitlines()
    found = [line for line in lines if line.startswith("codeq_raft_commit_index{")]
    return sum(int(float(line.rpartition(" ")[2])) for line in found)
