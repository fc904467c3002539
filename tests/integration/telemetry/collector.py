"""Collector: a real OTLP collector on a socket, by HTTP or gRPC, that keeps its spans."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import grpc
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.serving import served

WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One received span.

    Attributes:
        node: The node that made it.
        links: Span ids.
    """

    name: str
    node: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, str | int]
    links: tuple[str, ...]
    failed: bool


class Collector:
    """Answers exports.

    Attributes:
        spans: All received spans, in order.
        headers: Headers of the last export.
        open: No export is answered while it is not set.
    """

    def __init__(self) -> None:
        self.spans: list[Seen] = []
        self.headers: dict[str, str] = {}
        self.open = asyncio.Event()
        self.open.set()
        self.url = ""
        self._came = asyncio.Condition()
        self._server = AsyncExitStack()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/v1/traces", self._export)
        self.url = await self._server.enter_async_context(served(app))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.open.set()
        await self._server.aclose()

    async def until(self, enough: Callable[[Sequence[Seen]], object]) -> list[Seen]:
        """Wait until the spans meet a condition, and return them."""
        async with asyncio.timeout(WITHIN_S), self._came:
            await self._came.wait_for(lambda: bool(enough(self.spans)))
        return list(self.spans)

    async def asked(self) -> None:
        """Wait until an export has arrived, answered or not."""
        async with asyncio.timeout(WITHIN_S), self._came:
            await self._came.wait_for(lambda: bool(self.headers))

    async def _export(self, request: web.Request) -> web.Response:
        message = ExportTraceServiceRequest.FromString(await request.read())
        headers = {name.lower(): value for name, value in request.headers.items()}
        await self.keep(message, headers)
        return web.Response(
            body=ExportTraceServiceResponse().SerializeToString(),
            content_type="application/x-protobuf",
        )

    async def keep(self, message: ExportTraceServiceRequest, headers: dict[str, str]) -> None:
        """Keep the spans of an export, once the collector is open."""
        async with self._came:
            self.headers = headers
            self._came.notify_all()
        await self.open.wait()
        async with self._came:
            for resource in message.resource_spans:
                node = str(_plain(resource.resource.attributes)["service.instance.id"])
                for scope in resource.scope_spans:
                    self.spans.extend(_seen(span, node) for span in scope.spans)
            self._came.notify_all()


class _GrpcService(TraceServiceServicer):  # type: ignore[misc]
    """Takes exports on gRPC's threads, and passes them to the collector on its loop."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._loop = asyncio.get_running_loop()

    def Export(  # noqa: N802 - gRPC's name
        self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> ExportTraceServiceResponse:
        """Answer when the spans are kept."""
        headers = {str(each.key): str(each.value) for each in context.invocation_metadata()}
        kept = asyncio.run_coroutine_threadsafe(self._collector.keep(request, headers), self._loop)
        kept.result(WITHIN_S)
        return ExportTraceServiceResponse()


@asynccontextmanager
async def collecting_by_grpc(
    pair: tuple[bytes, bytes] | None = None,
) -> AsyncIterator[Collector]:
    """Run a collector that speaks gRPC.

    Args:
        pair: Key and certificate (PEM) to speak TLS with.
    """
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(_GrpcService(collector), server)
    if pair is None:
        port = server.add_insecure_port("127.0.0.1:0")
        collector.url = f"http://127.0.0.1:{port}"
    else:
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
        collector.url = f"https://127.0.0.1:{port}"
    server.start()
    try:
        yield collector
    finally:
        collector.open.set()
        ended = server.stop(grace=None)
        await asyncio.to_thread(ended.wait)


def _seen(span: Span, node: str) -> Seen:
    return Seen(
        name=span.name,
        node=node,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        attributes=_plain(span.attributes),
        links=tuple(link.span_id.hex() for link in span.links),
        failed=span.status.code == Status.STATUS_CODE_ERROR,
    )


def _plain(pairs: Sequence[KeyValue]) -> dict[str, str | int]:
    return {
        pair.key: pair.value.int_value
        if pair.value.HasField("int_value")
        else pair.value.string_value
        for pair in pairs
    }
