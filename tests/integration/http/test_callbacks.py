"""Result callbacks: a real node calls the webhook for every ending of a task."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from codeq_cluster.settings import LimitSettings, WebhookSettings
from codeq_cluster.testing.ports import free_ports
from codeq_cluster.webhooks.signing import signature, tenant_key
from tests.integration.http.client import Client, eventually, running
from tests.integration.webhooks.target import Heard, fine, listening

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRET = "the-secret-of-these-tests"
ATTEMPTS = 3
BASE_S = 1
WEBHOOKS = WebhookSettings(
    allow_private=True, hmac_secret=SECRET, max_attempts=ATTEMPTS, base_backoff_seconds=BASE_S
)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """Run a node that signs and tries three times."""
    directory = tmp_path_factory.mktemp("callbacks")
    async with running(directory, LimitSettings(), WEBHOOKS) as client:
        yield client


async def complete(node: Client, command: str) -> None:
    """Complete the next task of a command."""
    task = await node.claim(command)
    answer = await node.post(
        f"tasks/{task['id']}/result",
        b'{"status":"COMPLETED","result":{"n":123456789012345678901},'
        b'"artifacts":[{"name":"a.txt","url":"https://files.example/a.txt"}]}',
    )
    assert 200 == answer.status, answer.body


async def fail(node: Client, command: str) -> None:
    """Fail the next task."""
    task = await node.claim(command)
    body = {"status": "FAILED", "error": "no paper"}
    assert 200 == (await node.post(f"tasks/{task['id']}/result", body)).status


async def complete_in_a_batch(node: Client, command: str) -> None:
    """Complete the next task in a batch of results."""
    task = await node.claim(command)
    result = {"taskId": task["id"], "status": "COMPLETED", "result": {"batch": True}}
    assert 200 == (await node.post("tasks/batch/results", {"results": [result]})).status


async def cancel(node: Client, command: str) -> None:
    """Cancel a task while a worker holds it."""
    task = await node.claim(command)
    assert 200 == (await node.post(f"tasks/{task['id']}/cancel")).status


async def nack(node: Client, command: str) -> None:
    """Nack a task's last attempt, with a reason."""
    task = await node.claim(command)
    answer = await node.post(f"tasks/{task['id']}/nack", {"reason": "jammed"})
    assert "dlq" == answer.json["status"]


async def abandon(node: Client, command: str) -> None:
    """Abandon a task's last attempt, without a reason."""
    task = await node.claim(command)
    assert "dlq" == (await node.post(f"tasks/{task['id']}/abandon")).json["status"]


async def lease_and_vanish(node: Client, command: str) -> None:
    """Let a task's last lease expire."""
    await node.claim(command, leaseSeconds=1)


async def let_it_expire(node: Client, command: str) -> None:
    """Do nothing, because the task's time to live is a second."""


Ending = Callable[[Client, str], Awaitable[None]]


@pytest.mark.parametrize(
    ("ending", "status", "error"),
    [
        (complete, "COMPLETED", ""),
        (fail, "FAILED", "no paper"),
        (complete_in_a_batch, "COMPLETED", ""),
        (cancel, "FAILED", "CANCELLED"),
        (nack, "FAILED", "jammed"),
        (abandon, "FAILED", "MAX_ATTEMPTS"),
        (lease_and_vanish, "FAILED", "LEASE_EXPIRED"),
        (let_it_expire, "FAILED", "MESSAGE_EXPIRED"),
    ],
)
async def test_every_way_to_end_is_told(
    node: Client, ending: Ending, status: str, error: str
) -> None:
    """The call has the contract's body and headers and comes once; then the outbox is empty."""
    command = f"Ends.{ending.__name__}"
    extra = {"ttlSeconds": 1} if ending is let_it_expire else {}
    async with listening() as target:
        body = {
            "command": command,
            "payload": {},
            "webhook": f"{target.url}/done?of=it",
            "maxAttempts": 1,
            **extra,
        }
        task = (await node.post("tasks", body, traceparent=TRACE, tracestate="a=b")).json
        await ending(node, command)
        await target.arrived(1)
        stored = (await node.get(f"tasks/{task['id']}/result")).json["result"]
        await gone(node, f"{task['id']}.1")

    assert isinstance(stored, dict)
    [heard] = target.heard
    assert "/done" == heard.path
    assert {
        "taskId": task["id"],
        "eventType": command,
        "status": status,
        "result": stored.get("result"),
        "error": error,
        "artifacts": stored.get("artifacts"),
        "completedAt": stored["completedAt"],
    } == json.loads(heard.body)
    assert status == stored["status"]
    assert f"{task['id']}.1" == heard.headers["X-CodeQ-Delivery"]
    assert "application/json" == heard.headers["Content-Type"]
    assert (TRACE, "a=b") == (heard.headers["traceparent"], heard.headers["tracestate"])
    assert is_signed(heard)
    if ending is complete:
        assert b'"result":{"n":123456789012345678901}' in heard.body


