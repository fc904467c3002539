"""App: the route table."""

from __future__ import annotations

import re

from aiohttp import web

from codeq_cluster.api.declared.operations import BASE
from codeq_cluster.api.http.access_log import AccessLog
from codeq_cluster.api.http.middleware import Answering, for_library, surrounded
from codeq_cluster.api.http.services import Services
from codeq_cluster.api.http.strangers import Strangers
from codeq_cluster.api.http.waits import Waits
from codeq_cluster.api.http.whole_requests import WholeRoutes
from codeq_cluster.api.openapi import document
from codeq_cluster.api.routes import artifacts as artifact_routes
from codeq_cluster.api.routes import (
    asides,
    audit,
    bulk,
    cancels,
    dead_letters,
    dev_time,
    events,
    graphs,
    groups,
    imports,
    keys,
    leases,
    limits,
    logs,
    membership,
    ops,
    queues,
    reads,
    rejects,
    results,
    schedules,
    steps,
    subscriptions,
    tags,
    task_lists,
    tasks,
    topics,
    webhooks,
    workers,
)
from codeq_cluster.api.routes import backups as backup_routes
from codeq_cluster.api.routes import cluster as cluster_routes

ACCESS_LOG = web.AppKey("access_log", AccessLog)
SERVICES = web.AppKey("services", Services)
STRANGERS = web.AppKey("strangers", Strangers)
WAITS = web.AppKey("waits", Waits)
# The busiest routes, whose requests the server reads without aiohttp.
WHOLE_ROUTES = web.AppKey("whole_routes", WholeRoutes[Answering])

ROUTES = (
    *tasks.ROUTES,
    *cancels.ROUTES,
    *tags.ROUTES,
    *workers.ROUTES,
    *rejects.ROUTES,
    *leases.ROUTES,
    *results.ROUTES,
    *artifact_routes.UPLOADS,
    *reads.ROUTES,
    *events.ROUTES,
    *artifact_routes.DOWNLOADS,
    *cluster_routes.RAFT,
    *subscriptions.ROUTES,
    *queues.ROUTES,
    *keys.ROUTES,
    *dead_letters.ROUTES,
    *task_lists.ROUTES,
    *bulk.ROUTES,
    *topics.ROUTES,
    *limits.ROUTES,
    *schedules.ROUTES,
    *graphs.ROUTES,
    *groups.ROUTES,
    *steps.ROUTES,
    *logs.ROUTES,
    *webhooks.DELIVERIES,
    *webhooks.KEYS,
    *asides.ROUTES,
    *audit.ROUTES,
    *cluster_routes.ROUTES,
    *membership.ROUTES,
    *membership.UPGRADING,
    *backup_routes.ROUTES,
    *imports.ROUTES,
    *ops.ROUTES,
    *ops.OPENAPI,
)
_NAME = re.compile(r"\{(\w+)\}")
# Served, and in the document, under virtual time alone.
VIRTUAL_ROUTES = (*ROUTES, *dev_time.ROUTES)


def make_app(services: Services) -> web.Application:
    """Build the application of a node whose services these are."""
    limits = services.settings.limits
    app = web.Application(client_max_size=limits.max_body_bytes)
    app[ACCESS_LOG] = services.telemetry.access_log
    routes = ROUTES if services.virtual_time is None else VIRTUAL_ROUTES
    app[ops.DOCUMENT] = document.encoded(routes, services.settings)
    app[SERVICES] = services
    app[STRANGERS] = services.shares.strangers
    app[WAITS] = services.shares.waits
    whole = WholeRoutes[Answering](BASE + "/tasks", body_bytes_max=limits.max_body_bytes)
    for route in routes:
        answering = surrounded(route, services)
        app.router.add_route(route.method, _any_name(route.path), for_library(answering))
        if route.whole:
            whole.add(route.path, answering)
    app[WHOLE_ROUTES] = whole
    return app


def _any_name(path: str) -> str:
    """Return a path for the library, whose own names have no braces: handlers say what is wrong."""
    # The name of an artifact may contain slashes.
    path = path.replace("{artifact}", "{artifact:(?s:.+)}")
    return _NAME.sub(r"{\1:[^/]+}", path)
