"""App: the route table."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from aiohttp import web

from codeq_cluster.api import openapi, openapi_document, ops, queues, raft, reads, tasks, workers
from codeq_cluster.api.call import Services
from codeq_cluster.api.middleware import Handler, Route, wrapped
from codeq_cluster.api.ports import Broker
from codeq_cluster.api.waits import Waits
from codeq_cluster.auth import Access, Authenticator
from codeq_cluster.settings import NodeSettings
from codeq_cluster.telemetry import Metrics

BASE = "/v1/codeq"

_BODY = "invalid body"
_RESULT_BODY = "invalid request body"


def _produce(path: str, handler: Handler, unreadable: str = "") -> Route:
    return Route("POST", BASE + path, handler, Access.PRODUCER, unreadable=unreadable)


def _work(path: str, handler: Handler, scope: str, unreadable: str = _BODY) -> Route:
    return Route("POST", BASE + path, handler, Access.WORKER, scope=scope, unreadable=unreadable)


def _read(path: str, handler: Handler) -> Route:
    return Route("GET", BASE + path, handler, Access.ANY)


def _administer(path: str, handler: Handler) -> Route:
    return Route("GET", BASE + path, handler, Access.ADMIN)


def _operate(path: str, handler: Handler) -> Route:
    return Route("GET", path, handler, Access.OPEN)


ROUTES = (
    _produce("/tasks", tasks.create, _BODY),
    _produce("/tasks/batch", tasks.create_batch, _BODY),
    _produce("/tasks/{id}/cancel", tasks.cancel),
    _work("/tasks/claim", workers.claim, "codeq:claim"),
    _work("/tasks/claim/batch", workers.claim_batch, "codeq:claim"),
    _work("/tasks/{id}/heartbeat", workers.heartbeat, "codeq:heartbeat"),
    _work("/tasks/{id}/abandon", workers.abandon, "codeq:abandon"),
    _work("/tasks/{id}/nack", workers.nack, "codeq:nack"),
    _work("/tasks/{id}/result", workers.submit, "codeq:result", _RESULT_BODY),
    _work("/tasks/batch/results", workers.submit_batch, "codeq:result"),
    _read("/tasks/{id}", reads.task),
    _read("/tasks/{id}/result", reads.result),
    _read("/raft/status", raft.status),
    _administer("/admin/queues", queues.queues),
    _administer("/admin/queues/{command}", queues.queue),
    _operate("/healthz", ops.healthz),
    _operate("/readyz", ops.readyz),
    _operate("/metrics", ops.metrics),
    _operate("/openapi.json", openapi.spec),
    _operate("/docs", openapi.page),
)


def make_app(
    broker: Broker,
    authenticator: Authenticator,
    settings: NodeSettings,
    metrics: Metrics,
    *,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> web.Application:
    """Build the application.

    Args:
        broker: Serves every route; started and stopped by the caller.
        authenticator: Started and stopped by the caller.
        settings: Of the node; the limits are enforced here.
        metrics: Of the node.
        now_ms: Wall clock for ages that are shown, Unix milliseconds.
    """
    services = Services(
        broker=broker,
        authenticator=authenticator,
        settings=settings,
        metrics=metrics,
        now_ms=now_ms,
        waits=Waits(),
    )
    app = web.Application(client_max_size=settings.limits.max_body_bytes)
    app[openapi.DOCUMENT] = openapi_document.encoded(ROUTES, settings)
    app.on_shutdown.append(partial(_end_waits, services.waits))
    for route in ROUTES:
        app.router.add_route(route.method, route.path, wrapped(route, services))
    return app


async def _end_waits(waits: Waits, app: web.Application) -> None:  # noqa: ARG001, aiohttp's signal
    waits.end()
