"""Tracing: what the layers tell of a request's way; off, there is nobody to tell.

Every layer holds a `Tracing` or None and asks which before it says anything, so that a node without
a collector pays for one comparison, and never loads the library. Where a request is on its way is
kept in the context of its asyncio task: no layer hands it to the next, but between nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from codeq_cluster.settings import TracingSettings


class ServerSpan(Protocol):
    """A request being answered."""

    def answered(self, status: int, request_id: str) -> None:
        """Note the answer's status and the request's id."""


class Carrier(Protocol):
    """A span another process continues: what it must be sent, as W3C Trace Context has it."""

    @property
    def trace_parent(self) -> str:
        """The header `traceparent`."""

    @property
    def trace_state(self) -> str:
        """The header `tracestate`, empty for none."""


class DeliverySpan(Carrier, Protocol):
    """An attempt to deliver a webhook."""

    def answered(self, status: int) -> None:
        """Note the status of the receiver's answer."""

    def unanswered(self) -> None:
        """Note that no answer came."""


class Tracing(Protocol):
    """Makes the spans of one node. No call blocks, and none raises for what a stranger sent."""

    def serving(
        self, method: str, route: str, headers: Mapping[str, str]
    ) -> AbstractContextManager[ServerSpan]:
        """Serve a request within the block, as a child of the caller's span if it names one.

        Args:
            method: Of the request.
            route: Its pattern, never its path.
            headers: Of the request; names in any case.
        """

    def current(self) -> tuple[str, str]:
        """Return `traceparent` and `tracestate` of the span served here, empty without one."""

    def claimed(
        self, trace_parent: str, trace_state: str, *, task_id: str, command: str, attempt: int
    ) -> None:
        """Note in a task's own trace that the request served here has claimed it."""

    def forward(
        self, method: str, *, shard: int, peer: str
    ) -> AbstractContextManager[Carrier | None]:
        """Call another node within the block; None when there is nothing to carry along."""

    def carried(self, trace_parent: str, trace_state: str) -> AbstractContextManager[object]:
        """Do within the block what another node's span asked for."""

    def commit(
        self, *, shard: int, term: int, ordinal: int, operations: int
    ) -> AbstractContextManager[object]:
        """Wait within the block until what was decided for the current request is applied.

        Args:
            shard: Which one.
            term: Of the entry; with the ordinal it names it, and tells who shared it.
            ordinal: Of the entry within the reign.
            operations: Of this request in it.
        """

    def webhook(
        self, kind: str, *, trace_parent: str, trace_state: str, host: str, attempt: int
    ) -> AbstractContextManager[DeliverySpan]:
        """Send a webhook within the block, in the trace of its task.

        Args:
            kind: Of the delivery, as the metrics name it.
            trace_parent: Stored with the task, empty for none: the span then begins a trace.
            trace_state: Stored beside it.
            host: Of the receiver; a path or a query may hold a secret.
            attempt: From 1.
        """

    async def stop(self) -> None:
        """Send what is left within two seconds, then make no more spans."""


def start_tracing(settings: TracingSettings, *, node_id: str) -> Tracing | None:
    """Begin to make spans, or return None when there is no collector to send them to."""
    if not settings.otlp_endpoint:
        return None
    # Loaded only where it is wanted: it takes time and memory, and brings libraries along.
    from codeq_cluster.telemetry.spans import Spans  # noqa: PLC0415

    return Spans(settings, node_id=node_id)
