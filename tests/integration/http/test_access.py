"""Access: every route, and its answer to each kind of caller on a real node.

A route without a row in the table fails here, so that every new route states its callers.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from codeq_cluster.node.compose import Node
from codeq_cluster.settings import LimitSettings
from tests.integration.http.client import BASE, OPERATOR, Client, eventually, single
from tests.integration.http.world import CALLERS, World, created

pytestmark = pytest.mark.asyncio(loop_scope="session")

# The statuses are in the order of CALLERS: nobody | the ROLES of the tenant that owns the target |
# the same roles of another tenant.
_ANYBODY = "200 | 200 200 200 200 200 | 200 200 200 200 200"
_TOKEN = "401 | 200 200 200 200 200 | 200 200 200 200 200"
_READ = "401 | 200 200 200 200 403 | 404 404 404 404 403"
_WORK = "401 | 401 403 200 401 401 | 401 403 404 401 401"
_GROUP = "401 | 200 401 401 200 403 | 404 401 401 404 403"
_ADMIN = "401 | 401 401 401 200 401 | 401 401 401 200 401"
_ADMIN_OF = "401 | 401 401 401 200 401 | 401 401 401 404 401"
_OPERATE = "401 | 403 403 403 403 200 | 403 403 403 403 200"

STATUSES = {
    "POST /tasks": "401 | 202 401 401 202 403 | 202 401 401 202 403",
    "POST /tasks/batch": "401 | 200 401 401 200 403 | 200 401 401 200 403",
    "POST /tasks/{id}/cancel": "401 | 200 401 401 200 403 | 404 401 401 404 403",
    "PATCH /tasks/{id}/tags": "401 | 200 401 401 200 403 | 404 401 401 404 403",
    "POST /tasks/claim": "401 | 401 403 200 401 401 | 401 403 204 401 401",
    "POST /tasks/claim/batch": "401 | 401 403 200 401 401 | 401 403 204 401 401",
    "POST /tasks/{id}/heartbeat": _WORK,
    "POST /tasks/{id}/abandon": _WORK,
    "POST /tasks/{id}/nack": _WORK,
    "POST /tasks/{id}/reject": _WORK,
    "POST /tasks/{id}/result": _WORK,
    "POST /tasks/{id}/steps": _WORK,
    "POST /tasks/{id}/park": _WORK,
    "GET /tasks/{id}/steps": _READ,
    "GET /tasks/{id}/log": _READ,
    "POST /tasks/{id}/signals/{signal}": "401 | 200 401 401 200 403 | 404 401 401 404 403",
    # Items are judged one by one, so another tenant gets 200 too; test_tenants.py covers its data.
    "POST /tasks/batch/results": "401 | 401 403 200 401 401 | 401 403 200 401 401",
    "POST /tasks/batch/heartbeats": "401 | 401 403 200 401 401 | 401 403 200 401 401",
    "PUT /tasks/{id}/artifacts/{artifact}": "401 | 401 403 201 401 401 | 401 403 404 401 401",
    # Without a prefix it is refused, once the caller may read; test_task_lists.py has the data.
    "GET /tasks": "401 | 400 400 400 400 403 | 400 400 400 400 403",
    "GET /events": "401 | 200 200 200 200 403 | 200 200 200 200 403",
    "GET /tasks/{id}": _READ,
    "GET /tasks/{id}/result": _READ,
    "GET /tasks/{id}/explain": _READ,
    "GET /tasks/{id}/artifacts/{upload}/{artifact}": _READ,
    "HEAD /tasks/{id}/artifacts/{upload}/{artifact}": _READ,
    "POST /tasks/graph": "401 | 202 401 401 202 403 | 202 401 401 202 403",
    "GET /tasks/{id}/graph": _READ,
    "POST /groups": "401 | 202 401 401 202 403 | 202 401 401 202 403",
    "POST /groups/{id}/tasks": "401 | 202 401 401 202 403 | 404 401 401 404 403",
    "POST /groups/{id}/seal": _GROUP,
    "POST /groups/{id}/cancel": _GROUP,
    "GET /groups": "401 | 200 401 401 200 403 | 200 401 401 200 403",
    "GET /groups/{id}": _GROUP,
    "GET /groups/{id}/results": _GROUP,
    "GET /raft/status": _TOKEN,
    "POST /workers/subscriptions": "401 | 401 403 200 401 401 | 401 403 200 401 401",
    "GET /workers/subscriptions": "401 | 401 403 200 401 401 | 401 403 200 401 401",
    "POST /workers/subscriptions/{id}/heartbeat": _WORK,
    "DELETE /workers/subscriptions/{id}": "401 | 401 403 204 401 401 | 401 403 404 401 401",
    "POST /admin/bulk": _ADMIN,
    "GET /admin/bulk": _ADMIN,
    "GET /admin/bulk/{id}": _ADMIN_OF,
    "DELETE /admin/bulk/{id}": _ADMIN_OF,
    "GET /admin/queues": _ADMIN,
    "GET /admin/queues/{command}": _ADMIN,
    "GET /admin/queues/{command}/keys": _ADMIN,
    "GET /admin/queues/{command}/keys/{key}": _ADMIN,
    "PUT /admin/queues/{command}/keys/{key}": _ADMIN,
    "DELETE /admin/queues/{command}/keys/{key}": "401 | 401 401 401 204 401 | 401 401 401 204 401",
    "POST /admin/queues/{command}/pause": _ADMIN,
    "POST /admin/queues/{command}/purge": _ADMIN,
    "POST /admin/queues/{command}/resume": _ADMIN,
    "GET /admin/queues/{command}/dlq": _ADMIN,
    "DELETE /admin/queues/{command}/dlq": _ADMIN,
    "POST /admin/queues/{command}/dlq/requeue": _ADMIN,
    "GET /admin/queues/{command}/dlq/{id}": _ADMIN_OF,
    "DELETE /admin/queues/{command}/dlq/{id}": _ADMIN_OF,
    "POST /admin/queues/{command}/dlq/{id}/requeue": _ADMIN_OF,
    "GET /admin/tasks": _ADMIN,
    "POST /admin/tasks/cleanup": _ADMIN,
    "GET /admin/topics": _ADMIN,
    "GET /admin/topics/{name}": _ADMIN_OF,
    "PUT /admin/topics/{name}": "401 | 401 401 401 200 401 | 401 401 401 201 401",
    "DELETE /admin/topics/{name}": "401 | 401 401 401 204 401 | 401 401 401 204 401",
    "GET /admin/limits": _ADMIN,
    "GET /admin/limits/{name}": _ADMIN_OF,
    "PUT /admin/limits/{name}": "401 | 401 401 401 200 401 | 401 401 401 201 401",
    "DELETE /admin/limits/{name}": "401 | 401 401 401 204 401 | 401 401 401 204 401",
    "POST /admin/schedules/preview": _ADMIN,
    "GET /admin/schedules": _ADMIN,
    "PUT /admin/schedules": _ADMIN,
    "GET /admin/schedules/{name}": _ADMIN_OF,
    # The other tenant may have one of that name.
    "PUT /admin/schedules/{name}": "401 | 401 401 401 200 401 | 401 401 401 201 401",
    "DELETE /admin/schedules/{name}": "401 | 401 401 401 204 401 | 401 401 401 204 401",
    "POST /admin/schedules/{name}/pause": _ADMIN_OF,
    "POST /admin/schedules/{name}/resume": _ADMIN_OF,
    "POST /admin/schedules/{name}/trigger": _ADMIN_OF,
    "POST /admin/schedules/{name}/backfill": "401 | 401 401 401 202 401 | 401 401 401 404 401",
    "PUT /workers/schedules": "401 | 401 403 200 401 401 | 401 403 200 401 401",
    "GET /admin/deliveries": _ADMIN,
    "GET /admin/webhooks/keys": _ADMIN,
    "POST /admin/webhooks/keys/rotate": _ADMIN,
    "POST /admin/deliveries/replay": _ADMIN,
    "POST /admin/deliveries/{id}/replay": _ADMIN_OF,
    "GET /admin/aside": _ADMIN,
    "POST /admin/aside/retry": _ADMIN,
    "GET /admin/audit": _ADMIN,
    # It goes into the caller's own tenant, which the request names again.
    "POST /admin/import": "401 | 401 401 401 200 401 | 401 401 401 403 401",
    "GET /admin/cluster": _OPERATE,
    "POST /admin/cluster/transfer": _OPERATE,
    "POST /admin/cluster/join": _OPERATE,
    "POST /admin/cluster/remove": _OPERATE,
    "POST /admin/cluster/upgrade": _OPERATE,
    "GET /admin/cluster/aside": _OPERATE,
    "POST /admin/cluster/aside/retry": _OPERATE,
    "POST /admin/backup": "401 | 403 403 403 403 202 | 403 403 403 403 202",
    "GET /admin/backup": _OPERATE,
    "GET /admin/backup/{id}": _OPERATE,
    "GET /healthz": _ANYBODY,
    "GET /readyz": _ANYBODY,
    "GET /metrics": _ANYBODY,
    "GET /openapi.json": _ANYBODY,
    "GET /docs": _ANYBODY,
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Run a node for this file alone, whose tenants start empty."""
    directory: Path = tmp_path_factory.mktemp("access")
    async with created(directory) as world:
        yield world


