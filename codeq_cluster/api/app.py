"""App: the route table."""

from __future__ import annotations

import time
from collections.abc import Callable

from aiohttp import web

from codeq_cluster.api.declared.operations import BASE
from codeq_cluster.api.http.access_log import AccessLog
from codeq_cluster.api.http.bodies import Bodies
from codeq_cluster.api.http.call import Services
from codeq_cluster.api.http.callers import Callers
from codeq_cluster.api.http.middleware import Answering, for_library, surrounded
from codeq_cluster.api.http.strangers import Strangers
from codeq_cluster.api.http.waits import Waits
from codeq_cluster.api.http.whole_requests import WholeRoutes
from codeq_cluster.api.openapi import document
from codeq_cluster.api.routes import artifacts as artifact_routes
from codeq_cluster.api.routes import (
    asides,
    audit,
    dead_letters,
    imports,
    membership,
    ops,
    queues,
    reads,
    results,
    subscriptions,
    task_lists,
    tasks,
    topics,
    webhooks,
    workers,
)
from codeq_cluster.api.routes import backups as backup_routes
from codeq_cluster.api.routes import cluster as cluster_routes
from codeq_cluster.artifacts import ArtifactStore
from codeq_cluster.auth import Authenticator
from codeq_cluster.backup.job import BackupJobs
from codeq_cluster.broker.polls import Polls
from codeq_cluster.broker.service import Broker
from codeq_cluster.fair_shares import FairShares
from codeq_cluster.membership.service import MembershipService
from codeq_cluster.ratelimit.limiter import RateLimiter
from codeq_cluster.routing.leadership import LeadershipTransfers
from codeq_cluster.settings import NodeSettings
from codeq_cluster.telemetry import Metrics
from codeq_cluster.telemetry.tracing import Tracing
from codeq_cluster.webhooks.ssrf_guard.targets import Targets

ACCESS_LOG = web.AppKey("access_log", AccessLog)
SERVICES = web.AppKey("services", Services)
STRANGERS = web.AppKey("strangers", Strangers)
WAITS = web.AppKey("waits", Waits)
# The busiest routes, whose requests the server reads without aiohttp.
WHOLE_ROUTES = web.AppKey("whole_routes", WholeRoutes[Answering])

ROUTES = (
    *tasks.ROUTES,
    *workers.ROUTES,
    *results.ROUTES,
    *artifact_routes.UPLOADS,
    *reads.ROUTES,
    *artifact_routes.DOWNLOADS,
    *cluster_routes.RAFT,
    *subscriptions.ROUTES,
    *queues.ROUTES,
    *dead_letters.ROUTES,
    *task_lists.ROUTES,
    *topics.ROUTES,
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


def make_app(
    broker: Broker,
    authenticator: Authenticator,
    settings: NodeSettings,
    metrics: Metrics,
    *,
    targets: Targets,
    quotas: RateLimiter,
    cluster: LeadershipTransfers,
    members: MembershipService,
    polls: Polls,
    artifacts: ArtifactStore | None = None,
    backups: BackupJobs | None = None,
    tracing: Tracing | None = None,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> web.Application:
    """Build the application.

    Args:
        broker: Serves every route; started and stopped by the caller.
        authenticator: Started and stopped by the caller.
        settings: The node's settings; this layer enforces the limits.
        metrics: The node's metrics.
        targets: Decides which URLs may be registered.
        quotas: Enforces the rate limits.
        cluster: Knows the leaders of the shards.
        members: Knows and changes the members.
        polls: Records every claim.
        artifacts: The artifact store; None when there is none.
        backups: The backups this node takes; None when it has no place for them.
        tracing: Makes the spans of requests; None for none.
        now_ms: Wall clock for ages that are shown, Unix milliseconds.
    """
    callers = Callers(settings.proxies)
    services = Services(
        broker=broker,
        authenticator=authenticator,
        settings=settings,
        metrics=metrics,
        now_ms=now_ms,
        waits=Waits(settings.limits),
        access_log=AccessLog(settings.access_log, callers),
        callers=callers,
        tracing=tracing,
        quotas=quotas,
        targets=targets,
        cluster=cluster,
        members=members,
        strangers=Strangers(settings.limits, callers),
        bodies=Bodies(settings),
        imports=FairShares(imports.AT_ONCE, name="the room for imports"),
        polls=polls,
        artifacts=artifacts,
        backups=backups,
    )
    app = web.Application(client_max_size=settings.limits.max_body_bytes)
    app[ACCESS_LOG] = services.access_log
    app[ops.DOCUMENT] = document.encoded(ROUTES, settings)
    app[SERVICES] = services
    app[STRANGERS] = services.strangers
    app[WAITS] = services.waits
    whole = WholeRoutes[Answering](BASE + "/tasks", body_bytes_max=settings.limits.max_body_bytes)
    for route in ROUTES:
        answering = surrounded(route, services)
        # The name of an artifact may contain slashes.
        path = route.path.replace("{artifact}", "{artifact:.+}")
        app.router.add_route(route.method, path, for_library(answering))
        if route.whole:
            whole.add(route.path, answering)
    app[WHOLE_ROUTES] = whole
    return app
