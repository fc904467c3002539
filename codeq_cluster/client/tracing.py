"""Tracing: spans by OpenTelemetry's API; they have no effect in a program without its SDK."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from codeq_cluster import __version__

_TRACER: Final = trace.get_tracer("codeq_cluster.client", __version__)
_PROPAGATOR: Final = TraceContextTextMapPropagator()


def inject(headers: dict[str, str]) -> None:
    """Add the headers with which the broker continues the current span."""
    _PROPAGATOR.inject(headers)


def creating(command: str, *, count: int = 1) -> AbstractContextManager[Span]:
    """Create tasks within the block; their handlers continue its trace."""
    return _TRACER.start_as_current_span(
        f"create {command}",
        kind=SpanKind.PRODUCER,
        attributes={
            "messaging.system": "codeq",
            "messaging.operation.type": "create",
            "messaging.destination.name": command,
            "messaging.batch.message_count": count,
        },
    )


def handling(
    command: str, *, task_id: str, attempt: int, trace_parent: str, trace_state: str
) -> AbstractContextManager[Span]:
    """Handle a task within the block, in the trace of the span that created it."""
    return _TRACER.start_as_current_span(
        f"process {command}",
        context=_PROPAGATOR.extract({"traceparent": trace_parent, "tracestate": trace_state}),
        kind=SpanKind.CONSUMER,
        attributes={
            "messaging.system": "codeq",
            "messaging.operation.type": "process",
            "messaging.destination.name": command,
            "messaging.message.id": task_id,
            "codeq.attempt": attempt,
        },
    )