async def test_every_route_that_is_served_has_a_row(world: World) -> None:
    """The table has exactly the routes that the node's router knows.

    The page's own routes accept no token; test_page_access.py has their table.
    """
    served = {
        f"{route.method} {route.resource.canonical.removeprefix(BASE)}"
        for route in world.app.router.routes()
        if route.resource is not None and not route.resource.canonical.startswith("/ui")
    }

    assert served == STATUSES.keys()


@pytest.mark.parametrize("route", STATUSES)
async def test_a_route_serves_only_its_callers(world: World, route: str) -> None:
    """Each caller in turn asks the route for something that exists."""
    expected = [int(status) for status in STATUSES[route].replace("|", "").split()]
    told = {}
    for caller in CALLERS:
        answer = await world.call(caller, route)
        told[caller] = answer.status
        if route == "POST /admin/backup" and answer.status == 202:
            await world.taken(str(answer.json["id"]))

    assert told == dict(zip(CALLERS, expected, strict=True))


@pytest.mark.parametrize(
    "route",
    [each for each in STATUSES if each.startswith("GET ") and each != "GET /raft/status"],
)
async def test_where_nodes_are_and_keep_their_data_is_for_operators(
    world: World, route: str
) -> None:
    """Other callers get neither addresses nor directories, but for links in `/raft/status`."""
    secrets = [str(world.settings.data_dir.parent), f"127.0.0.1:{world.settings.link_port}"]
    for caller in CALLERS:
        if not caller.startswith("operator"):
            answer = await world.call(caller, route)

            assert not [each for each in secrets if each in answer.body.decode()], caller


