"""Webhook keys: a tenant's own, shown to its admins alone and rotated without a gap."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from codeq_cluster.client import (
    CallbackRefused,
    QueueReady,
    Refused,
    SyncOperator,
    TaskEnded,
    verify_callback,
    verify_notice,
)
from codeq_cluster.client.operator import Operator
from codeq_cluster.settings import LimitSettings, SigningKeys, Unsigned, WebhookSettings
from codeq_cluster.webhooks.signing import signature
from tests.integration.http.client import OPERATOR, Client, running
from tests.integration.http.operating import walked
from tests.integration.webhooks.target import Heard, Listener, listening

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRET = "the-secret-of-these-tests"
SIGNED = WebhookSettings(allow_private=True, hmac_secret=SECRET)
KEYS = "admin/webhooks/keys"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """Run a node that signs."""
    async with running(tmp_path_factory.mktemp("keys"), LimitSettings(), SIGNED) as client:
        yield client


async def keys_of(node: Client, tenant: str, **rotation: int) -> list[dict[str, Any]]:
    """Return the tenant's keys, after a rotation if there are fields for one."""
    path = f"{KEYS}/rotate" if rotation else KEYS
    send = node.post(path, rotation, token=tenant) if rotation else node.get(path, token=tenant)
    answer = await send
    assert 200 == answer.status, answer.body
    found: Any = answer.json["keys"]
    return list(found)


async def called(node: Client, target: Listener, *, token: str) -> Heard:
    """Return the callback of a task that a tenant ends."""
    before = len(target.heard)
    body = {"command": "signed", "payload": {}, "webhook": target.url}
    made = await node.post("tasks", body, token=token)
    await node.post(f"tasks/{made.json['id']}/cancel", token=token)
    await target.arrived(before + 1)
    return target.heard[-1]


async def test_a_callback_to_another_tenants_receiver_does_not_verify_there(node: Client) -> None:
    """A tenant can name any receiver, but only its own key signs what it causes."""
    [[own], [other]] = [await keys_of(node, tenant) for tenant in ("acme", "other")]
    async with listening() as receiver_of_other:
        forged = await called(node, receiver_of_other, token="acme")
        genuine = await called(node, receiver_of_other, token="other")

    assert own["key"] != other["key"]
    with pytest.raises(CallbackRefused, match=f"ids of the signing keys: {own['id']}"):
        verify_callback(forged.headers, forged.body, keys=other["key"])
    found = verify_callback(genuine.headers, genuine.body, keys=other["key"])
    assert TaskEnded is type(found)
    assert ("signed", "FAILED", "CANCELLED") == (found.event_type, found.status, found.error)
    assert genuine.headers["X-CodeQ-Delivery"] == found.delivery


async def test_a_notice_is_signed_with_the_tenants_key(node: Client) -> None:
    """It does not pass for a callback."""
    [key] = await keys_of(node, "acme")
    async with listening() as target:
        body = {"callbackUrl": target.url, "eventTypes": ["rung"], "minIntervalSeconds": 0}
        await node.post("workers/subscriptions", body)
        await node.create("rung")
        await target.arrived(1)
    [heard] = target.heard

    found = verify_notice(heard.headers, heard.body, keys=key["key"])
    assert QueueReady is type(found)
    assert ("rung", 1) == (found.event_type, found.queue_depth)
    with pytest.raises(CallbackRefused, match="the body is no TaskEnded"):
        verify_callback(heard.headers, heard.body, keys=key["key"])


async def test_a_rotation_leaves_no_gap(node: Client) -> None:
    """Until the overlap ends, receivers with either key accept; both are named in the header."""
    async with listening() as target:
        [old] = await keys_of(node, "mine")
        new, until = await keys_of(node, "mine", overlapSeconds=3600)
        both = await called(node, target, token="mine")
        [last] = await keys_of(node, "mine", overlapSeconds=0)
        alone = await called(node, target, token="mine")

    ids = [each.partition("=")[0] for each in both.headers["X-CodeQ-Signatures"].split(", ")]
    assert [new["id"], old["id"]] == ids
    assert (old["id"], old["key"]) == (until["id"], until["key"])
    assert (1, 2, 3) == (old["version"], new["version"], last["version"])
    assert until["signsUntil"]
    for key in (new, old):
        verify_callback(both.headers, both.body, keys=[key["key"]])
    verify_callback(alone.headers, alone.body, keys=[old["key"], last["key"]])
    with pytest.raises(CallbackRefused):
        verify_callback(alone.headers, alone.body, keys=[old["key"], new["key"]])


