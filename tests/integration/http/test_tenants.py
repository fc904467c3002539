"""Tenants: no route reaches another tenant's data.

The routes come from the route table. So a new route with an id or a name, or with a list, is tested
here without further work.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from codeq_cluster.api.app import ROUTES
from codeq_cluster.api.http.middleware import Route
from codeq_cluster.auth import Access
from codeq_cluster.broker.ports import Shards
from codeq_cluster.node.compose import Node
from codeq_cluster.settings import ArtifactProvider, ArtifactSettings, LimitSettings
from tests.integration.http.asides import set_aside
from tests.integration.http.client import BASE, Answer, Client, eventually, running_node, single
from tests.integration.http.operating import died, finished

pytestmark = pytest.mark.asyncio(loop_scope="session")

URL = "http://127.0.0.1:9/nobody"
QUEUE = "shared-name"
# The routes left out belong to the cluster and to no tenant.
OF_A_TENANT = [
    route
    for route in ROUTES
    if route.access not in (Access.OPEN, Access.OPERATOR) and route.path != f"{BASE}/raft/status"
]
NAMED = [route for route in OF_A_TENANT if "{" in route.path]
# Not lists: an id is found by a prefix (test_task_lists.py), keys are made (test_webhook_keys.py),
# and events are of what happens next (test_events.py).
NO_LISTS = (f"{BASE}/tasks", f"{BASE}/admin/webhooks/keys", f"{BASE}/events")
LISTS = [
    route
    for route in OF_A_TENANT
    if route.method == "GET" and "{" not in route.path and route.path not in NO_LISTS
]
# Bodies with which a route would act on the caller's own target; other routes get an empty one.
BODIES: dict[str, dict[str, object]] = {
    "/result": {"status": "FAILED", "error": "stolen"},
    "/steps": {"name": "stolen"},
    "/tags": {"set": {"stolen": "yes"}},
    "/park": {"step": "stolen", "forSeconds": 60},
    "/topics/{name}": {"maxAttempts": 1},
    "/limits/{name}": {"maxRunning": 1},
    "/groups/{id}/tasks": {"tasks": [{"command": "stolen", "payload": 1}]},
    "/schedules/{name}": {"every": "1d", "task": {"command": "stolen", "payload": 1}},
    "/backfill": {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"},
}
QUERIES = {("DELETE", f"{BASE}/admin/topics/{{name}}"): "?deletionPolicy=Delete"}


class Owned:
    """The property of a tenant: a task in every state, and one of everything else."""

    def __init__(self, client: Client, shards: Shards) -> None:
        self.client = client
        self.shards = shards
        self.tasks: dict[str, str] = {}
        self.others: dict[str, str] = {}

    async def make(self) -> None:
        """Create all of it."""
        client = self.client
        await client.send("PUT", f"admin/topics/{QUEUE}", b'{"maxAttempts":9,"weight":3}')
        await client.send("PUT", f"admin/limits/{QUEUE}", b'{"maxRunning":9}')
        self.tasks["dead"] = await died(client, QUEUE, webhook=URL)
        self.tasks["done"] = await finished(client, QUEUE)
        self.tasks["held"] = await client.create(QUEUE)
        await client.claim(QUEUE)
        self.tasks["ready"] = await client.create(QUEUE)
        self.tasks["delayed"] = await client.create(QUEUE, delaySeconds=3600)
        plan = b'{"every":"1d","task":{"command":"theirs","payload":1}}'
        await client.send("PUT", f"admin/schedules/{QUEUE}", plan)
        then = {"command": "theirs", "payload": 1}
        await client.post("groups", {"id": QUEUE, "then": then})
        job = {"id": QUEUE, "select": {"command": "none"}, "action": "cancel"}
        await client.post("admin/bulk", job)
        await eventually(
            lambda: client.get(f"admin/bulk/{QUEUE}"), lambda found: found.json["status"] == "DONE"
        )
        made = await client.post("workers/subscriptions", {"callbackUrl": URL})
        self.others["subscription"] = str(made.json["subscriptionId"])
        self.others["delivery"] = f"{self.tasks['dead']}.1"
        self.others["aside"] = await set_aside(
            self.shards, await client.create(QUEUE, delaySeconds=3600), tenant="theirs"
        )

    @property
    def ids(self) -> list[str]:
        """All ids, of any kind."""
        return [*self.tasks.values(), *self.others.values()]

    async def seen(self) -> dict[str, Any]:
        """Return all that the tenant can read of it, except for values that change with time."""
        client = self.client
        seen: dict[str, Any] = {}
        for task_id in self.tasks.values():
            seen[task_id] = (await client.get(f"tasks/{task_id}")).json
        for path in (
            "admin/queues",
            f"admin/queues/{QUEUE}",
            f"admin/queues/{QUEUE}/dlq",
            f"admin/topics/{QUEUE}",
            "admin/topics",
            f"admin/limits/{QUEUE}",
            "admin/limits",
            f"admin/schedules/{QUEUE}",
            "admin/schedules",
            f"groups/{QUEUE}",
            "groups",
            f"admin/bulk/{QUEUE}",
            "admin/bulk",
            "admin/audit",
            "workers/subscriptions",
        ):
            seen[path] = json.loads((await client.get(path)).body)
        text = json.dumps(seen)
        return json.loads(re.sub(r'"oldestReadySeconds": \d+', '"oldestReadySeconds": 0', text))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[Node, Client]]:
    """Run a node for this file alone: a tenant's view is compared as a whole."""
    directory = tmp_path_factory.mktemp("tenants")
    settings = replace(
        single(directory / "node", LimitSettings()),
        artifacts=ArtifactSettings(
            provider=ArtifactProvider.LOCAL, directory=directory / "artifacts"
        ),
    )
    async with running_node(settings) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def node(running: tuple[Node, Client]) -> Client:
    """Return a client of the node."""
    return running[1]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def theirs(running: tuple[Node, Client]) -> Owned:
    """Create one of everything for a tenant."""
    node, client = running
    owned = Owned(Client(client.port, "theirs"), node.parts.calls.router)
    await owned.make()
    return owned