async def test_a_target_that_fails_hears_it_again_later_under_the_same_id(node: Client) -> None:
    """Each wait doubles; then the delivery is dead, and an operator can replay it."""
    arrivals: list[float] = []
    broken = True

    async def serve(request: web.Request) -> web.StreamResponse:
        arrivals.append(time.monotonic())
        return web.Response(status=500) if broken else await fine(request)

    async with listening(serve) as target:
        task_id = await node.create("again", webhook=target.url)
        await node.post(f"tasks/{task_id}/cancel")
        await target.arrived(ATTEMPTS)
        [dead] = await until_dead(node, f"{task_id}.1")
        broken = False
        answer = await node.post(f"admin/deliveries/{task_id}.1/replay")
        await target.arrived(ATTEMPTS + 1)
        await gone(node, f"{task_id}.1")

    assert {f"{task_id}.1"} == {each.headers["X-CodeQ-Delivery"] for each in target.heard}
    assert 1 == len({each.body for each in target.heard})
    assert all(is_signed(each) for each in target.heard)
    # No attempt comes before its wait is over; the instants are truncated to milliseconds.
    assert arrivals[1] - arrivals[0] >= BASE_S - 0.002
    assert arrivals[2] - arrivals[1] >= 2 * BASE_S - 0.002
    assert ("dead", ATTEMPTS, "status 500") == (dead["status"], dead["attempts"], dead["error"])
    assert (200, {"replayed": 1}) == (answer.status, answer.json)
    assert ATTEMPTS + 1 == len(target.heard)


async def test_a_redirect_is_a_failure_and_leads_nowhere(node: Client) -> None:
    """A redirect must not lead the broker past the check of the URL."""
    async with listening() as elsewhere:

        async def redirect(request: web.Request) -> web.StreamResponse:
            return web.Response(status=307, headers={"Location": f"{elsewhere.url}/in"})

        async with listening(redirect) as target:
            task_id = await node.create("redirected", webhook=target.url)
            await node.post(f"tasks/{task_id}/cancel")
            await target.arrived(2)
            [pending] = [each for each in await deliveries(node) if each["id"] == f"{task_id}.1"]

    assert [] == elsewhere.heard
    assert "status 307: redirects are not followed" == pending["error"]


async def test_the_former_end_of_a_requeued_task_is_still_delivered(node: Client) -> None:
    """Each ending has its own delivery, with the result of that time."""
    broken = True

    async def serve(request: web.Request) -> web.StreamResponse:
        # The last attempt is so far off that the task ends again before it.
        patience = {"Retry-After": "5"}
        return web.Response(status=503, headers=patience) if broken else await fine(request)

    async with listening(serve) as target:
        task_id = await node.create("revived", webhook=target.url, maxAttempts=1)
        await nack(node, "revived")
        await target.arrived(1)
        answer = await node.post(f"admin/queues/revived/dlq/{task_id}/requeue")
        await complete(node, "revived")
        broken = False
        await gone(node, f"{task_id}.1")
        await gone(node, f"{task_id}.2")
    told = {each.headers["X-CodeQ-Delivery"]: json.loads(each.body) for each in target.heard}

    assert 200 == answer.status
    assert {
        f"{task_id}.1": ("FAILED", "jammed"),
        f"{task_id}.2": ("COMPLETED", ""),
    } == {delivery: (body["status"], body["error"]) for delivery, body in told.items()}


async def test_a_target_that_may_not_be_any_more_is_not_called(tmp_path: Path) -> None:
    """The target of an accepted task is checked again before each call."""
    lenient = WebhookSettings(allow_private=True, hmac_secret=SECRET, timeout_seconds=60)

    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return await fine(request)

    async with listening(hang) as target:
        # The node stops during its first attempt, so the next one is made as soon as it is back.
        async with running(tmp_path, LimitSettings(), lenient) as node:
            task_id = await node.create("private", webhook=target.url)
            await node.post(f"tasks/{task_id}/cancel")
            await target.arrived(1)
        strict = WebhookSettings(hmac_secret=SECRET, base_backoff_seconds=1, max_attempts=2)
        async with running(tmp_path, LimitSettings(), strict) as node:
            [dead] = await until_dead(node, f"{task_id}.1")

    assert 1 == len(target.heard)
    assert "the URL names a host that is not public" == dead["error"]