async def test_the_keys_are_for_the_tenants_admins_and_reading_them_is_on_record(
    node: Client,
) -> None:
    """An operator and a worker are refused; each reading and each rotation has a record."""
    await keys_of(node, "theirs")
    await keys_of(node, "theirs", overlapSeconds=60)
    refused = [(await node.get(KEYS, token=token)).status for token in (OPERATOR, "narrow", "")]
    records = await walked(Client(node.port, "theirs"), "admin/audit", "records")

    assert all(status in (401, 403) for status in refused)
    assert ["webhook-key.rotate", "webhook-key.read"] == [each["action"] for each in records]
    assert "the previous key signs for 60 s more" == records[0]["detail"]


@pytest.mark.parametrize("overlap", [-1, 2_592_001, "soon"])
async def test_an_overlap_out_of_bounds_is_refused(node: Client, overlap: object) -> None:
    """Nothing is rotated then."""
    before = await keys_of(node, "listed")
    answer = await node.post(f"{KEYS}/rotate", {"overlapSeconds": overlap}, token="listed")

    assert 400 == answer.status
    assert before == await keys_of(node, "listed")


async def test_a_rotation_outlives_a_restart(tmp_path: Path) -> None:
    """The version is replicated; the key is derived again."""
    async with running(tmp_path, LimitSettings(), SIGNED) as first:
        before = await keys_of(first, "acme", overlapSeconds=3600)
    async with running(tmp_path, LimitSettings(), SIGNED) as second, listening() as target:
        heard = await called(second, target, token="acme")

        assert before == await keys_of(second, "acme")
    verify_callback(heard.headers, heard.body, keys=before[0]["key"])


async def test_one_secret_for_all_gives_codeqs_signature_and_shows_no_key(tmp_path: Path) -> None:
    """With `webhooks.signing: cluster` receivers of codeQ go on, and no tenant sees the secret."""
    shared = WebhookSettings(
        allow_private=True, hmac_secret=SECRET, signing_keys=SigningKeys.CLUSTER
    )
    async with running(tmp_path, LimitSettings(), shared) as node, listening() as target:
        heard = await called(node, target, token="acme")
        answers = [await node.get(KEYS), await node.post(f"{KEYS}/rotate")]

    unix_s = int(heard.headers["X-CodeQ-Timestamp"])
    expected = signature(SECRET, unix_s=unix_s, body=heard.body)
    assert expected == heard.headers["X-CodeQ-Signature"]
    assert [(409, "signed-by-cluster")] * 2 == [
        (each.status, each.json["code"]) for each in answers
    ]
    assert all(SECRET.encode() not in each.body for each in answers)


async def test_without_a_secret_there_are_no_keys(tmp_path: Path) -> None:
    """The refusal names the setting."""
    unsigned = WebhookSettings(allow_private=True, unsigned=Unsigned.ALLOW)
    async with running(tmp_path, LimitSettings(), unsigned) as node:
        answer = await node.get(KEYS)

    assert (409, "webhooks-unsigned") == (answer.status, answer.json["code"])
    assert "webhookHmacSecret" in str(answer.error)


async def test_the_client_reads_and_rotates(node: Client) -> None:
    """A second rotation within the overlap of the first leaves two keys."""
    async with Operator([f"http://127.0.0.1:{node.port}"], token="crowd") as operator:
        [first] = await operator.webhook_keys()
        await operator.rotate_webhook_key()
        keys = await operator.rotate_webhook_key(overlap_s=60)
        with pytest.raises(Refused, match="overlapSeconds"):
            await operator.rotate_webhook_key(overlap_s=-1)

    assert [3, 2] == [each["version"] for each in keys]
    assert first["key"] not in {each["key"] for each in keys}
    assert SyncOperator.webhook_keys.__doc__ == Operator.webhook_keys.__doc__
