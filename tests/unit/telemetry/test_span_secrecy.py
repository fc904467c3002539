"""Span secrecy: a stranger's text in a trace header reaches no log."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from codeq_cluster.settings import TracingSettings
from codeq_cluster.telemetry.spans import Spans

NOT_SAMPLED = "00-" + "a" * 32 + "-" + "b" * 16 + "-00"


@pytest.fixture
async def spans() -> AsyncIterator[Spans]:
    """Yield a maker of spans that sends none."""
    made = Spans(TracingSettings(otlp_endpoint="http://127.0.0.1:1"), node_id="n1")
    yield made
    await made.stop()


@pytest.mark.parametrize(
    "state", ["turnip", "k=turnip\udcff", "k=" + "turnip" * 1000, "k=turnip,k=turnip"]
)
async def test_an_invalid_trace_state_is_not_repeated_in_the_log(
    spans: Spans, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    """The span is made before the token is verified: the text may be any stranger's."""
    caplog.set_level(logging.DEBUG)

    with spans.serving("GET", "/r", {"traceparent": NOT_SAMPLED, "tracestate": state}):
        parent, kept = spans.current()

    assert parent.startswith("00-" + "a" * 32)
    assert "turnip" not in caplog.text
    assert "\udcff" not in kept
