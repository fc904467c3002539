"""Routes: the page's own, below `/ui`. They reuse the API's handlers where there is one.

No route of the API accepts a session, and none of these a bearer token. A browser can be made to
send a cookie, so a cookie must reach only this one path, and every write needs a CSRF token.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from codeq_cluster.api.app import SERVICES
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError
from codeq_cluster.api.http.middleware import Handler, Route, wrapped
from codeq_cluster.api.routes import artifacts as artifact_routes
from codeq_cluster.api.routes import backups as backup_routes
from codeq_cluster.api.routes import bulk as bulk_routes
from codeq_cluster.api.routes import cluster as cluster_routes
from codeq_cluster.api.routes import groups as group_routes
from codeq_cluster.api.routes import keys as key_routes
from codeq_cluster.api.routes import logs as log_routes
from codeq_cluster.api.routes import queues as queue_routes
from codeq_cluster.api.routes import schedules as schedule_routes
from codeq_cluster.api.routes import steps as step_routes
from codeq_cluster.api.routes import tasks as task_routes
from codeq_cluster.api.routes import topics as topic_routes
from codeq_cluster.api.routes import webhooks as webhook_routes
from codeq_cluster.auth import Access, Role
from codeq_cluster.ui.assets import Assets
from codeq_cluster.ui.entry import LoginRoutes
from codeq_cluster.ui.live import LiveView, LiveViews
from codeq_cluster.ui.sessions import PATH, Sessions
from codeq_cluster.ui.sources import Sources
from codeq_cluster.ui.views import (
    audit,
    bulk,
    cluster,
    dead_letters,
    flows,
    groups,
    limits,
    overview,
    queue,
    queues,
    schedules,
    tasks,
    webhooks,
    workers,
)

API = f"{PATH}/api"
ARTIFACT = "/tasks/{id}/artifacts/{upload}/{artifact:.+}"

_BODY = "invalid body"
_RESULT_BODY = "invalid request body"
_ANYBODY = tuple(Role)
_VIEWERS = (Role.VIEWER, Role.ADMIN)
_ADMINS = (Role.ADMIN,)
_OPERATORS = (Role.OPERATOR,)
_CHANGERS = (Role.ADMIN, Role.OPERATOR)
_NOT_FOUND = ApiError(404, "not found", "no-such-route")

VIEWS = {
    "frame": LiveView(roles=_ANYBODY),
    "overview": LiveView(roles=_ANYBODY, look=overview.look, draw=overview.draw),
    "queues": LiveView(roles=_VIEWERS, look=queues.look),
    "flows": LiveView(roles=_VIEWERS, look=flows.look),
    "queue": LiveView(roles=_VIEWERS, look=queue.look, draw=queue.draw),
    "task": LiveView(roles=_VIEWERS, look=tasks.look),
    "group": LiveView(roles=_VIEWERS, look=groups.look),
    "limits": LiveView(roles=_VIEWERS, look=limits.look),
    "bulk": LiveView(roles=_ADMINS, look=bulk.look),
    "schedule": LiveView(roles=_VIEWERS, look=schedules.look),
    "workers": LiveView(roles=_VIEWERS, look=workers.look),
    "cluster": LiveView(roles=_OPERATORS, look=cluster.look),
}


@dataclass(frozen=True, slots=True)
class PageRoute:
    """One line of the table.

    Attributes:
        roles: The caller needs one of them.
        unreadable: The error for a body that cannot be read; empty if it takes no body.
        access: What the API's route also demands of the token; None if the role is enough.
    """

    method: str
    path: str
    handler: Handler
    roles: tuple[Role, ...]
    unreadable: str = ""
    access: Access | None = None


def mount(app: web.Application, sources: Sources) -> None:
    """Add the page to a node's application."""
    services = app[SERVICES]
    sessions = Sessions(
        services.authenticator, services.settings, services.shares.callers, services.now_ms
    )
    assets = Assets()
    entry = LoginRoutes(sessions, time.monotonic_ns)
    live = LiveViews(VIEWS, sources, sessions)

    opened = [
        Route("POST", f"{API}/session", entry.login, Access.OPEN, unreadable=_BODY),
        Route("GET", f"{API}/session", entry.session, Access.OPEN),
        Route("GET", f"{API}/{{rest:.*}}", _nothing, Access.OPEN),
        Route("GET", f"{PATH}/static/{{digest}}/{{name:.+}}", assets.asset, Access.OPEN),
        Route("GET", PATH, assets.page, Access.OPEN),
        Route("GET", f"{PATH}/{{rest:.*}}", assets.page, Access.OPEN),
    ]
    for line in _table(entry, live):
        route = Route(
            line.method, API + line.path, line.handler, Access.PAGE, unreadable=line.unreadable
        )
        app.router.add_route(
            route.method,
            route.path,
            wrapped(route, services, sessions.admit(*line.roles, access=line.access)),
        )
    # Last, since the final one matches every path.
    for route in opened:
        app.router.add_route(route.method, route.path, wrapped(route, services))


