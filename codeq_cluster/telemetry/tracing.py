"""Tracing: the path of a request through the layers; None if tracing is off.

Every layer holds a `Tracing` or None and checks it first. So a node without a collector pays for
one comparison and never loads the library. The current span is kept in the context of the request's
asyncio task: layers need not pass it on, except between nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from codeq_cluster.settings import TracingSettings

if TYPE_CHECKING:
    from codeq_cluster.telemetry import spans

Tracing: TypeAlias = "spans.Spans"
DeliverySpan: TypeAlias = "spans.DeliverySpan"


def start_tracing(settings: TracingSettings, *, node_id: str) -> Tracing | None:
    """Return the maker of spans, or None if no collector is configured."""
    if not settings.otlp_endpoint:
        return None
    # Imported only if needed: it takes time and memory, and loads further libraries.
    from codeq_cluster.telemetry.spans import Spans  # noqa: PLC0415

    return Spans(settings, node_id=node_id)
