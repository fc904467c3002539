"""Tracing: the spans of producers and workers are one trace."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from codeq_cluster.client import Fail, NewTask, Task
from codeq_cluster.testing.broker import LocalBroker


@pytest.fixture(scope="module")
def spans() -> InMemorySpanExporter:
    """Set OpenTelemetry up as a program with an SDK does; it allows that once per process."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


def _named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    [span] = [each for each in spans.get_finished_spans() if each.name == name]
    return span


async def test_a_handler_continues_the_trace_of_its_producer(
    broker: LocalBroker, spans: InMemorySpanExporter
) -> None:
    """The handler's own spans belong to the trace, and the broker stores its context."""
    tracer = trace.get_tracer("test")
    worker = broker.worker()

    @worker.task("traced")
    def handler(task: Task[int]) -> None:
        with tracer.start_as_current_span("work"):
            assert 1 == task.attempt

    async with broker.client() as client:
        with tracer.start_as_current_span("request"):
            made = await client.create("traced", 1)
        await worker.serve(tasks_max=1)
    request, created = _named(spans, "request"), _named(spans, "create traced")
    handled, work = _named(spans, "process traced"), _named(spans, "work")

    assert (SpanKind.PRODUCER, SpanKind.CONSUMER) == (created.kind, handled.kind)
    for child, parent in ((created, request), (handled, created), (work, handled)):
        assert child.parent is not None
        assert parent.get_span_context().span_id == child.parent.span_id
    assert handled.attributes is not None
    assert made.id == handled.attributes["messaging.message.id"]
    assert "completed" == handled.attributes["codeq.ending"]
    assert handled.status.status_code is not StatusCode.ERROR


async def test_a_delivery_that_fails_is_an_error_in_its_trace(
    broker: LocalBroker, spans: InMemorySpanExporter
) -> None:
    """The handler's text is left out, since it may be private. Several attempts are one span."""
    worker = broker.worker()

    @worker.task("traced-failure")
    async def handler(_: Task[int]) -> None:
        raise Fail("a secret")

    async with broker.client() as client:
        await client.create_many([NewTask("traced-failure", 1)])
        await worker.serve(tasks_max=1)
    handled, created = _named(spans, "process traced-failure"), _named(spans, "create batch")

    assert handled.parent is not None
    assert created.get_span_context().span_id == handled.parent.span_id
    assert handled.status.status_code is StatusCode.ERROR
    assert "a secret" not in handled.to_json()