async def test_a_host_that_is_gone_keeps_no_callback_pending_for_ever(tmp_path: Path) -> None:
    """Deliveries to it die of their age after few attempts or none, and can be replayed."""
    patient = WebhookSettings(
        allow_private=True,
        hmac_secret=SECRET,
        max_attempts=100,
        base_backoff_seconds=0,
        max_age_seconds=2,
    )
    async with listening() as target, running(tmp_path, LimitSettings(), patient) as node:
        # The port stays reserved: another server could take a free one and answer in place of this.
        url = f"http://127.0.0.1:{free_ports(1)[0]}/gone"
        ids = [await node.create("homeless", webhook=url) for _ in range(30)]
        begun_s = time.monotonic()
        await asyncio.gather(*(node.post(f"tasks/{task_id}/cancel") for task_id in ids))
        dead = await eventually(
            lambda: deliveries(node, "dead"), lambda found: len(found) >= len(ids)
        )
        passed_s = time.monotonic() - begun_s
        while not target.heard:
            # A delivery that a busy machine does not try within its age is given up like the
            # others.
            task_id = await node.create("housed", webhook=target.url)
            await node.post(f"tasks/{task_id}/cancel")
            await gone(node, f"{task_id}.1", "pending")
        given_up = len(await deliveries(node, "dead"))
        answer = await node.post("admin/deliveries/replay", {"all": True})

    assert {f"{task_id}.1" for task_id in ids} == {each["id"] for each in dead}
    assert all(str(each["error"]).startswith("not accepted within 2 s, ") for each in dead)
    assert any(str(each["error"]).endswith("and not tried") for each in dead)
    assert passed_s >= patient.max_age_seconds
    assert given_up >= len(ids)
    assert (200, {"replayed": given_up}) == (answer.status, answer.json)


async def test_a_silent_target_holds_up_nobody_else(node: Client) -> None:
    """Its calls are still open when all calls to another target have been answered."""
    never = asyncio.Event()

    async def hang(request: web.Request) -> web.StreamResponse:
        await never.wait()
        return await fine(request)

    async with listening(hang) as silent, listening() as swift:
        # All are created at once, so that no call to the silent target is given up meanwhile.
        made = [
            node.create("held", webhook=f"{target.url}/{number}")
            for number in range(20)
            for target in (silent, swift)
        ]
        ids = await asyncio.gather(*made)
        await asyncio.gather(*(node.post(f"tasks/{task_id}/cancel") for task_id in ids))
        await swift.arrived(20)
        await silent.arrived(1)
        open_calls = len(silent.heard)
        never.set()
        await silent.arrived(20)

    assert open_calls <= WEBHOOKS.per_host_concurrency
    assert {f"/{number}" for number in range(20)} == {each.path for each in swift.heard}


async def test_attempts_are_counted(node: Client) -> None:
    """Attempts are counted by command and outcome, with the reference's names."""
    states = iter([500, 200])

    async def serve(request: web.Request) -> web.StreamResponse:
        return web.Response(status=next(states))

    async with listening(serve) as target:
        task_id = await node.create("Counted", webhook=target.url)
        await node.post(f"tasks/{task_id}/cancel")
        await target.arrived(2)
        await gone(node, f"{task_id}.1")
    text = (await node.get("/metrics")).body.decode()

    name = 'codeq_webhook_deliveries_total{command="counted",kind="task_result",outcome='
    assert f'{name}"failure"}} 1.0' in text
    assert f'{name}"success"}} 1.0' in text


def is_signed(heard: Heard) -> bool:
    """Return whether the signature is valid for the body and the timestamp."""
    unix_s = int(heard.headers["X-CodeQ-Timestamp"])
    key = tenant_key(SECRET, "acme", 1)
    return heard.headers["X-CodeQ-Signature"] == signature(key, unix_s=unix_s, body=heard.body)


async def deliveries(node: Client, status: str = "") -> list[dict[str, object]]:
    """Return the tenant's deliveries."""
    answer = await node.get(f"admin/deliveries?limit=500&status={status}")
    assert 200 == answer.status, answer.body
    found = answer.json["deliveries"]
    assert isinstance(found, list)
    return found


async def until_dead(node: Client, delivery_id: str) -> list[dict[str, object]]:
    """Wait until a delivery is dead; return it."""

    async def dead() -> list[dict[str, object]]:
        return [each for each in await deliveries(node, "dead") if each["id"] == delivery_id]

    return await eventually(dead)


async def gone(node: Client, delivery_id: str, status: str = "") -> None:
    """Wait until a delivery is done, or no longer has a status."""
    await eventually(
        lambda: deliveries(node, status),
        lambda found: all(each["id"] != delivery_id for each in found),
    )
