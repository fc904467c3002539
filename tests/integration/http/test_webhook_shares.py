"""Webhook shares: slow receivers of one tenant, from a real node, beside those of another."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web

from codeq_cluster.settings import LimitSettings, WebhookSettings
from tests.integration.http.client import Client, running
from tests.integration.webhooks.target import fine, listening

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOSTS = 40  # With four calls each, more than twice as many as a node makes at once.
SHARE = 32
# So long that no call is given up during a test.
WEBHOOKS = WebhookSettings(allow_private=True, hmac_secret="s" * 32, timeout_seconds=300)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """Run a node whose calls wait long for their answers."""
    directory = tmp_path_factory.mktemp("shares")
    async with running(directory, LimitSettings(), WEBHOOKS) as client:
        yield client


async def ended(node: Client, *urls: str, token: str) -> None:
    """End a task for each webhook."""
    for start in range(0, len(urls), 50):
        some = urls[start : start + 50]
        bodies = [{"command": "shared", "payload": {}, "webhook": url} for url in some]
        made = await node.post("tasks/batch", {"tasks": bodies}, token=token)
        assert 200 == made.status, made.body
        results = made.json["results"]
        assert isinstance(results, list)
        cancelled = (
            node.post(f"tasks/{each['task']['id']}/cancel", token=token) for each in results
        )
        await asyncio.gather(*cancelled)


async def test_slow_receivers_of_a_tenant_delay_no_other_tenants_calls(node: Client) -> None:
    """Forty silent hosts take half of the calls; a callback and a notice of another tenant pass.

    One of the hosts is the other tenant's too.
    """
    release = asyncio.Event()

    async def silent(request: web.Request) -> web.StreamResponse:
        if request.path == "/slow":
            await release.wait()
        return await fine(request)

    async with listening(silent, address="0.0.0.0") as target:
        port = target.port
        slow = [f"http://127.0.1.{host}:{port}/slow" for host in range(HOSTS) for _ in range(25)]
        await ended(node, *slow, token="acme")
        await target.arrived(SHARE)
        body = {"callbackUrl": f"http://127.0.1.0:{port}/notice", "eventTypes": ["bell"]}
        subscribed = await node.post("workers/subscriptions", body, token="other")
        assert 200 == subscribed.status, subscribed.body
        await node.post("tasks", {"command": "bell", "payload": {}}, token="other")
        await ended(node, f"http://127.0.1.0:{port}/mine", token="other")
        await target.arrived(SHARE + 2)
        paths = Counter(heard.path for heard in target.heard)
        release.set()
        await target.arrived(len(slow) + 2)

    assert {"/slow": SHARE, "/notice": 1, "/mine": 1} == paths
