"""Deliveries: result callbacks that failed, listed and replayed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from codeq_cluster.settings import LimitSettings, Unsigned, WebhookSettings
from tests.integration.http.client import PATIENCE_S, Client, eventually, running
from tests.integration.http.operating import died, pages, walked

pytestmark = pytest.mark.asyncio(loop_scope="session")

ID = "00000000-0000-4000-8000-000000000000"


# Nodes skip a server that fails too often, so each dead delivery has its own server.
SERVERS = 12


class Target:
    """Servers of callbacks that accept or refuse."""

    def __init__(self) -> None:
        self.status = 500
        self.ports: list[int] = []
        self.heard: list[str] = []
        self.changed = asyncio.Event()

    @property
    def url(self) -> str:
        """The URL of the next server."""
        self.ports.append(self.ports.pop(0))
        return f"http://127.0.0.1:{self.ports[-1]}/done"

    async def take(self, request: web.Request) -> web.Response:
        """Record a callback."""
        self.heard.append(request.headers["X-CodeQ-Delivery"])
        self.changed.set()
        return web.Response(status=self.status)

    async def until_heard(self, count: int) -> None:
        """Wait for `count` callbacks in all."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.heard) < count:
                self.changed.clear()
                await self.changed.wait()


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[Target]:
    """Run the servers until the end of the block."""
    target = Target()
    app = web.Application()
    app.router.add_post("/done", target.take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    for _ in range(SERVERS):
        await web.TCPSite(runner, "127.0.0.1", 0).start()
    target.ports = [address[1] for address in runner.addresses]
    try:
        yield target
    finally:
        await runner.cleanup()


@pytest_asyncio.fixture(loop_scope="session")
async def target() -> AsyncIterator[Target]:
    """Run servers that refuse at first."""
    async with listening() as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def once(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """Run a node that tries each delivery once."""
    webhooks = WebhookSettings(allow_private=True, unsigned=Unsigned.ALLOW, max_attempts=1)
    async with running(tmp_path_factory.mktemp("once"), LimitSettings(), webhooks) as client:
        yield client


async def dead(node: Client, target: Target, count: int = 1) -> list[str]:
    """Make deliveries dead; return the ids of their tasks, the latest death first."""
    tasks = []
    for _ in range(count):
        tasks.insert(0, await died(node, "hooked", webhook=target.url))
        delivery_id = f"{tasks[0]}.1"
        await eventually(lambda: _ids(node, "dead"), lambda ids, it=delivery_id: it in ids)
    return tasks


async def _ids(node: Client, status: str) -> list[str]:
    path = f"admin/deliveries?status={status}"
    return [each["id"] for each in await walked(node, path, "deliveries")]


async def test_a_delivery_that_nobody_took_is_shown_and_tried_again(
    once: Client, target: Target
) -> None:
    """A replay uses the same id, and an accepted delivery is gone."""
    [task_id] = await dead(once, target)
    [shown] = [
        each
        for each in await walked(once, "admin/deliveries?status=dead", "deliveries")
        if each["taskId"] == task_id
    ]
    target.status = 204
    replayed = await once.post(f"admin/deliveries/{shown['id']}/replay")
    await target.until_heard(2)
    await eventually(lambda: _ids(once, ""), lambda ids: shown["id"] not in ids)
    again = await once.post(f"admin/deliveries/{shown['id']}/replay")

    assert "dead" == shown["status"]
    task = (await once.get(f"tasks/{task_id}")).json
    assert (task["webhook"], "hooked", 1) == (shown["url"], shown["command"], shown["attempts"])
    assert shown["error"]
    assert shown["createdAt"] <= shown["diedAt"]
    assert "nextAttemptAt" not in shown
    assert (200, {"replayed": 1}) == (replayed.status, replayed.json)
    assert [shown["id"]] * 2 == target.heard
    assert (404, "delivery not found") == (again.status, again.error)


async def test_a_pending_delivery_says_when_it_is_tried_next(node: Client, target: Target) -> None:
    """A pending delivery is not dead, so it cannot be replayed."""
    task_id = await died(node, "hooked", webhook=target.url)
    await target.until_heard(1)
    delivery_id = f"{task_id}.1"

    async def pending() -> dict[str, Any]:
        listed = await walked(node, "admin/deliveries?status=pending", "deliveries")
        [shown] = [each for each in listed if each["id"] == delivery_id]
        return shown

    shown = await eventually(pending, lambda shown: shown["attempts"])
    replayed = await node.post("admin/deliveries/replay", {"ids": [delivery_id]})

    assert ("pending", 1) == (shown["status"], shown["attempts"])
    assert shown["nextAttemptAt"] > shown["createdAt"]
    assert "diedAt" not in shown
    assert delivery_id in await _ids(node, "")
    assert delivery_id not in await _ids(node, "dead")
    assert {"replayed": 0} == replayed.json
    target.status = 200
    await target.until_heard(2)


async def test_dead_deliveries_are_walked_the_latest_death_first(
    once: Client, target: Target
) -> None:
    """Each is listed once while more die, and all can be replayed together."""
    await once.post("admin/deliveries/replay", {"all": True})
    tasks = await dead(once, target, 4)
    met: list[str] = []
    async for page in pages(once, "admin/deliveries?status=dead&limit=1"):
        met += [each["taskId"] for each in page["deliveries"]]
        await dead(once, target)
    target.status = 200
    some = await once.post("admin/deliveries/replay", {"ids": [f"{tasks[0]}.1", f"{ID}.1"]})
    everything = await once.post("admin/deliveries/replay", {"all": True})

    assert tasks == [each for each in met if each in tasks]
    assert len(set(met)) == len(met)
    assert {"replayed": 1} == some.json
    assert everything.json["replayed"] >= 7
    assert [] == await _ids(once, "dead")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "ids or all required"),
        (b"{}", "ids or all required"),
        (b'{"all":false}', "ids or all required"),
        (b'{"ids":[]}', "invalid 'ids' (name at least one)"),
        (b'{"ids":[],"all":true}', "invalid 'ids' (name at least one)"),
        (b'{"ids":["a/b"]}', "invalid 'ids' (name at least one)"),
        (b'{"ids":"x"}', "invalid body"),
        (b'{"all":1}', "invalid body"),
        (b"[]", "invalid body"),
        (b"nonsense", "invalid body"),
    ],
)
async def test_a_replay_of_nothing_is_refused(node: Client, body: bytes, text: str) -> None:
    """An empty selection does not stand for all deliveries."""
    answer = await node.post("admin/deliveries/replay", body)

    assert (400, text) == (answer.status, answer.error)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("status=alive", "invalid status"),
        ("limit=0", "invalid 'limit' (must be >= 1)"),
        ("limit=501", "invalid 'limit' (must be <= 500)"),
        ("cursor=nonsense", "invalid 'cursor'"),
    ],
)
async def test_a_list_asked_for_wrongly_is_refused(node: Client, query: str, text: str) -> None:
    """The refusal names the bounds."""
    answer = await node.get(f"admin/deliveries?{query}")

    assert (400, text) == (answer.status, answer.error)


@pytest.mark.parametrize("delivery_id", [ID, f"{ID}.1", "x" * 3000, "a%2Fb", "%00", ".1", "."])
async def test_an_unknown_delivery_is_not_found(node: Client, delivery_id: str) -> None:
    """No unknown id is found, however it is written."""
    answer = await node.post(f"admin/deliveries/{delivery_id}/replay")

    assert (answer.status, answer.error) in [
        (404, "delivery not found"),
        (404, "no such route"),
    ]
