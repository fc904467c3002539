"""Spans: tracing by OpenTelemetry's SDK; the one module that knows it.

Ended spans wait in a queue of bounded length for a thread of the SDK that sends them. If the
collector is away or slow, the queue overflows and spans are lost; requests never wait for it. Only
the class name of an exception is recorded: its text may hold users' data.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Self

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Link, Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from codeq_cluster import __version__
from codeq_cluster.settings import TracingSettings
from codeq_cluster.telemetry.exporters import LOGS, exporter_of

log = logging.getLogger(__name__)

FLUSH_S = 2.0  # A stopping node waits this long for the collector.
_QUEUE_MAX = 10_000  # Spans of about a kilobyte each.
_BATCH_MAX = 512
_PAUSE_MS = 1000
_COMPLAINT_S = 60.0  # Between two log lines about a collector that is away.
_ERROR_FROM = 500
_ACCEPTED = range(200, 300)

_STATE_LOGS = "opentelemetry.trace.span"  # It quotes a bad `tracestate`: a stranger's text.
_PROPAGATOR = TraceContextTextMapPropagator()
_NOTHING: AbstractContextManager[None] = nullcontext()


class Spans:
    """The spans of one node, and their way to the collector.

    No call blocks, and none raises for a stranger's input.

    Args:
        settings: With an endpoint.
        node_id: Added to every span.
    """

    def __init__(self, settings: TracingSettings, *, node_id: str) -> None:
        _complain_seldom(LOGS[settings.otlp_protocol])
        self._exporter = exporter_of(settings)
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(settings.sample_ratio)),
            resource=Resource.create(
                {
                    "service.name": settings.service_name,
                    "service.version": __version__,
                    "service.instance.id": node_id,
                }
            ),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                self._exporter,
                max_queue_size=_QUEUE_MAX,
                schedule_delay_millis=_PAUSE_MS,
                max_export_batch_size=_BATCH_MAX,
            )
        )
        self._tracer = self._provider.get_tracer("codeq_cluster", __version__)

    def serving(self, method: str, route: str, headers: Mapping[str, str]) -> _Current:
        """Open a request's span for the block, as a child of the caller's span if it names one.

        Args:
            route: Its pattern, never its path.
            headers: Of the request; names in any case.
        """
        span = self._tracer.start_span(
            f"{method} {route}",
            _context(headers.get("traceparent", ""), headers.get("tracestate", "")),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "http.route": route},
        )
        return _Current(span)

    def current(self) -> tuple[str, str]:
        """Return `traceparent` and `tracestate` of the current span, empty without one."""
        span = trace.get_current_span()
        if not span.get_span_context().is_valid:
            return "", ""
        return _trace_parent(span), _trace_state(span)

    def claimed(
        self, trace_parent: str, trace_state: str, *, task_id: str, command: str, attempt: int
    ) -> None:
        """Record in a task's own trace that the current request has claimed it."""
        serving = trace.get_current_span()
        span = self._tracer.start_span(
            "claim",
            _context(trace_parent, trace_state),
            kind=SpanKind.CONSUMER,
            attributes={
                "codeq.task.id": task_id,
                "codeq.command": command,
                "codeq.attempt": attempt,
            },
            # The request is the worker's, and may belong to a trace of its own.
            links=[Link(serving.get_span_context())],
            start_time=serving.start_time if isinstance(serving, ReadableSpan) else None,
        )
        span.end()

    def forward(
        self, method: str, *, shard: int, peer: str
    ) -> AbstractContextManager[_Current | None]:
        """Open a span for a call to another node within the block; None if not sampled."""
        if not _sampled():
            return _NOTHING
        span = self._tracer.start_span(
            "forward",
            kind=SpanKind.CLIENT,
            attributes={"rpc.method": method, "codeq.shard": shard, "codeq.peer": peer},
        )
        return _Current(span)

    def carried(self, trace_parent: str, trace_state: str) -> _Attached:
        """Continue another node's span within the block."""
        return _Attached(_context(trace_parent, trace_state))

    def commit(
        self, *, shard: int, term: int, ordinal: int, operations: int
    ) -> AbstractContextManager[object]:
        """Open a span for the block's wait until the current request's decisions are applied.

        Args:
            term: Of the entry; with the ordinal it identifies the entry and the requests that share
                it.
            ordinal: Of the entry within the leadership.
            operations: Of this request in it.
        """
        if not _sampled():
            return _NOTHING
        span = self._tracer.start_span(
            "commit",
            attributes={
                "codeq.shard": shard,
                "codeq.entry.term": term,
                "codeq.entry.ordinal": ordinal,
                "codeq.operations": operations,
            },
        )
        return _Current(span)

    def webhook(
        self, kind: str, *, trace_parent: str, trace_state: str, host: str, attempt: int
    ) -> DeliverySpan:
        """Open a span for the webhook sent within the block, in its task's trace.

        Args:
            kind: Of the delivery, as the metrics name it.
            trace_parent: Stored with the task, empty for none: the span then begins a trace.
            trace_state: Stored beside it.
            host: Of the receiver; a path or a query may hold a secret.
            attempt: From 1.
        """
        span = self._tracer.start_span(
            "webhook",
            _context(trace_parent, trace_state),
            kind=SpanKind.CLIENT,
            attributes={
                "http.request.method": "POST",
                "server.address": host,
                "codeq.webhook.kind": kind,
                "codeq.attempt": attempt,
            },
        )
        return DeliverySpan(span)

    async def stop(self) -> None:
        """Send the remaining spans within two seconds, then make no more."""
        loop = asyncio.get_running_loop()
        sent = asyncio.Event()

        def flush() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # The loop has ended: no caller waits any more.
                loop.call_soon_threadsafe(sent.set)

        # In a daemon thread: the SDK would wait for the collector longer than the node does.
        threading.Thread(target=flush, name="last spans", daemon=True).start()
        try:
            async with asyncio.timeout(FLUSH_S):
                await sent.wait()
        except TimeoutError:
            self._exporter.shutdown()
            log.warning("the last spans were not sent", extra={"waited_s": FLUSH_S})


