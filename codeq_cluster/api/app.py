"""App: the route table."""

from __future__ import annotations

import time
from collections.abc import Callable

from aiohttp import web

from codeq_cluster.api.http.access_log import AccessLog
from codeq_cluster.api.http.call import Services
from codeq_cluster.api.http.import_room import ImportRoom
from codeq_cluster.api.http.memory_limits import LargeBodies
from codeq_cluster.api.http.middleware import Answering, Handler, Route, for_library, surrounded
from codeq_cluster.api.http.waits import Waits
from codeq_cluster.api.http.whole_requests import WholeRoutes
from codeq_cluster.api.openapi import document
from codeq_cluster.api.routes import (
    audit,
    dead_letters,
    deliveries,
    downloads,
    imports,
    membership,
    openapi,
    ops,
    queues,
    raft,
    reads,
    subscriptions,
    task_lists,
    tasks,
    topics,
    upgrading,
    uploads,
    workers,
)
from codeq_cluster.api.routes import backups as backup_routes
from codeq_cluster.api.routes import cluster as cluster_routes
from codeq_cluster.artifacts import ArtifactStore
from codeq_cluster.auth import Access, Authenticator
from codeq_cluster.backup.job import BackupJobs
from codeq_cluster.broker.polls import Polls
from codeq_cluster.broker.service import Broker
from codeq_cluster.membership.service import MembershipService
from codeq_cluster.ratelimit.limiter import RateLimiter
from codeq_cluster.routing.leadership import LeadershipTransfers
from codeq_cluster.settings import NodeSettings
from codeq_cluster.telemetry import Metrics
from codeq_cluster.telemetry.tracing import Tracing
from codeq_cluster.webhooks.ssrf_guard.targets import Targets

BASE = "/v1/codeq"
ACCESS_LOG = web.AppKey("access_log", AccessLog)
SERVICES = web.AppKey("services", Services)
WAITS = web.AppKey("waits", Waits)
# The busiest routes, whose requests the server reads without aiohttp.
WHOLE_ROUTES = web.AppKey("whole_routes", WholeRoutes[Answering])

_BODY = "invalid body"
_RESULT_BODY = "invalid request body"
_SUBSCRIBE = "codeq:subscribe"
_SUBMIT = "codeq:result"


def _produce(path: str, handler: Handler) -> Route:
    return Route("POST", BASE + path, handler, Access.PRODUCER, unreadable=_BODY, whole=True)


def _work(path: str, handler: Handler, scope: str) -> Route:
    return Route("POST", BASE + path, handler, Access.WORKER, scope, _BODY, whole=True)


def _submit(path: str, handler: Handler, unreadable: str) -> Route:
    return Route(
        "POST", BASE + path, handler, Access.WORKER, _SUBMIT, unreadable, large=True, whole=True
    )


def _subscriptions(path: str, handler: Handler, method: str, unreadable: str = "") -> Route:
    return Route(method, BASE + path, handler, Access.WORKER, _SUBSCRIBE, unreadable)


def _read(path: str, handler: Handler, method: str = "GET", *, stale: bool = False) -> Route:
    return Route(method, BASE + path, handler, Access.TENANT, stale=stale)


def _administer(path: str, handler: Handler, method: str = "GET", unreadable: str = "") -> Route:
    return Route(method, BASE + path, handler, Access.ADMIN, unreadable=unreadable)


def _operate(path: str, handler: Handler, method: str = "GET", unreadable: str = "") -> Route:
    return Route(method, BASE + path, handler, Access.OPERATOR, unreadable=unreadable)


def _open(path: str, handler: Handler) -> Route:
    return Route("GET", path, handler, Access.OPEN)


