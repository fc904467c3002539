"""Tracing: the interface by which layers report the path of a request; None if tracing is off.

Every layer holds a `Tracing` or None and checks it first. So a node without a collector pays for
one comparison and never loads the library. The current span is kept in the context of the request's
asyncio task: layers need not pass it on, except between nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from codeq_cluster.settings import TracingSettings


class ServerSpan(Protocol):
    """The span of a request being answered."""

    def answered(self, status: int, request_id: str) -> None:
        """Record the answer's status and the request's id."""


class Carrier(Protocol):
    """A span that another process continues, in W3C Trace Context format."""

    @property
    def trace_parent(self) -> str:
        """The header `traceparent`."""

    @property
    def trace_state(self) -> str:
        """The header `tracestate`, empty for none."""


class DeliverySpan(Carrier, Protocol):
    """An attempt to deliver a webhook."""

    def answered(self, status: int) -> None:
        """Record the status of the receiver's answer."""

    def unanswered(self) -> None:
        """Record that no answer came."""


class Tracing(Protocol):
    """Makes the spans of one node. No call blocks, and none raises for a stranger's input."""

    def serving(
        self, method: str, route: str, headers: Mapping[str, str]
    ) -> AbstractContextManager[ServerSpan]:
        """Open a request's span for the block, as a child of the caller's span if it names one.

        Args:
            method: Of the request.
            route: Its pattern, never its path.
            headers: Of the request; names in any case.
        """

    def current(self) -> tuple[str, str]:
        """Return `traceparent` and `tracestate` of the current span, empty without one."""

    def claimed(
        self, trace_parent: str, trace_state: str, *, task_id: str, command: str, attempt: int
    ) -> None:
        """Record in a task's own trace that the current request has claimed it."""

    def forward(
        self, method: str, *, shard: int, peer: str
    ) -> AbstractContextManager[Carrier | None]:
        """Open a span for a call to another node within the block; None if not sampled."""

    def carried(self, trace_parent: str, trace_state: str) -> AbstractContextManager[object]:
        """Continue another node's span within the block."""

    def commit(
        self, *, shard: int, term: int, ordinal: int, operations: int
    ) -> AbstractContextManager[object]:
        """Open a span for the block's wait until the current request's decisions are applied.

        Args:
            shard: Its number.
            term: Of the entry; with the ordinal it identifies the entry and the requests that share
                it.
            ordinal: Of the entry within the leadership.
            operations: Of this request in it.
        """

    def webhook(
        self, kind: str, *, trace_parent: str, trace_state: str, host: str, attempt: int
    ) -> AbstractContextManager[DeliverySpan]:
        """Open a span for the webhook sent within the block, in its task's trace.

        Args:
            kind: Of the delivery, as the metrics name it.
            trace_parent: Stored with the task, empty for none: the span then begins a trace.
            trace_state: Stored beside it.
            host: Of the receiver; a path or a query may hold a secret.
            attempt: From 1.
        """

    async def stop(self) -> None:
        """Send the remaining spans within two seconds, then make no more."""


def start_tracing(settings: TracingSettings, *, node_id: str) -> Tracing | None:
    """Return the maker of spans, or None if no collector is configured."""
    if not settings.otlp_endpoint:
        return None
    # Imported only if needed: it takes time and memory, and loads further libraries.
    from codeq_cluster.telemetry.spans import Spans  # noqa: PLC0415

    return Spans(settings, node_id=node_id)