class _Attached:
    """Makes a context the current one for new spans, within the block."""

    __slots__ = ("_context", "_token")

    def __init__(self, context: Context) -> None:
        self._context = context

    def __enter__(self) -> Self:
        self._token = attach(self._context)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        detach(self._token)


class _Current(_Attached):
    """Makes a span the parent of new ones within the block, and ends it with the block."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        super().__init__(trace.set_span_in_context(span))
        self._span = span

    @property
    def trace_parent(self) -> str:
        """The header `traceparent` of a call that continues the span."""
        return _trace_parent(self._span)

    @property
    def trace_state(self) -> str:
        """The header `tracestate` beside it."""
        return _trace_state(self._span)

    def answered(self, status: int, request_id: str = "") -> None:
        """Record the answer's status and the request's id."""
        self._span.set_attribute("http.response.status_code", status)
        if request_id:
            self._span.set_attribute("codeq.request_id", request_id)
        if status >= _ERROR_FROM:
            self._span.set_status(StatusCode.ERROR)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        super().__exit__(kind)
        if kind is not None:
            self._span.set_attribute("error.type", kind.__name__)
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


class DeliverySpan(_Current):
    """An attempt to deliver a webhook."""

    __slots__ = ()

    def answered(self, status: int, request_id: str = "") -> None:
        """Record the status of the receiver's answer."""
        super().answered(status, request_id)
        if status not in _ACCEPTED:
            self._span.set_status(StatusCode.ERROR)

    def unanswered(self) -> None:
        """Record that no answer came."""
        self._span.set_attribute("error.type", "no answer")
        self._span.set_status(StatusCode.ERROR)


class _Seldom(logging.Filter):
    """Passes one line a minute: a collector that is away is one event, not one per batch."""

    def __init__(self) -> None:
        super().__init__()
        self._next_s = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is passed."""
        del record
        now_s = time.monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + _COMPLAINT_S
        return True


def _complain_seldom(name: str) -> None:
    logs = logging.getLogger(name)
    if not any(isinstance(each, _Seldom) for each in logs.filters):
        logs.addFilter(_Seldom())
    logging.getLogger(_STATE_LOGS).setLevel(logging.ERROR)


def _context(trace_parent: str, trace_state: str) -> Context:
    """Return the context of a remote span; an empty one if the texts name none."""
    if not trace_parent:
        return Context()
    return _PROPAGATOR.extract(
        {"traceparent": trace_parent, "tracestate": trace_state}, context=Context()
    )


def _sampled() -> bool:
    return trace.get_current_span().get_span_context().trace_flags.sampled


def _trace_parent(span: Span) -> str:
    at = span.get_span_context()
    return f"00-{at.trace_id:032x}-{at.span_id:016x}-{at.trace_flags:02x}"


def _trace_state(span: Span) -> str:
    return span.get_span_context().trace_state.to_header()
