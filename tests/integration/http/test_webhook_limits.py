"""Webhook limits: calls beyond a tenant's rate, from a real node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from codeq_cluster.settings import LimitSettings, RateLimitSettings, RateSettings, TenantRateLimit
from tests.integration.http.client import Client, serving, single
from tests.integration.webhooks.target import listening

pytestmark = pytest.mark.asyncio(loop_scope="session")

BURST = 2
PER_MINUTE = 240
CALLBACKS = 12
# The bucket gains nothing during a test, so every call beyond the burst exceeds the limit.
RARE = TenantRateLimit(tenant="other", scope="webhook", requests_per_minute=1, burst_size=BURST)
LIMITS = RateLimitSettings(
    webhook=RateSettings(requests_per_minute=PER_MINUTE, burst_size=BURST), tenants=(RARE,)
)
HITS = "codeq_rate_limit_hits_total"
DELIVERIES = "codeq_webhook_deliveries_total"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """Run a node that limits the calls of a tenant."""
    settings = single(tmp_path_factory.mktemp("limited"), LimitSettings())
    async with serving(replace(settings, rate_limit=LIMITS)) as client:
        yield client


async def test_callbacks_beyond_the_limit_are_put_off_and_all_arrive(node: Client) -> None:
    """Callbacks are sent at the rate; none is lost, doubled or counted as failed."""
    async with listening() as target:
        ids = [await node.create("limited", webhook=target.url) for _ in range(CALLBACKS)]
        begun_s = time.monotonic()
        # All are sent at once: one by one, a busy machine could be as slow as the limit.
        await asyncio.gather(*(node.post(f"tasks/{task_id}/cancel") for task_id in ids))
        waiting: list[tuple[object, object]] = []
        while pending := (await node.get("admin/deliveries")).json["deliveries"]:
            assert isinstance(pending, list)
            waiting += [(each["status"], each["attempts"]) for each in pending]
        passed_s = time.monotonic() - begun_s
        attempts = await counted(node, DELIVERIES, command="limited")
        hits = await counted(node, HITS, operation="task_result")

    told = [heard.headers["X-CodeQ-Delivery"] for heard in target.heard]
    assert sorted(f"{task_id}.1" for task_id in ids) == sorted(told)
    assert passed_s >= (CALLBACKS - BURST) * 60 / PER_MINUTE
    assert {("pending", 0)} == set(waiting)
    assert {("task_result", "success"): CALLBACKS} == attempts
    assert hits[("webhook",)] >= 1


async def test_notices_beyond_the_limit_are_dropped_and_counted(node: Client) -> None:
    """Dropped notices are not repeated, because subscribers poll too. Tenants have own limits."""
    queues = [f"noticed-{number}" for number in range(5)]
    own = replace(node, token="other")
    async with listening() as target:
        body = {"callbackUrl": target.url, "eventTypes": queues, "minIntervalSeconds": 0}
        assert 200 == (await own.post("workers/subscriptions", body)).status
        for queue in queues:
            await own.create(queue)
        outcomes: dict[str, float] = {}
        while sum(outcomes.values()) < len(queues):
            outcomes = {"success": 0.0, "dropped": 0.0}
            for queue in queues:
                for (_, outcome), count in (await counted(own, DELIVERIES, command=queue)).items():
                    outcomes[outcome] += count
        hits = await counted(own, HITS, operation="queue_ready")

    assert {"success": BURST, "dropped": len(queues) - BURST} == outcomes
    assert BURST == len(target.heard)
    assert {("webhook",): len(queues) - BURST} == hits


async def counted(node: Client, name: str, **labels: str) -> dict[tuple[str, ...], float]:
    """Return a counter's samples with these labels, by the values of its other labels."""
    text = (await node.get("/metrics")).body.decode()
    return {
        tuple(value for label, value in sorted(each.labels.items()) if label not in labels): (
            each.value
        )
        for family in text_string_to_metric_families(text)
        for each in family.samples
        if each.name == name and labels.items() <= each.labels.items()
    }
