"""Subscriptions: created, renewed, listed and ended by workers of their tenant."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from codeq_cluster.core.items import SUBSCRIPTIONS_MAX
from codeq_cluster.settings import LimitSettings, Unsigned, WebhookSettings
from tests.integration.http.client import Answer, Client, running
from tests.integration.http.operating import delete, pages, walked

pytestmark = pytest.mark.asyncio(loop_scope="session")

ID = "00000000-0000-4000-8000-000000000000"
URL = "https://example.com/wake"


async def subscribed(node: Client, **fields: object) -> str:
    """Add a subscription; return its id."""
    answer = await node.post("workers/subscriptions", {"callbackUrl": URL, **fields})
    assert 200 == answer.status, answer.body
    return str(answer.json["subscriptionId"])


def _left_s(expires_at: object) -> float:
    return (datetime.fromisoformat(str(expires_at)) - datetime.now(tz=UTC)).total_seconds()


async def test_a_subscription_lives_for_its_time_and_can_be_renewed(node: Client) -> None:
    """The answers have the two keys that codeQ's clients read."""
    made = await node.post("workers/subscriptions", {"callbackUrl": URL, "ttlSeconds": 1000})
    path = f"workers/subscriptions/{made.json['subscriptionId']}"
    renewals = [
        await node.post(f"{path}/heartbeat", body) for body in (b"", b"null", b"{}", b'{"x":1}')
    ]
    longer = await node.post(f"{path}/heartbeat", {"ttlSeconds": 86_400})

    for answer in (made, *renewals, longer):
        assert 200 == answer.status
        assert {"subscriptionId", "expiresAt"} == set(answer.json)
        assert made.json["subscriptionId"] == answer.json["subscriptionId"]
    assert 900 < _left_s(made.json["expiresAt"]) <= 1000
    assert all(each.json["expiresAt"] >= made.json["expiresAt"] for each in renewals)
    assert 86_300 < _left_s(longer.json["expiresAt"]) <= 86_400


async def test_a_subscription_is_shown_as_it_was_made(node: Client) -> None:
    """Missing fields have their defaults."""
    lister = Client(node.port, "subscribers")
    plain = await subscribed(lister)
    full = await subscribed(
        lister,
        eventTypes=["b", "a", "b"],
        ttlSeconds=60,
        deliveryMode="group",
        groupId="g",
        minIntervalSeconds=0,
    )
    shown = {
        each["subscriptionId"]: each
        for each in await walked(lister, "workers/subscriptions", "subscriptions")
    }
    for each in shown.values():
        assert each.pop("createdAt") < each.pop("expiresAt")

    common = {"workerId": "s", "callbackUrl": URL}
    assert (
        common
        | {
            "subscriptionId": plain,
            "eventTypes": [],
            "deliveryMode": "fanout",
            "ttlSeconds": 300,
            "minIntervalSeconds": 5,
        }
        == shown[plain]
    )
    assert (
        common
        | {
            "subscriptionId": full,
            "eventTypes": ["b", "a"],
            "deliveryMode": "group",
            "groupId": "g",
            "ttlSeconds": 60,
            "minIntervalSeconds": 0,
        }
        == shown[full]
    )


async def test_the_interval_of_a_subscription_that_names_none_is_configured(tmp_path: Path) -> None:
    """The interval is the setting at the time of the subscription."""
    calm = WebhookSettings(unsigned=Unsigned.ALLOW, subscription_min_interval_seconds=90)
    async with running(tmp_path, LimitSettings(), calm) as node:
        await subscribed(node)
        shown = await walked(node, "workers/subscriptions", "subscriptions")
        document = await node.get("/openapi.json")

    assert [90] == [each["minIntervalSeconds"] for each in shown]
    assert b"Shortest time between two notices; 90 when absent." in document.body


