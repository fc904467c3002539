"""Access to the page: every route and view, and its answer to each role on a real node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from codeq_cluster.settings import LimitSettings, NodeSettings
from codeq_cluster.ui.routes import VIEWS, mount
from tests.integration.http.client import Client, serving, single
from tests.integration.http.page import ROLES, Session, logged_in, with_roles

pytestmark = pytest.mark.asyncio(loop_scope="session")

# By ROLES: viewer, admin, operator, both. The server enforces it, whatever the page shows.
_ANYBODY = "200 200 200 200"
_TENANT = "200 200 403 200"
_ADMIN = "403 200 403 200"
_OPERATOR = "403 403 200 200"

STATUSES = {
    "DELETE /session": _ANYBODY,
    "GET /live": _ANYBODY,
    "GET /now": _ANYBODY,
    "POST /queues/{command}/pause": _ADMIN,
    "POST /queues/{command}/resume": _ADMIN,
    "POST /queues/{command}/purge": _ADMIN,
    "GET /queues/{command}/keys": _TENANT,
    "GET /queues/{command}/dlq": _TENANT,
    "GET /queues/{command}/dlq/kinds": _TENANT,
    "POST /queues/{command}/dlq/preview": _ADMIN,
    "POST /queues/{command}/dlq/requeue": _ADMIN,
    "POST /queues/{command}/dlq/delete": _ADMIN,
    "POST /queues/{command}/dlq/undo": _ADMIN,
    "GET /tasks": _TENANT,
    "POST /tasks": "403 202 403 202",
    "GET /delayed": _TENANT,
    "GET /tasks/{id}/content": "403 404 403 404",
    "GET /tasks/{id}/steps": "403 404 403 404",
    "GET /tasks/{id}/log": "403 404 403 404",
    "GET /tasks/{id}/artifacts/{upload}/{artifact}": "403 404 403 404",
    "POST /tasks/{id}/cancel": "403 404 403 404",
    "GET /deliveries": _TENANT,
    "POST /deliveries/replay": _ADMIN,
    "GET /subscriptions": _TENANT,
    # This node signs nothing.
    "POST /webhooks/keys": "403 409 403 409",
    "POST /webhooks/keys/rotate": "403 409 403 409",
    "GET /topics": _TENANT,
    "PUT /topics/{name}": "403 201 403 200",
    "DELETE /topics/{name}": "403 204 403 204",
    "GET /groups": _TENANT,
    "POST /groups/{id}/seal": "403 404 403 404",
    "POST /groups/{id}/cancel": "403 404 403 404",
    "POST /bulk": _ADMIN,
    "DELETE /bulk/{id}": "403 404 403 404",
    "GET /schedules": _TENANT,
    "POST /schedules/preview": _ADMIN,
    # Nothing is made, so that the order of the others does not matter.
    "PUT /schedules/{name}": "403 400 403 400",
    "POST /schedules/{name}/pause": "403 404 403 404",
    "POST /schedules/{name}/resume": "403 404 403 404",
    "POST /schedules/{name}/trigger": "403 404 403 404",
    "POST /schedules/{name}/backfill": "403 404 403 404",
    "DELETE /schedules/{name}": "403 204 403 204",
    "GET /audit": "403 200 200 200",
    "POST /cluster/transfer": _OPERATOR,
    # This node has no place for backups.
    "POST /backups": "403 403 409 409",
    "GET /backups": "403 403 409 409",
    "GET /backups/{id}": "403 403 409 409",
}
VIEW_STATUSES = {
    "frame": _ANYBODY,
    "overview": _ANYBODY,
    "queues": _TENANT,
    "flows": _TENANT,
    "queue": _TENANT,
    "group": _TENANT,
    "limits": _TENANT,
    "bulk": _ADMIN,
    "schedule": _TENANT,
    "task": _TENANT,
    "workers": _TENANT,
    "cluster": _OPERATOR,
}
# Routes that need no session: the files, the log-in, and unknown paths.
OPEN = {
    "GET /ui",
    "GET /ui/{rest}",
    "GET /ui/static/{digest}/{name}",
    "GET /ui/api/session",
    "POST /ui/api/session",
    "GET /ui/api/{rest}",
}
QUERIES = {
    "GET /now": "?view=frame",
    "GET /live": "?view=frame",
    "GET /deliveries": "?status=dead",
    "DELETE /topics/{name}": "?deletionPolicy=Delete",
}
BODIES: dict[str, object] = {
    "POST /queues/{command}/purge": {"limit": 1},
    "POST /queues/{command}/dlq/preview": {"all": True},
    "POST /queues/{command}/dlq/requeue": {"all": True},
    "POST /queues/{command}/dlq/delete": {"all": True},
    "POST /queues/{command}/dlq/undo": {"action": "a", "ids": ["t"]},
    "POST /tasks": {"command": "q", "payload": {}},
    "POST /deliveries/replay": {"all": True},
    "PUT /topics/{name}": {"weight": 2},
    "POST /bulk": {"select": {"command": "q"}, "action": "cancel", "dryRun": True},
    "POST /schedules/preview": {"cron": "@hourly"},
    "PUT /schedules/{name}": {"cron": "never"},
    "POST /schedules/{name}/backfill": {
        "from": "2026-01-01T00:00:00Z",
        "to": "2026-01-02T00:00:00Z",
        "dryRun": True,
    },
    "POST /cluster/transfer": {"shard": 0, "to": "n1"},
}


@dataclass(slots=True)
class World:
    """A node with its routes, and a session of each role."""

    client: Client
    settings: NodeSettings
    app: web.Application
    sessions: dict[str, Session]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Run a node for this file alone."""
    settings = with_roles(single(tmp_path_factory.mktemp("page"), LimitSettings()))
    apps: list[web.Application] = []

    def kept(app: web.Application, *arguments: Any) -> None:
        apps.append(app)
        mount(app, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("codeq_cluster.node.front_end.mount", kept)
        async with serving(settings) as client:
            sessions = {role: await logged_in(client, role) for role in ROLES}
            yield World(client, settings, apps[0], sessions)


async def test_every_route_of_the_page_has_a_row(world: World) -> None:
    """The table has exactly the page's routes that the node's router knows."""
    served = {
        f"{route.method} {route.resource.canonical}"
        for route in world.app.router.routes()
        if route.resource is not None and route.resource.canonical.startswith("/ui")
    }
    served = {each for each in served if not each.startswith("HEAD ")}

    assert OPEN | {each.replace(" ", " /ui/api") for each in STATUSES} == served
    assert VIEW_STATUSES.keys() == VIEWS.keys()


@pytest.mark.parametrize("route", [each for each in STATUSES if each != "GET /live"])
async def test_a_route_serves_the_roles_it_is_for_and_no_other(world: World, route: str) -> None:
    """Callers without a session are refused too."""
    method, _, path = route.partition(" ")
    named = {"command": "q", "id": "t", "name": "q", "upload": "u", "artifact": "a"}
    path, body = path.format(**named) + QUERIES.get(route, ""), BODIES.get(route)
    nobody = await world.client.send(method, f"/ui/api{path}", b"", token="")
    told = [
        (await (session.get(path) if method == "GET" else session.write(method, path, body))).status
        for session in world.sessions.values()
    ]

    assert 401 == nobody.status
    assert [int(status) for status in STATUSES[route].split()] == told


@pytest.mark.parametrize("route", [each for each in STATUSES if not each.startswith("GET")])
async def test_no_write_is_taken_without_the_sessions_own_token(world: World, route: str) -> None:
    """Another site can make a browser send the cookie, so the cookie alone is not enough."""
    method, _, path = route.partition(" ")
    path = path.format(command="q", id="t", name="q") + QUERIES.get(route, "")
    answers = [
        await session.write(method, path, BODIES.get(route), X_CSRF_Token="")
        for session in world.sessions.values()
    ]

    assert [(403, "csrf")] * 4 == [(each.status, each.json["code"]) for each in answers]


@pytest.mark.parametrize(
    "path", ["/tasks", "/tasks/t/cancel", "/groups/t/seal", "/groups/t/cancel"]
)
async def test_an_admin_without_a_producers_rights_does_no_more_than_by_the_api(
    world: World, path: str
) -> None:
    """The write is refused, and the session goes on."""
    foreman = await logged_in(world.client, "foreman")
    body = BODIES["POST /tasks"] if path == "/tasks" else {}
    by_page = await foreman.write("POST", path, body)
    by_api = await world.client.post(path[1:], body, token="foreman")

    assert (403, "forbidden") == (by_page.status, by_page.json["code"])
    assert "producer" in str(by_page.json["error"])
    assert by_api.status in (401, 403)
    assert 200 == (await foreman.get("/now?view=queues")).status


@pytest.mark.parametrize("view", VIEW_STATUSES)
async def test_a_view_is_shown_to_the_roles_it_is_for_and_no_other(world: World, view: str) -> None:
    """The view's single answer and its stream have the same rule."""
    asked = f"?view={view}&queue=q&id=t"
    expected = [int(status) for status in VIEW_STATUSES[view].split()]
    once = [(await session.get(f"/now{asked}")).status for session in world.sessions.values()]
    streamed = [await _opened(session, f"/live{asked}") for session in world.sessions.values()]

    assert expected == once
    assert expected == streamed


@pytest.mark.parametrize("view", VIEW_STATUSES)
async def test_where_nodes_keep_their_data_is_for_operators(world: World, view: str) -> None:
    """Other roles do not see the link's address either."""
    secrets = [str(world.settings.data_dir.parent), f"127.0.0.1:{world.settings.link_port}"]
    for role in ("viewer", "admin"):
        answer = await world.sessions[role].get(f"/now?view={view}&queue=q&id=t")

        assert not [each for each in secrets if each in answer.body.decode()]


async def test_an_unknown_path_below_the_page_is_the_page_and_below_its_api_is_not(
    world: World,
) -> None:
    """A view's address can be opened directly, but a misspelt API path is an error."""
    page = await world.client.get("/ui/queues/some-queue", token="")
    api = await world.client.get("/ui/api/nothing", token="")
    written = await world.client.post("/ui/queues", token="")

    assert (200, "text/html; charset=utf-8") == (page.status, page.headers["content-type"])
    assert (404, "no-such-route") == (api.status, api.json["code"])
    assert 405 == written.status


async def test_the_page_runs_and_asks_for_nothing_but_its_own(world: World) -> None:
    """No inline code, other hosts, frames or caching are allowed."""
    page = await world.client.get("/ui", token="")
    policy = dict(
        each.strip().partition(" ")[::2]
        for each in page.headers["content-security-policy"].split(";")
    )

    assert "'none'" == policy["default-src"]
    assert {"'self'"} == {policy[name] for name in ("script-src", "style-src", "connect-src")}
    assert {"'none'"} == {policy[name] for name in ("base-uri", "frame-ancestors")}
    assert ("no-store", "DENY") == (page.headers["cache-control"], page.headers["x-frame-options"])
    assert b"<style" not in page.body
    assert b"<script>" not in page.body
    assert b" on" not in page.body.split(b"<body>")[1].replace(b" one ", b"")


async def test_files_are_kept_by_the_release_they_are_of(world: World) -> None:
    """The files' address changes with any of them; another release's address is not found."""
    page = (await world.client.get("/ui", token="")).body.decode()
    [address] = {each.split('"')[0] for each in page.split('src="')[1:] if "boot.js" in each}
    plain = await world.client.get(address, token="")
    packed = await world.client.get(address, token="", Accept_Encoding="br, gzip")
    other = await world.client.get(address.replace("/static/", "/static/0"), token="")
    outside = await world.client.get("/ui/static/x/../../../pyproject.toml", token="")

    assert "text/javascript; charset=utf-8" == plain.headers["content-type"]
    assert "immutable" in plain.headers["cache-control"]
    assert len(packed.body) < len(plain.body)
    assert "gzip" == packed.headers["content-encoding"]
    assert (404, 404) == (other.status, outside.status)


async def _opened(session: Session, path: str) -> int:
    """Return the status of a stream, and close it."""
    reader, writer = await session.client.connect()
    head = session.client.head("GET", f"/ui/api{path}", 0, token="", Cookie=session.cookie)
    writer.write(head)
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])