def _table(entry: LoginRoutes, live: LiveViews) -> Sequence[PageRoute]:
    named, schedule = "/queues/{command}", "/schedules/{name}"
    return (
        PageRoute("DELETE", "/session", entry.logout, _ANYBODY),
        PageRoute("GET", "/live", live.stream, _ANYBODY),
        PageRoute("GET", "/now", live.now, _ANYBODY),
        PageRoute("POST", f"{named}/pause", queue_routes.pause, _ADMINS),
        PageRoute("POST", f"{named}/resume", queue_routes.resume, _ADMINS),
        PageRoute("POST", f"{named}/purge", dead_letters.purge, _ADMINS, _BODY),
        PageRoute("GET", f"{named}/keys", key_routes.keys, _VIEWERS),
        PageRoute("GET", f"{named}/dlq", dead_letters.dead_letters, _VIEWERS),
        PageRoute("GET", f"{named}/dlq/kinds", dead_letters.kinds, _VIEWERS),
        PageRoute("POST", f"{named}/dlq/preview", dead_letters.preview, _ADMINS, _BODY),
        PageRoute("POST", f"{named}/dlq/requeue", dead_letters.requeue, _ADMINS, _BODY),
        PageRoute("POST", f"{named}/dlq/delete", dead_letters.delete, _ADMINS, _BODY),
        PageRoute("POST", f"{named}/dlq/undo", dead_letters.take_back, _ADMINS, _BODY),
        PageRoute("GET", "/tasks", tasks.search, _VIEWERS),
        PageRoute("POST", "/tasks", task_routes.create, _ADMINS, _BODY, Access.PRODUCER),
        PageRoute("GET", "/delayed", tasks.delayed, _VIEWERS),
        PageRoute("GET", "/tasks/{id}/content", tasks.content, _ADMINS),
        PageRoute("GET", "/tasks/{id}/steps", step_routes.steps, _ADMINS),
        PageRoute("GET", "/tasks/{id}/log", log_routes.log, _ADMINS),
        PageRoute("GET", ARTIFACT, artifact_routes.download, _ADMINS),
        PageRoute("POST", "/tasks/{id}/cancel", tasks.cancel, _ADMINS, access=Access.PRODUCER),
        PageRoute("GET", "/deliveries", webhooks.deliveries, _VIEWERS),
        PageRoute("POST", "/deliveries/replay", webhook_routes.replay, _ADMINS, _BODY),
        PageRoute("GET", "/subscriptions", webhooks.subscriptions, _VIEWERS),
        # A POST, because it shows a secret and leaves an audit record.
        PageRoute("POST", "/webhooks/keys", webhook_routes.keys, _ADMINS),
        PageRoute("POST", "/webhooks/keys/rotate", webhook_routes.rotate, _ADMINS, _BODY),
        PageRoute("GET", "/topics", topic_routes.topics, _VIEWERS),
        PageRoute("PUT", "/topics/{name}", topic_routes.put, _ADMINS, _RESULT_BODY),
        PageRoute("DELETE", "/topics/{name}", topic_routes.delete, _ADMINS),
        PageRoute("GET", "/groups", group_routes.groups, _VIEWERS),
        PageRoute("POST", "/groups/{id}/seal", group_routes.seal, _ADMINS, access=Access.PRODUCER),
        PageRoute(
            "POST", "/groups/{id}/cancel", group_routes.cancel, _ADMINS, access=Access.PRODUCER
        ),
        PageRoute("POST", "/bulk", bulk_routes.start, _ADMINS, _BODY),
        PageRoute("DELETE", "/bulk/{id}", bulk_routes.stop, _ADMINS),
        PageRoute("GET", "/schedules", schedules.schedules, _VIEWERS),
        PageRoute("POST", "/schedules/preview", schedule_routes.preview, _ADMINS, _BODY),
        PageRoute("PUT", schedule, schedule_routes.put, _ADMINS, _BODY),
        PageRoute("DELETE", schedule, schedule_routes.delete, _ADMINS),
        PageRoute("POST", f"{schedule}/pause", schedule_routes.pause, _ADMINS),
        PageRoute("POST", f"{schedule}/resume", schedule_routes.resume, _ADMINS, _BODY),
        PageRoute("POST", f"{schedule}/trigger", schedule_routes.trigger, _ADMINS, _BODY),
        PageRoute("POST", f"{schedule}/backfill", schedule_routes.backfill, _ADMINS, _BODY),
        PageRoute("GET", "/audit", audit.audit, _CHANGERS),
        PageRoute("POST", "/cluster/transfer", cluster_routes.transfer, _OPERATORS, _BODY),
        PageRoute("POST", "/backups", backup_routes.create, _OPERATORS),
        PageRoute("GET", "/backups", backup_routes.backups, _OPERATORS),
        PageRoute("GET", "/backups/{id}", backup_routes.backup, _OPERATORS),
    )


async def _nothing(call: Call) -> web.Response:  # noqa: ARG001, every handler takes the call
    raise _NOT_FOUND
