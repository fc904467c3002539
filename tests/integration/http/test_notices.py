"""Availability notices: calls of a real node when a queue stops being empty."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio
from aiohttp import web

from codeq_cluster.settings import LimitSettings, WebhookSettings
from codeq_cluster.webhooks.signing import signature, tenant_key
from tests.integration.http.client import Client, running
from tests.integration.webhooks.target import Heard, fine, listening

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRET = "the-secret-of-these-tests"
NUMBERS = itertools.count()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """Run a node that signs."""
    webhooks = WebhookSettings(allow_private=True, hmac_secret=SECRET)
    directory = tmp_path_factory.mktemp("notices")
    async with running(directory, LimitSettings(), webhooks) as client:
        yield client


async def subscribe(node: Client, url: str, *commands: str, **fields: object) -> str:
    """Subscribe, by default without a minimal interval."""
    body = {"callbackUrl": url, "eventTypes": commands, "minIntervalSeconds": 0, **fields}
    answer = await node.post("workers/subscriptions", body)
    assert 200 == answer.status, answer.body
    return str(answer.json["subscriptionId"])


async def fill(node: Client, command: str) -> None:
    """Create a task."""
    await node.create(command)


async def empty(node: Client, command: str) -> None:
    """Empty a queue."""
    while (await node.post("tasks/claim", {"commands": [command]})).status == 200:
        pass


async def leased(node: Client, command: str) -> str:
    """Create one task, in progress under its last attempt but one."""
    await node.create(command, maxAttempts=2)
    return str((await node.claim(command))["id"])


async def dead(node: Client, command: str) -> str:
    """Create one dead letter."""
    await node.create(command, maxAttempts=1)
    task_id = str((await node.claim(command))["id"])
    await node.post(f"tasks/{task_id}/abandon")
    return task_id


async def paused(node: Client, command: str) -> str:
    """Create one ready task in a paused queue."""
    assert 200 == (await node.post(f"admin/queues/{command}/pause")).status
    return await node.create(command)


async def nothing(node: Client, command: str) -> str:
    """Create no task."""
    return ""


@pytest.mark.parametrize(
    ("before", "path", "body"),
    [
        (nothing, "tasks", {"command": "{command}", "payload": {}}),
        (nothing, "tasks", {"command": "{command}", "payload": {}, "delaySeconds": 1}),
        (leased, "tasks/{id}/abandon", {}),
        (leased, "tasks/{id}/nack", {"delaySeconds": 0}),
        (leased, "tasks/{id}/nack", {"delaySeconds": 1}),
        (leased, "tasks/{id}/heartbeat", {"extendSeconds": 1}),
        (dead, "admin/queues/{command}/dlq/{id}/requeue", {}),
        (paused, "admin/queues/{command}/resume", {}),
    ],
)
async def test_whatever_fills_a_queue_is_told(
    node: Client,
    before: Callable[[Client, str], Awaitable[str]],
    path: str,
    body: dict[str, object],
) -> None:
    """The notice has the contract's body and headers, whatever the case of the command."""
    queue = f"fills-{next(NUMBERS)}"
    task_id = await before(node, queue)
    sent = json.dumps(body).replace("{command}", queue)
    async with listening() as target:
        subscription = await subscribe(node, f"{target.url}/hear", queue.upper())
        answer = await node.post(path.format(id=task_id, command=queue), sent.encode())
        assert answer.status in (200, 202), answer.body
        await target.arrived(1)
        depth = await node.depth(queue)
        await node.send("DELETE", f"workers/subscriptions/{subscription}", b"")

    [heard] = target.heard
    told = json.loads(heard.body)
    assert "/hear" == heard.path
    assert {
        "eventType": queue.upper(),
        "available": True,
        "queueDepth": 1,
        "claimUrl": "/v1/codeq/tasks/claim",
        "sentAt": told["sentAt"],
        "notificationId": heard.headers["X-CodeQ-Delivery"],
    } == told
    assert 1 == depth["ready"]
    assert told["sentAt"].endswith("Z")
    unix_s = int(heard.headers["X-CodeQ-Timestamp"])
    key = tenant_key(SECRET, "acme", 1)
    assert signature(key, unix_s=unix_s, body=heard.body) == heard.headers["X-CodeQ-Signature"]


async def test_a_queue_is_notified_when_it_fills_and_not_while_it_has_tasks(node: Client) -> None:
    """There is one notice, however many tasks come on any shard, with its own id."""
    async with listening() as target:
        await subscribe(node, target.url, "Edges")
        for _ in range(8):
            await fill(node, "edges")
        await target.arrived(1)
        await empty(node, "edges")
        await fill(node, "edges")
        await target.arrived(2)
        await subscribe(node, f"{target.url}/last", "sentinel-edges")
        await fill(node, "sentinel-edges")
        await target.arrived(3)

    assert ["/", "/", "/last"] == [each.path for each in target.heard]
    assert 3 == len({each.headers["X-CodeQ-Delivery"] for each in target.heard})


async def test_another_tenant_and_another_command_are_not_heard(node: Client) -> None:
    """A subscription without commands gets notices of all queues of its tenant."""
    other = Client(node.port, "other")
    async with listening() as target:
        await subscribe(node, f"{target.url}/named", "apart-a")
        await subscribe(other, f"{target.url}/theirs")
        await fill(node, "apart-b")
        await fill(node, "apart-a")
        await target.arrived(1)
        await fill(other, "apart-a")
        await target.arrived(2)

    assert [
        ("/named", "apart-a"),
        ("/theirs", "apart-a"),
    ] == [(each.path, event_type(each)) for each in target.heard]