async def test_a_walk_meets_each_subscription_once_while_more_are_made(node: Client) -> None:
    """The walk covers those that existed at its start."""
    before = {await subscribed(node) for _ in range(5)}
    met: list[str] = []
    async for page in pages(node, "workers/subscriptions?limit=2"):
        assert len(page["subscriptions"]) <= 2
        met += [each["subscriptionId"] for each in page["subscriptions"]]
        await subscribed(node)

    assert len(set(met)) == len(met)
    assert before <= set(met)


async def test_a_subscription_is_ended_once(node: Client) -> None:
    """A second request does not find it."""
    path = f"workers/subscriptions/{await subscribed(node)}"
    ended = await delete(node, path)
    again = await delete(node, path)
    renewed = await node.post(f"{path}/heartbeat")

    assert (204, b"") == (ended.status, ended.body)
    assert (404, "not-found") == (again.status, again.error)
    assert (404, "not-found") == (renewed.status, renewed.error)


async def test_a_token_subscribes_to_what_it_may_claim(node: Client) -> None:
    """Without commands it subscribes to all that it may claim."""
    own = Client(node.port, "listener")
    named = await subscribed(own, eventTypes=["allowed"])
    unnamed = await subscribed(own, eventTypes=[])
    refused = [
        await own.post("workers/subscriptions", {"callbackUrl": URL, "eventTypes": asked})
        for asked in (["other"], ["allowed", "other"], ["*"], ["Allowed"])
    ]
    shown = {
        each["subscriptionId"]: each["eventTypes"]
        for each in await walked(own, "workers/subscriptions", "subscriptions")
    }

    assert ["allowed"] == shown[named]
    assert ["allowed", "Also.Allowed"] == shown[unnamed]
    assert [(403, "event type not allowed")] * 4 == [(each.status, each.error) for each in refused]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"callbackUrl": None}, "invalid body"),
        ({"callbackUrl": ""}, "invalid body"),
        ({"callbackUrl": 5}, "invalid body"),
        ({"eventTypes": "c"}, "invalid body"),
        ({"ttlSeconds": "5"}, "invalid body"),
        ({"ttlSeconds": 10**30}, "invalid body"),
        ({"callbackUrl": "ftp://host"}, "invalid callback url"),
        ({"callbackUrl": "https://"}, "invalid callback url"),
        ({"callbackUrl": "wake"}, "invalid callback url"),
        ({"callbackUrl": "https://host/\nX: y"}, "invalid callback url"),
        ({"deliveryMode": "all"}, "invalid deliveryMode"),
        ({"deliveryMode": "FANOUT"}, "invalid deliveryMode"),
        ({"deliveryMode": "group"}, "groupId is required"),
        ({"deliveryMode": "group", "groupId": ""}, "groupId is required"),
        ({"groupId": "é" * 129}, "invalid 'groupId' (at most 256 bytes)"),
        ({"eventTypes": ["a b"]}, "invalid command"),
        ({"eventTypes": ["c"] * 101}, "invalid 'eventTypes' (at most 100)"),
        ({"ttlSeconds": -1}, "invalid 'ttlSeconds' (must be >= 0)"),
        ({"ttlSeconds": 86_401}, "invalid 'ttlSeconds' (must be <= 86400)"),
        ({"minIntervalSeconds": -1}, "invalid 'minIntervalSeconds' (must be >= 0)"),
        ({"minIntervalSeconds": 86_401}, "invalid 'minIntervalSeconds' (must be <= 86400)"),
    ],
)
async def test_a_subscription_out_of_bounds_is_refused(
    node: Client, fields: dict[str, object], text: str
) -> None:
    """The refusal has the reference's words if there are any."""
    answer = await node.post("workers/subscriptions", {"callbackUrl": URL, **fields})

    assert (400, text) == (answer.status, answer.error)


