"""Exporters: how spans get to the collector. Each protocol loads only its own libraries.

Those of gRPC take 18 MiB, those of HTTP 10; neither needs the other.
"""

from __future__ import annotations

from urllib.parse import unquote

from opentelemetry.sdk.trace.export import SpanExporter

from codeq_cluster.settings import OtlpProtocol, TracingSettings

EXPORT_S = 5.0  # Of one export, its retries included.
# The loggers on which the exporters report that the collector cannot be reached.
LOGS = {
    OtlpProtocol.HTTP: "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    OtlpProtocol.GRPC: "opentelemetry.exporter.otlp.proto.grpc.exporter",
}


def exporter_of(settings: TracingSettings) -> SpanExporter:
    """Return the exporter to the collector of these settings."""
    if settings.otlp_protocol is OtlpProtocol.GRPC:
        return _grpc(settings)
    return _http(settings)


def _http(settings: TracingSettings) -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.http import trace_exporter  # noqa: PLC0415

    return trace_exporter.OTLPSpanExporter(
        endpoint=f"{settings.otlp_endpoint.rstrip('/')}/v1/traces",
        headers=_headers(settings.headers),
        timeout=EXPORT_S,
    )


def _grpc(settings: TracingSettings) -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.grpc import trace_exporter  # noqa: PLC0415

    return trace_exporter.OTLPSpanExporter(
        endpoint=settings.otlp_endpoint,
        # Set here, so that no environment variable decides on TLS.
        insecure=settings.otlp_endpoint.startswith("http://"),
        headers=_headers(settings.headers),
        timeout=EXPORT_S,
    )


def _headers(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(",") if part.strip())
    return {name.strip().lower(): unquote(value.strip()) for name, _, value in pairs}