async def test_all_hear_by_fanout_one_in_turn_by_group_and_the_same_by_hash(node: Client) -> None:
    """Each mode works the same with other modes subscribed beside it."""
    rounds = 6
    async with listening() as target:
        for number in range(3):
            for mode, group in (("fanout", ""), ("group", "g"), ("group", "h"), ("hash", "")):
                await subscribe(
                    node,
                    f"{target.url}/{mode}{group}/{number}",
                    "modes",
                    deliveryMode=mode,
                    groupId=group,
                )
        for number in range(rounds):
            await fill(node, "modes")
            await target.arrived(6 * (number + 1))
            await empty(node, "modes")

    paths = Counter(each.path for each in target.heard)
    for number in range(3):
        assert rounds == paths[f"/fanout/{number}"]
        assert rounds / 3 == paths[f"/groupg/{number}"]
        assert rounds / 3 == paths[f"/grouph/{number}"]
    assert [0, 0, rounds] == sorted(paths[f"/hash/{number}"] for number in range(3))


async def test_a_member_that_may_not_hear_yet_is_passed_over(node: Client) -> None:
    """The group's notice goes to another member instead."""
    async with listening() as target:
        options = {"deliveryMode": "group", "groupId": "throttled"}
        await subscribe(node, f"{target.url}/seldom", "passed", minIntervalSeconds=3600, **options)
        await subscribe(node, f"{target.url}/often", "passed", **options)
        for number in range(4):
            await fill(node, "passed")
            await target.arrived(number + 1)
            await empty(node, "passed")

    assert ["/seldom", "/often", "/often", "/often"] == [each.path for each in target.heard]


async def test_a_notice_within_the_interval_comes_at_its_end(node: Client) -> None:
    """One notice covers all events of the interval, if the queue is not empty at its end."""
    # The claim holds within one interval, and a busy machine may take longer; then it is repeated.
    for interval_s in (1, 4, 16):
        heard, took_s = await within_an_interval(node, interval_s)
        if took_s < interval_s:
            break

    assert took_s < interval_s
    assert ["/due", "/due"] == heard


async def within_an_interval(node: Client, interval_s: int) -> tuple[list[str], float]:
    """Fill queues repeatedly; return the notices after the first ones, and the time it took.

    The time is from before the first notices until nothing more happens in their interval.
    """
    owed, vain = f"owed-{interval_s}", f"owed-and-empty-{interval_s}"
    loop = asyncio.get_running_loop()
    async with listening() as target:
        await subscribe(node, f"{target.url}/due", owed, minIntervalSeconds=interval_s)
        await subscribe(node, f"{target.url}/none", vain, minIntervalSeconds=interval_s)
        begun_s = loop.time()
        for command in (owed, vain):
            await fill(node, command)
        await target.arrived(2)
        for _ in range(3):
            await empty(node, owed)
            await fill(node, owed)
        await empty(node, vain)
        await fill(node, vain)
        await empty(node, vain)
        took_s = loop.time() - begun_s
        await target.arrived(3)
        # The next notice proves that no notice of the last interval is still to come.
        await empty(node, owed)
        await fill(node, owed)
        await target.arrived(4)
    return [each.path for each in target.heard[2:]], took_s


async def test_a_subscription_that_ended_hears_nothing(node: Client) -> None:
    """The next subscription gets the notices in its place."""
    async with listening() as target:
        ended = await subscribe(node, f"{target.url}/ended", "ended")
        await node.send("DELETE", f"workers/subscriptions/{ended}", b"")
        await subscribe(node, f"{target.url}/stands", "ended")
        await fill(node, "ended")
        await target.arrived(1)

    assert ["/stands"] == [each.path for each in target.heard]


async def test_a_target_that_hangs_holds_up_neither_creates_nor_other_targets(
    node: Client,
) -> None:
    """Creates are answered and other targets called while its call is open."""
    never = asyncio.Event()

    async def hang(request: web.Request) -> web.StreamResponse:
        await never.wait()
        return await fine(request)

    async with listening(hang) as silent, listening() as swift:
        for target in (silent, swift):
            await subscribe(node, target.url, *(f"hangs-{number}" for number in range(20)))
        # All are created at once, so that no notice waits until it is dropped as too old.
        await asyncio.gather(*(fill(node, f"hangs-{number}") for number in range(20)))
        await swift.arrived(20)
        await silent.arrived(1)
        open_calls = len(silent.heard)
        never.set()
        await silent.arrived(20)

    assert open_calls <= WebhookSettings().per_host_concurrency


async def test_notices_and_subscriptions_are_counted(node: Client) -> None:
    """The counters have the reference's names."""

    async def serve(request: web.Request) -> web.StreamResponse:
        return web.Response(status=500 if request.path == "/bad" else 200)

    async with listening(serve) as target:
        await subscribe(node, f"{target.url}/good", "Counted-Notice")
        await subscribe(node, f"{target.url}/bad", "Counted-Notice")
        await fill(node, "counted-notice")
        await target.arrived(2)
        name = 'codeq_webhook_deliveries_total{command="counted-notice",kind="queue_ready"'
        text = ""
        while f'{name},outcome="failure"}} 1.0' not in text or '"success"' not in text:
            text = (await node.get("/metrics")).body.decode()

    assert f'{name},outcome="success"}} 1.0' in text
    assert 'codeq_subscriptions_active{command="counted-notice"} 2.0' in text


def event_type(heard: Heard) -> str:
    """Return the event type of a notice."""
    return str(json.loads(heard.body)["eventType"])
