"""Budgets: the quotas of a tenant, and their effect on its neighbours when they are used up."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from codeq_cluster.settings import BudgetSettings, LimitSettings, TenantBudget
from tests.integration.http.client import Client, serving, single

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEXT = "x" * 600


@contextlib.asynccontextmanager
async def budgeted(data_dir: Path, **bounds: int) -> AsyncIterator[Client]:
    """Run a node with these quotas for every tenant but `other`; yield its client."""
    budgets = BudgetSettings(**bounds, tenants=(TenantBudget(tenant="other"),))
    settings = dataclasses.replace(single(data_dir, LimitSettings()), budgets=budgets)
    async with serving(settings) as client:
        yield client


async def test_a_tenant_has_so_many_tasks_waiting_and_no_more(tmp_path: Path) -> None:
    """Ready and delayed tasks of all queues count; another tenant is not affected."""
    async with budgeted(tmp_path, ready_tasks=3) as node:
        other = Client(node.port, "other")
        await node.create("a")
        await node.create("b")
        await node.create("c", delaySeconds=600)
        refused = await node.post("tasks", {"command": "d", "payload": {}})
        items = [{"command": command, "payload": {}} for command in ("d", "not a command")]
        batch = await node.post("tasks/batch", {"tasks": items})
        for _ in range(5):
            await other.create("a")
        await node.claim("a")
        await node.create("d")

        assert (429, "budget-exceeded") == (refused.status, refused.json["code"])
        assert "tenant budget exceeded: readyTasks" == refused.error
        assert [("budget-exceeded", True), ("invalid-command", False)] == [
            (each["code"], each["retryable"])
            for each in batch.json["results"]  # type: ignore[attr-defined]
        ]
        assert 1 == (await node.depth("d"))["ready"]


async def test_a_tenant_has_so_many_tasks_in_progress_and_no_more(tmp_path: Path) -> None:
    """The end of one attempt makes room for the next; another tenant has its own quota."""
    async with budgeted(tmp_path, in_flight=2) as node:
        other = Client(node.port, "other")
        for _ in range(4):
            await node.create("busy")
            await other.create("busy")
        held = [await node.claim("busy") for _ in range(2)]
        refused = await node.post("tasks/claim", {"commands": ["busy"]})
        theirs = [await other.claim("busy") for _ in range(4)]
        await node.post(f"tasks/{held[0]['id']}/abandon")
        await node.claim("busy")
        again = await node.post("tasks/claim", {"commands": ["busy"]})

        assert (429, "tenant budget exceeded: inFlight") == (refused.status, refused.error)
        assert int(refused.headers["retry-after"]) >= 1
        assert 4 == len({task["id"] for task in theirs})
        assert 429 == again.status


async def test_a_tenant_keeps_so_many_bytes_and_no_more(tmp_path: Path) -> None:
    """Creates are refused, but the result of a task in progress is still taken."""
    async with budgeted(tmp_path, stored_bytes=1000) as node:
        task_id = await node.create("kept", payload=TEXT)
        refused = await node.post("tasks", {"command": "kept", "payload": TEXT})
        await node.claim("kept")
        done = await node.post(
            f"tasks/{task_id}/result", {"status": "COMPLETED", "result": TEXT + TEXT}
        )

        assert (429, "tenant budget exceeded: storedBytes") == (refused.status, refused.error)
        assert 200 == done.status