ROUTES = (
    _produce("/tasks", tasks.create),
    _produce("/tasks/batch", tasks.create_batch),
    Route("POST", BASE + "/tasks/{id}/cancel", tasks.cancel, Access.PRODUCER),
    _work("/tasks/claim", workers.claim, "codeq:claim"),
    _work("/tasks/claim/batch", workers.claim_batch, "codeq:claim"),
    _work("/tasks/{id}/heartbeat", workers.heartbeat, "codeq:heartbeat"),
    _work("/tasks/{id}/abandon", workers.abandon, "codeq:abandon"),
    _work("/tasks/{id}/nack", workers.nack, "codeq:nack"),
    _submit("/tasks/{id}/result", workers.submit, _RESULT_BODY),
    _submit("/tasks/batch/results", workers.submit_batch, _BODY),
    Route("PUT", BASE + "/tasks/{id}/artifacts/{artifact}", uploads.upload, Access.WORKER, _SUBMIT),
    _read("/tasks/{id}", reads.task, stale=True),
    _read("/tasks/{id}/result", reads.result, stale=True),
    _read("/tasks/{id}/explain", reads.explain),
    _read("/tasks/{id}/artifacts/{upload}/{artifact}", downloads.download, stale=True),
    _read("/tasks/{id}/artifacts/{upload}/{artifact}", downloads.describe, "HEAD", stale=True),
    Route("GET", BASE + "/raft/status", raft.status, Access.ANY),
    _subscriptions("/workers/subscriptions", subscriptions.subscribe, "POST", _BODY),
    _subscriptions("/workers/subscriptions", subscriptions.subscriptions, "GET"),
    _subscriptions("/workers/subscriptions/{id}/heartbeat", subscriptions.renew, "POST", _BODY),
    _subscriptions("/workers/subscriptions/{id}", subscriptions.unsubscribe, "DELETE"),
    _administer("/admin/queues", queues.queues),
    _administer("/admin/queues/{command}", queues.queue),
    _administer("/admin/queues/{command}/pause", queues.pause, "POST"),
    _administer("/admin/queues/{command}/resume", queues.resume, "POST"),
    _administer("/admin/queues/{command}/dlq", dead_letters.dead_letters),
    _administer("/admin/queues/{command}/dlq", dead_letters.delete, "DELETE", _BODY),
    _administer("/admin/queues/{command}/dlq/requeue", dead_letters.requeue, "POST", _BODY),
    _administer("/admin/queues/{command}/dlq/{id}", dead_letters.dead_letter),
    _administer("/admin/queues/{command}/dlq/{id}", dead_letters.delete_one, "DELETE"),
    _administer("/admin/queues/{command}/dlq/{id}/requeue", dead_letters.requeue_one, "POST"),
    _administer("/admin/tasks", task_lists.tasks),
    _administer("/admin/tasks/cleanup", task_lists.cleanup, "POST", _BODY),
    _administer("/admin/topics", topics.topics),
    _administer("/admin/topics/{name}", topics.topic),
    _administer("/admin/topics/{name}", topics.put, "PUT", _RESULT_BODY),
    _administer("/admin/topics/{name}", topics.delete, "DELETE"),
    _administer("/admin/deliveries", deliveries.deliveries),
    _administer("/admin/deliveries/replay", deliveries.replay, "POST", _BODY),
    _administer("/admin/deliveries/{id}/replay", deliveries.replay_one, "POST"),
    _administer("/admin/audit", audit.audit),
    _operate("/admin/cluster", cluster_routes.cluster),
    _operate("/admin/cluster/transfer", cluster_routes.transfer, "POST", _BODY),
    _operate("/admin/cluster/join", membership.join, "POST", _BODY),
    _operate("/admin/cluster/remove", membership.remove, "POST", _BODY),
    _operate("/admin/cluster/upgrade", upgrading.upgrade, "POST", _BODY),
    _operate("/admin/backup", backup_routes.create, "POST"),
    _operate("/admin/backup", backup_routes.backups),
    _operate("/admin/backup/{id}", backup_routes.backup),
    _administer("/admin/import", imports.take, "POST"),
    _open("/healthz", ops.healthz),
    _open("/readyz", ops.readyz),
    _open("/metrics", ops.metrics),
    _open("/openapi.json", openapi.spec),
    _open("/docs", openapi.page),
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
    services = Services(
        broker=broker,
        authenticator=authenticator,
        settings=settings,
        metrics=metrics,
        now_ms=now_ms,
        waits=Waits(),
        access_log=AccessLog(settings.access_log),
        tracing=tracing,
        quotas=quotas,
        targets=targets,
        cluster=cluster,
        members=members,
        large_bodies=LargeBodies(settings),
        import_room=ImportRoom(),
        polls=polls,
        artifacts=artifacts,
        backups=backups,
    )
    app = web.Application(client_max_size=settings.limits.max_body_bytes)
    app[ACCESS_LOG] = services.access_log
    app[openapi.DOCUMENT] = document.encoded(ROUTES, settings)
    app[SERVICES] = services
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
