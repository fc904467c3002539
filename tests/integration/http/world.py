"""World: a real node, tokens of every kind of caller, and a tenant that has one of everything."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from codeq_cluster.api.app import make_app
from codeq_cluster.api.http.services import Services
from codeq_cluster.auth.identity import WORKER_SCOPES
from codeq_cluster.codec.arrivals import Arrivals, encode_arrivals
from codeq_cluster.settings import (
    ArtifactProvider,
    ArtifactSettings,
    AuthProviderSettings,
    AuthSettings,
    BackupSettings,
    LimitSettings,
    NodeSettings,
    StaticToken,
    WebhookSettings,
)
from tests.harness.ports import dead_url
from tests.integration.http.client import BASE, Answer, Client, eventually, serving, single

# The first tenant owns the targets.
TENANTS = ("acme", "other")
# The worker `unscoped` has a worker's token with none of the scopes that routes require.
ROLES = ("producer", "unscoped", "worker", "admin", "operator")
# Each name is also a token, except the first, which sends none.
CALLERS = ("", *(f"{role}-of-{tenant}" for tenant in TENANTS for role in ROLES))

NO_OWNER = "http://127.0.0.1:9/nobody"
BACKUP = "20260131T123000000Z-5f0c4a2e"
OUTSIDE_BASE = ("/healthz", "/readyz", "/metrics", "/openapi.json", "/docs")

_TOPIC: dict[str, object] = {"maxAttempts": 3}
_YEARLY: dict[str, object] = {"cron": "@yearly", "task": {"command": "yearly", "payload": 1}}

# Routes are named by method and path, the latter relative to the base.
BODIES: dict[str, dict[str, object] | bytes] = {
    "POST /tasks": {"command": "made", "payload": 1},
    "POST /tasks/batch": {"tasks": [{"command": "made", "payload": 1}]},
    "POST /tasks/graph": {"tasks": [{"command": "made", "payload": 1}]},
    "POST /tasks/claim": {"commands": ["ready"]},
    "POST /tasks/claim/batch": {"commands": ["ready"], "count": 1},
    "PATCH /tasks/{id}/tags": {"set": {"env": "prod"}},
    "POST /tasks/{id}/heartbeat": {},
    "POST /tasks/{id}/nack": {},
    "POST /tasks/{id}/reject": {},
    "POST /tasks/{id}/steps": {"name": "charge", "value": 1},
    "POST /tasks/{id}/park": {"step": "rest", "forSeconds": 60},
    "POST /tasks/{id}/result": {"status": "COMPLETED", "result": {}},
    "POST /tasks/batch/results": {
        "results": [{"taskId": "none", "status": "COMPLETED", "result": {}}]
    },
    "POST /tasks/batch/heartbeats": {"leases": [{"id": "none"}]},
    "PUT /tasks/{id}/artifacts/{artifact}": b"content",
    "POST /workers/subscriptions": {"callbackUrl": NO_OWNER},
    "PUT /admin/topics/{name}": _TOPIC,
    "PUT /admin/limits/{name}": {"maxRunning": 2},
    "PUT /admin/queues/{command}/keys/{key}": {"weight": 2},
    "POST /admin/schedules/preview": {"cron": "@daily"},
    "PUT /admin/schedules": {"schedules": [], "dryRun": True},
    "PUT /workers/schedules": {"schedules": [], "dryRun": True},
    "PUT /admin/schedules/{name}": _YEARLY,
    "POST /admin/schedules/{name}/backfill": {
        "from": "2026-01-01T00:00:00Z",
        "to": "2026-01-01T00:00:00Z",
        "dryRun": True,
    },
    "POST /admin/bulk": {"select": {"command": "queue"}, "action": "cancel", "dryRun": True},
    "POST /groups": {},
    "POST /groups/{id}/tasks": {"tasks": [{"command": "made", "payload": 1}]},
    "POST /admin/deliveries/replay": {"all": True},
    "POST /admin/aside/retry": {"all": True},
    "POST /admin/cluster/aside/retry": {"all": True},
    "POST /admin/import": encode_arrivals(Arrivals()),
    "POST /admin/cluster/transfer": {"shard": 0, "to": "n1"},
    "POST /admin/cluster/join": {
        "nodeId": "n9",
        "addr": "127.0.0.1:1",
        "httpAddr": "http://127.0.0.1:2",
        "dryRun": True,
    },
    "POST /admin/cluster/remove": {"nodeId": "n9", "dryRun": True},
    "POST /admin/cluster/upgrade": {"dryRun": True},
}
_NAMED = {"topics": _TOPIC, "schedules": _YEARLY, "limits": {"maxRunning": 1}}
QUERIES = {
    "DELETE /admin/topics/{name}": "?deletionPolicy=Delete",
    "PUT /admin/schedules": "?owner=app",
    "PUT /workers/schedules": "?owner=app",
    "POST /admin/import": f"?backup={BACKUP}&tenant=acme",
}


@dataclass(slots=True)
class World:
    """A node, and a tenant that has one of everything.

    Attributes:
        app: The node's application.
        fixed: Objects that no caller uses up.
        numbers: Makes names unique.
    """

    client: Client
    app: web.Application
    settings: NodeSettings
    fixed: dict[str, str] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)

    async def call(self, caller: str, route: str) -> Answer:
        """Send a route's request with a caller's token, to an existing target."""
        path = await self._path(route) + QUERIES.get(route, "")
        return await self._send(caller, route.partition(" ")[0], path, BODIES.get(route, b""))

    async def taken(self, backup: str) -> None:
        """Wait until a backup has ended: only one is taken at a time."""
        await eventually(
            lambda: self._done("operator", "GET", f"admin/backup/{backup}"),
            lambda shown: shown["status"] == "DONE",
        )

    async def make_fixed(self) -> None:
        """Create the fixed objects."""
        task_id = await self._leased("done")
        stored = await self._done("worker", "PUT", f"tasks/{task_id}/artifacts/a", b"content")
        result = {"status": "COMPLETED", "result": {}, "artifacts": [stored]}
        await self._done("worker", "POST", f"tasks/{task_id}/result", result)
        backup = str((await self._done("operator", "POST", "admin/backup"))["id"])
        await self.taken(backup)
        self.fixed = {"task": task_id, "artifact": stored["url"], "backup": backup}

    async def _send(self, caller: str, method: str, path: str, body: object = b"") -> Answer:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.client.send(method, path, raw, token=caller)

    async def _done(self, role: str, method: str, path: str, body: object = b"") -> dict[str, Any]:
        answer = await self._send(f"{role}-of-{TENANTS[0]}", method, path, body)
        assert answer.status < 300, (path, answer.body)
        return answer.json if answer.body else {}

    async def _path(self, route: str) -> str:
        """Return a route's path to an existing target, a fresh one if callers use it up."""
        path = route.partition(" ")[2]
        if "{upload}" in path:
            return self.fixed["artifact"]
        # The task goes into the paused queue, from which no caller claims.
        command = "paused" if path.endswith(("/pause", "/resume")) else "queue"
        known = {"command": command, "artifact": "a", "key": "k", "signal": "paid"}
        if "{id}" in path:
            known["id"] = await self._id(route, path)
        if "{name}" in path:
            # Tests run in any order, and an admin of the other tenant may create one of that name.
            known["name"] = f"named-{next(self.numbers)}"
            of = path.split("/")[2]
            await self._done("admin", "PUT", f"admin/{of}/{known['name']}", _NAMED[of])
        if path.startswith("/tasks/claim"):
            await self._task("ready")
        filled = re.sub(r"{(\w+)}", lambda part: known[part[1]], path)
        return filled if path in OUTSIDE_BASE else BASE + filled

    async def _id(self, route: str, path: str) -> str:
        if path.startswith("/admin/backup"):
            return self.fixed["backup"]
        if path.startswith("/admin/deliveries"):
            # All callers share one object: the allowed caller uses it up, and the next does not
            # find it.
            if "delivery" not in self.fixed:
                self.fixed["delivery"] = await self._undelivered()
            return self.fixed["delivery"]
        if path.startswith("/admin/bulk"):
            body = {"id": "bulk", "select": {"command": "none"}, "action": "cancel"}
            return str((await self._done("admin", "POST", "admin/bulk", body))["id"])
        if path.startswith("/groups"):
            return str((await self._done("producer", "POST", "groups", {}))["id"])
        if path.startswith("/workers/subscriptions"):
            body = {"callbackUrl": NO_OWNER}
            made = await self._done("worker", "POST", "workers/subscriptions", body)
            return str(made["subscriptionId"])
        if "/dlq/" in path:
            return await self._dead("queue")
        return self.fixed["task"] if route.startswith("GET ") else await self._leased("held")

    async def _task(self, command: str, **fields: object) -> str:
        body = {"command": command, "payload": 1, **fields}
        return str((await self._done("producer", "POST", "tasks", body))["id"])

    async def _leased(self, command: str, **fields: object) -> str:
        """Return a task that the worker holds."""
        await self._task(command, **fields)
        claimed = await self._done("worker", "POST", "tasks/claim", {"commands": [command]})
        return str(claimed["id"])

    async def _dead(self, command: str, **fields: object) -> str:
        task_id = await self._leased(command, maxAttempts=1, **fields)
        await self._done("worker", "POST", f"tasks/{task_id}/abandon")
        return task_id

    async def _undelivered(self) -> str:
        """Return a callback that has been given up."""
        task_id = await self._dead("undelivered", webhook=dead_url())
        await eventually(
            lambda: self._done("admin", "GET", "admin/deliveries?status=dead"),
            lambda dead: task_id in {each["taskId"] for each in dead["deliveries"]},
        )
        return f"{task_id}.1"


