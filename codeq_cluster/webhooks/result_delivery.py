"""Result delivery: POSTs a task's result to its webhook."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from codeq_cluster.broker.ports import StateStore
from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.items import Delivery
from codeq_cluster.core.operations import Delivered, Operation, Undelivered
from codeq_cluster.core.task import Result
from codeq_cluster.telemetry.tracing import DeliverySpan, Tracing
from codeq_cluster.webhooks.host_limits import Route
from codeq_cluster.webhooks.http_client import Sender

_NOTHING = Raw(b"null")

KIND = "task_result"
_LIMITED_MAX = 10_000  # Bounds the memory: tenants remembered as out of calls.


class Callback(Struct, rename="camel", kw_only=True):
    """The body of a result callback; tags and metadata are those that the task had at its end."""

    task_id: str
    event_type: str
    status: str
    result: Raw
    error: str
    artifacts: Sequence[dict[str, str]] | None
    completed_at: str
    tags: dict[str, str] | UnsetType = UNSET
    metadata: Raw | UnsetType = UNSET


class Callbacks:
    """Makes the attempts of deliveries.

    Args:
        wait_s: Takes one call from a tenant's rate limit and returns 0, or returns the seconds
            until the next call.
        on_outcome: Called with (kind, command, outcome) of every attempt.
        tracing: Makes a span of every attempt; None for no spans.
    """

    def __init__(
        self,
        sender: Sender,
        *,
        wait_s: Callable[[str], Awaitable[float]],
        on_outcome: Callable[[str, str, str], None],
        tracing: Tracing | None = None,
    ) -> None:
        self._sender = sender
        self._wait_s = wait_s
        self._on_outcome = on_outcome
        self._tracing = tracing
        self._limited: dict[str, float] = {}  # By tenant: when it may call, in loop time.
        self._asking: Counter[Route] = Counter()  # Not yet sent.

    def route(self, delivery: Delivery) -> Route:
        """Return where a delivery goes; see `Sender.route`."""
        return self._sender.route(delivery.tenant, delivery.url)

    def room(self, route: Route) -> int:
        """Return how many deliveries can be tried on a route now."""
        tenant, _ = route
        until_s = self._limited.get(tenant)
        if until_s is not None:
            if until_s > asyncio.get_running_loop().time():
                return 0
            del self._limited[tenant]
        return self._sender.room(route) - self._asking[route]

    async def run(self, store: StateStore, delivery: Delivery) -> Operation | None:
        """Make one attempt and return its outcome, or None if no attempt could be made."""
        record = store.get(keyspace.body(delivery.tenant, delivery.id))
        if record is None:
            # A new leader delivered it, and this node has not learned yet that it was deposed.
            return Delivered(tenant=delivery.tenant, id=delivery.id)
        if not await self._may_call(delivery):
            return None
        sent = await self._sender.post(
            delivery.url,
            body_of(delivery, records.decode_result(record)),
            tenant=delivery.tenant,
            delivery=delivery.id,
            trace_parent=delivery.trace_parent,
            trace_state=delivery.trace_state,
            span=partial(_span, self._tracing, delivery) if self._tracing is not None else None,
        )
        if sent.deferred:
            return None
        self._on_outcome(KIND, delivery.command, "success" if sent.ok else "failure")
        if sent.ok:
            return Delivered(tenant=delivery.tenant, id=delivery.id)
        return Undelivered(
            tenant=delivery.tenant,
            id=delivery.id,
            attempt=delivery.attempts + 1,
            error=sent.error,
            wait_ms=int(sent.retry_after_s * 1000),
        )

    async def _may_call(self, delivery: Delivery) -> bool:
        """Take a call from the tenant's limit; if none is left, `room` is 0 for a while."""
        route = self.route(delivery)
        self._asking[route] += 1
        try:
            wait_s = await self._wait_s(delivery.tenant)
        finally:
            self._asking[route] -= 1
            if not self._asking[route]:
                del self._asking[route]
        if wait_s:
            if len(self._limited) >= _LIMITED_MAX:
                self._limited.clear()  # Harmless: each tenant is then asked about again.
            self._limited[delivery.tenant] = asyncio.get_running_loop().time() + wait_s
        return not wait_s


def _span(tracing: Tracing, delivery: Delivery) -> AbstractContextManager[DeliverySpan]:
    return tracing.webhook(
        KIND,
        trace_parent=delivery.trace_parent,
        trace_state=delivery.trace_state,
        host=urlsplit(delivery.url).hostname or "",
        attempt=delivery.attempts + 1,
    )


def body_of(delivery: Delivery, result: Result) -> bytes:
    """Return the body; it is the same on every attempt."""
    return msgspec.json.encode(
        Callback(
            task_id=delivery.task_id,
            event_type=delivery.command,
            status=result.status,
            result=Raw(result.body.encode()) if result.body else _NOTHING,
            error=result.error,
            artifacts=[{"name": each.name, "url": each.url} for each in result.artifacts] or None,
            completed_at=rfc3339(result.completed_ms),
            tags=dict(delivery.tags) or UNSET,
            metadata=Raw(delivery.metadata.encode()) if delivery.metadata else UNSET,
        )
    )