async def test_the_first_fault_in_the_contracts_order_is_told(node: Client) -> None:
    """Body, callback URL, mode, group: mending one fault uncovers the next."""
    body: dict[str, object] = {"deliveryMode": "some"}
    told = []
    for mended in (
        {"callbackUrl": "x"},
        {"callbackUrl": URL},
        {"deliveryMode": "group"},
        {"groupId": "g"},
    ):
        told.append((await node.post("workers/subscriptions", body)).error)
        body |= mended

    assert [
        "invalid body",
        "invalid callback url",
        "invalid deliveryMode",
        "groupId is required",
    ] == told
    assert 200 == (await node.post("workers/subscriptions", body)).status


@pytest.mark.parametrize("body", [b"nonsense", b"[]", b'{"ttlSeconds":"5"}', b"7"])
async def test_a_renewal_that_is_no_renewal_is_refused(node: Client, body: bytes) -> None:
    """A body, if there is one, must be an object."""
    answer = await node.post(f"workers/subscriptions/{ID}/heartbeat", body)

    assert (400, "invalid body") == (answer.status, answer.error)


@pytest.mark.parametrize("ttl_s", [-1, 86_401])
async def test_a_renewal_out_of_bounds_is_refused(node: Client, ttl_s: int) -> None:
    """The refusal names the bound."""
    answer = await node.post(f"workers/subscriptions/{ID}/heartbeat", {"ttlSeconds": ttl_s})

    bound = "must be >= 0" if ttl_s < 0 else "must be <= 86400"
    assert (400, f"invalid 'ttlSeconds' ({bound})") == (answer.status, answer.error)


@pytest.mark.parametrize("subscription_id", [ID, "x" * 3000, "a%2Fb", "..", "%00"])
async def test_an_unknown_subscription_is_not_found(node: Client, subscription_id: str) -> None:
    """It can be neither renewed nor ended."""
    path = f"workers/subscriptions/{subscription_id}"
    renewed, ended = await node.post(f"{path}/heartbeat", {}), await delete(node, path)

    assert (404, "not-found") == (renewed.status, renewed.error)
    assert (404, "not-found") == (ended.status, ended.error)


async def test_a_worker_without_the_scope_subscribes_to_nothing(node: Client) -> None:
    """Each of the routes refuses it."""
    narrow = Client(node.port, "narrow")
    answers = [
        await narrow.post("workers/subscriptions", {"callbackUrl": URL}),
        await narrow.get("workers/subscriptions"),
        await narrow.post(f"workers/subscriptions/{ID}/heartbeat", {}),
        await delete(narrow, f"workers/subscriptions/{ID}"),
    ]

    assert [(403, "missing scope")] * 4 == [(each.status, each.error) for each in answers]


@pytest.mark.parametrize(
    "url",
    ["http://localhost/", "http://127.0.0.1/", "http://169.254.169.254/", "http://10.0.0.1/"],
)
async def test_a_private_target_is_refused(strict: Client, url: str) -> None:
    """The rule is the same as for webhooks."""
    answer = await strict.post("workers/subscriptions", {"callbackUrl": url})

    assert (400, "invalid callback url") == (answer.status, answer.error)


async def test_a_tenant_has_so_many_subscriptions_and_no_more(node: Client) -> None:
    """The next one is refused until one ends; other tenants have their own bound."""
    crowd = "crowd"

    async def subscribe_some(count: int) -> list[Answer]:
        return await asyncio.gather(
            *(
                node.post("workers/subscriptions", {"callbackUrl": URL}, token=crowd)
                for _ in range(count)
            )
        )

    made = [answer for _ in range(SUBSCRIPTIONS_MAX // 100) for answer in await subscribe_some(100)]
    [refused] = await subscribe_some(1)
    await delete(node, f"workers/subscriptions/{made[0].json['subscriptionId']}", token=crowd)
    [again] = await subscribe_some(1)

    assert {200} == {answer.status for answer in made}
    assert (409, "too many subscriptions (at most 1000)") == (refused.status, refused.error)
    assert "too-many" == refused.json["code"]
    assert 200 == again.status
    await subscribed(node)