@contextlib.asynccontextmanager
async def created(directory: Path) -> AsyncIterator[World]:
    """Run a node below a directory until the end of the block, with access to its application."""
    settings = replace(
        single(directory / "node", LimitSettings()),
        auth=AuthSettings(
            producer=_provider(
                _tokens("producer"),
                _tokens("admin", "codeq:admin"),
                _tokens("operator", "codeq:operator"),
            ),
            worker=_provider(
                _tokens("worker", *WORKER_SCOPES, event_types=("*",)),
                _tokens("unscoped", "codeq:nothing", event_types=("*",)),
            ),
        ),
        artifacts=ArtifactSettings(
            provider=ArtifactProvider.LOCAL, directory=directory / "artifacts"
        ),
        backup=BackupSettings(directory=directory / "backups"),
        webhooks=WebhookSettings(hmac_secret="s" * 32, allow_private=True, max_attempts=1),
    )
    made: list[web.Application] = []

    def kept(services: Services) -> web.Application:
        made.append(make_app(services))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("codeq_cluster.node.front_end.make_app", kept)
        async with serving(settings) as client:
            world = World(client, made[0], settings)
            await world.make_fixed()
            yield world


def _tokens(role: str, *scopes: str, event_types: tuple[str, ...] = ()) -> list[StaticToken]:
    return [
        StaticToken(
            token=f"{role}-of-{tenant}",
            subject=role,
            tenant=tenant,
            scopes=scopes,
            event_types=event_types,
        )
        for tenant in TENANTS
    ]


def _provider(*tokens: list[StaticToken]) -> tuple[AuthProviderSettings, ...]:
    return (AuthProviderSettings(kind="static", tokens=tuple(chain.from_iterable(tokens))),)
