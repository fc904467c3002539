"""Unsigned webhooks: a node without a secret refuses them, holds them back and reports that."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from codeq_cluster.settings import LimitSettings, SigningKeys, Unsigned, WebhookSettings
from codeq_cluster.webhooks.signing import signature, tenant_key
from tests.integration.http.client import Client, eventually, running
from tests.integration.http.operating import walked
from tests.integration.webhooks.target import listening

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRET = "the-secret-of-these-tests"
SIGNED = WebhookSettings(allow_private=True, hmac_secret=SECRET)
TEXT = (
    "webhooks are not configured (set webhookHmacSecret, which signs them, or webhooks.unsigned "
    "to allow)"
)
SHARED = (
    "webhooks are signed with one secret for all tenants: a tenant can pose as another one to its "
    "receivers"
)
REFUSED = (TEXT, "webhooks-not-configured")
HOOK = "https://1.1.1.1/done"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def bare(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """Run a node without settings for webhooks."""
    directory = tmp_path_factory.mktemp("bare")
    async with running(directory, LimitSettings(), WebhookSettings()) as client:
        yield client


async def test_a_create_with_a_webhook_is_refused_singly_and_in_a_batch(bare: Client) -> None:
    """The text names the settings; tasks without a webhook are accepted."""
    plain = {"command": "hook", "payload": {}}
    single = await bare.post("tasks", plain | {"webhook": HOOK})
    private = await bare.post("tasks", plain | {"webhook": "http://10.0.0.1/"})
    batch = await bare.post("tasks/batch", {"tasks": [plain, plain | {"webhook": HOOK}]})
    results = batch.json["results"]

    assert (400, *REFUSED) == (single.status, single.error, single.json["code"])
    assert TEXT == private.error
    assert isinstance(results, list)
    assert [(None, None), REFUSED] == [(each.get("error"), each.get("code")) for each in results]
    assert 1 == (await bare.depth("hook"))["ready"]


async def test_a_subscription_is_refused(bare: Client) -> None:
    """Renewals are refused too."""
    made = await bare.post("workers/subscriptions", {"callbackUrl": HOOK})
    renewed = await bare.post(
        "workers/subscriptions/00000000-0000-4000-8000-000000000000/heartbeat"
    )

    assert (400, *REFUSED) == (made.status, made.error, made.json["code"])
    assert (400, TEXT) == (renewed.status, renewed.error)


async def test_callbacks_accepted_before_are_held_back_and_signed_later(tmp_path: Path) -> None:
    """Nothing is sent unsigned: it waits for a secret, within the age limit of callbacks."""
    async with listening() as target:
        async with running(tmp_path, LimitSettings(), SIGNED) as node:
            task_id = await node.create("kept-back", webhook=target.url)
        bare = WebhookSettings(allow_private=True, base_backoff_seconds=0, max_age_seconds=1)
        async with running(tmp_path, LimitSettings(), bare) as node:
            await node.post(f"tasks/{task_id}/cancel")
            dead = await eventually(
                lambda: walked(node, "admin/deliveries?status=dead", "deliveries")
            )
        unsigned = len(target.heard)
        async with running(tmp_path, LimitSettings(), SIGNED) as node:
            await node.post(f"admin/deliveries/{task_id}.1/replay")
            await target.arrived(1)

    [heard] = target.heard
    unix_s = int(heard.headers["X-CodeQ-Timestamp"])
    assert [(f"{task_id}.1", 0)] == [(each["id"], each["attempts"]) for each in dead]
    assert 0 == unsigned
    key = tenant_key(SECRET, "acme", 1)
    assert signature(key, unix_s=unix_s, body=heard.body) == heard.headers["X-CodeQ-Signature"]


@pytest.mark.parametrize(
    ("webhooks", "said"),
    [
        (SIGNED, "webhooks are signed"),
        (
            replace(SIGNED, signing_keys=SigningKeys.CLUSTER),
            SHARED,
        ),
        (WebhookSettings(unsigned=Unsigned.ALLOW), "webhooks are sent unsigned"),
        (WebhookSettings(), "webhooks and subscriptions are refused"),
        # A secret is used even where unsigned calls are allowed.
        (WebhookSettings(hmac_secret=SECRET, unsigned=Unsigned.ALLOW), "webhooks are signed"),
    ],
)
async def test_the_log_of_the_start_says_which_it_is(
    webhooks: WebhookSettings, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log also says whether artifacts are accepted."""
    with caplog.at_level(logging.INFO, "codeq_cluster.node.features"):
        async with running(tmp_path, LimitSettings(), webhooks):
            pass
    told = [each.message for each in caplog.records if each.name == "codeq_cluster.node.features"]

    assert ["artifacts are refused", said] == told
