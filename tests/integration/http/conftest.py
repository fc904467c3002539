"""Fixtures of the HTTP tests: a shared node, and nodes with their own settings."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from codeq_cluster.settings import LimitSettings, Unsigned, WebhookSettings
from tests.integration.http.client import Client, running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """Run one node for every test of a module that leaves it as it found it."""
    async with running(tmp_path_factory.mktemp("node"), LimitSettings()) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def node(shared: Client) -> AsyncIterator[Client]:
    """Yield the shared node, and check afterwards that it is as healthy as before."""
    yield shared
    task_id = await shared.create("healthy")
    claimed = await shared.claim("healthy")
    done = await shared.post(f"tasks/{task_id}/result", {"status": "COMPLETED", "result": {}})
    depth = await shared.depth("healthy")

    assert task_id == claimed["id"]
    assert 200 == done.status
    assert (0, 0) == (depth["ready"], depth["inProgress"])
    assert 200 == (await shared.get("/readyz")).status


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def strict(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """Run a node with the default rules for webhook targets, which allow no private one."""
    directory = tmp_path_factory.mktemp("strict")
    async with running(
        directory, LimitSettings(), WebhookSettings(unsigned=Unsigned.ALLOW)
    ) as client:
        yield client


Running = Callable[..., contextlib.AbstractAsyncContextManager[Client]]


@pytest.fixture
def node_with(tmp_path: Path) -> Running:
    """Return a function that runs a node with given limits."""
    return lambda **limits: running(tmp_path / "node", LimitSettings(**limits))