@pytest.mark.parametrize("token", ["", "acme", "unheard-of"])
async def test_why_a_node_is_not_ready_names_its_directory_to_operators_alone(
    tmp_path: Path, token: str
) -> None:
    """Everybody learns that the node's disk is full; only operators learn its directory."""
    usual = single(tmp_path / "node", LimitSettings())
    node = Node(replace(usual, store=replace(usual.store, min_free_bytes=2**62)))
    await node.start()
    try:
        client = Client(node.port)
        full = await eventually(
            lambda: client.get("/readyz", token=OPERATOR),
            lambda answer: b"MiB are free" in answer.body,
        )
        told = await client.get("/readyz", token=token)
    finally:
        await node.stop()

    assert full.status == told.status == 503
    assert f"MiB are free below {usual.data_dir}" in full.body.decode()
    assert "its disk is full" in told.body.decode()
    assert str(tmp_path) not in told.body.decode()


async def test_everything_below_cluster_and_backup_is_the_operators() -> None:
    """The table itself is wrong if another role has access below these paths."""
    below = [
        statuses
        for route, statuses in STATUSES.items()
        if re.match(r"\w+ /admin/(cluster|backup)\b", route)
    ]

    assert 10 == len(below)
    for statuses in below:
        nobody, own, others = statuses.split(" | ")
        assert "401" == nobody
        assert own == others
        assert re.fullmatch("403 403 403 403 20[02]", own)