def _path(route: Route, **known: str) -> str:
    """Fill in a route's path, with `x` for unknown parts."""
    return re.sub(r"{(\w+)}", lambda part: known.get(part[1], "x"), route.path)


async def _try(client: Client, route: Route, item_id: str) -> Answer:
    path = _path(route, id=item_id, command=QUEUE, name=QUEUE)
    ending = next((each for each in BODIES if route.path.endswith(each)), "")
    body = json.dumps(BODIES.get(ending, {})).encode() if route.unreadable else b""
    return await client.send(route.method, path + QUERIES.get((route.method, route.path), ""), body)


@pytest.mark.parametrize("route", NAMED, ids=lambda route: f"{route.method} {route.path}")
async def test_no_route_reaches_what_another_tenant_owns(
    node: Client, theirs: Owned, route: Route
) -> None:
    """Exact ids and names do not help, with a token for everything in its own tenant."""
    stranger = Client(node.port, "mine")
    before = await theirs.seen()
    for item_id in theirs.ids if "{id}" in route.path else [""]:
        answer = await _try(stranger, route, item_id)

        if "{id}" in route.path:
            assert 404 == answer.status, item_id
            assert not answer.body or answer.json["code"] == "not-found"
        else:
            assert not any(each in answer.body.decode() for each in theirs.ids)
    assert before == await theirs.seen()


@pytest.mark.parametrize(
    "route",
    [route for route in NAMED if "{id}" not in route.path],
    ids=lambda route: f"{route.method} {route.path}",
)
async def test_a_name_of_another_tenants_is_as_empty_as_any_other(
    node: Client, theirs: Owned, route: Route
) -> None:
    """The answer is the same as for a name that nobody uses."""
    fresh = Client(node.port, "listed")
    query = QUERIES.get((route.method, route.path), "")
    body = b"{}" if route.unreadable else b""

    async def said(name: str) -> tuple[int, str]:
        path = _path(route, command=name, name=name) + query
        answer = await fresh.send(route.method, path, body, X_Request_Id="same")
        text = answer.body.decode().replace(name, "NAME")
        return answer.status, re.sub(r"\d{4}-\d\d-\d\dT[0-9:.]+Z", "INSTANT", text)

    assert theirs.ids
    assert await said("nobody-uses-it") == await said(QUEUE)


@pytest.mark.parametrize("route", LISTS, ids=lambda route: route.path)
async def test_every_list_shows_a_tenant_its_own_alone(
    node: Client, theirs: Owned, route: Route
) -> None:
    """A tenant without any data gets empty lists."""
    empty = Client(node.port, "pauses")
    answer = await empty.send("GET", route.path, b"")
    theirs_shown = await theirs.client.send("GET", route.path, b"")

    assert 200 == answer.status
    found = json.loads(answer.body)
    assert found == [] or list(found.values()) == [[]]
    shown = json.loads(theirs_shown.body)
    assert shown != found


async def test_another_tenants_ids_select_nothing(node: Client, theirs: Owned) -> None:
    """Ids in bodies are ignored too."""
    stranger = Client(node.port, "mine")
    before = await theirs.seen()
    ids = json.dumps({"ids": theirs.ids}).encode()
    requeued = await stranger.post(f"admin/queues/{QUEUE}/dlq/requeue", ids)
    deleted = await stranger.send("DELETE", f"admin/queues/{QUEUE}/dlq", ids)
    replayed = await stranger.post("admin/deliveries/replay", ids)
    results = [{"taskId": each, "status": "FAILED", "error": "e"} for each in theirs.ids]
    submitted = await stranger.post("tasks/batch/results", {"results": results})
    everything = [
        await stranger.post(f"admin/queues/{QUEUE}/dlq/requeue"),
        await stranger.send("DELETE", f"admin/queues/{QUEUE}/dlq", b""),
        await stranger.post("admin/deliveries/replay", {"all": True}),
        await stranger.post("admin/tasks/cleanup", {"before": "2026-01-01T00:00:00Z"}),
    ]
    claimed = await stranger.post("tasks/claim", {"commands": [QUEUE]})

    assert (0, 0) == (requeued.json["matched"], deleted.json["matched"])
    assert {"replayed": 0} == replayed.json
    told: Any = submitted.json["results"]
    assert {"task not found"} == {each["error"] for each in told}
    assert all(each.status == 200 for each in everything)
    assert 204 == claimed.status
    assert before == await theirs.seen()


async def test_a_pause_stops_its_own_tenant_alone(node: Client) -> None:
    """Queues of the same name in two tenants are two queues."""
    one, two = Client(node.port, "topics"), Client(node.port, "audited")
    await one.post("admin/queues/pausable/pause")
    await one.create("pausable")
    await two.create("pausable")

    assert 204 == (await one.post("tasks/claim", {"commands": ["pausable"]})).status
    assert 200 == (await two.post("tasks/claim", {"commands": ["pausable"]})).status
