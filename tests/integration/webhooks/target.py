"""Target: a real HTTP server for webhooks, and a sender that may reach it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web

from codeq_cluster.settings import Unsigned, WebhookSettings
from codeq_cluster.webhooks.circuit_breaker import CircuitBreaker
from codeq_cluster.webhooks.http_client import Sender
from codeq_cluster.webhooks.ssrf_guard.targets import Lookup

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Heard:
    """One request as it arrived; `peer` is the sender's end of the connection."""

    path: str
    headers: dict[str, str]
    body: bytes
    peer: tuple[str, int]


@dataclass(slots=True)
class Listener:
    """A target.

    Attributes:
        url: Its base URL, without a slash at the end.
        heard: Requests in the order of their arrival.
    """

    url: str = ""
    port: int = 0
    heard: list[Heard] = field(default_factory=list)
    _arrival: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def arrived(self, count: int) -> None:
        """Wait until `count` requests have arrived."""
        async with self._arrival:
            await self._arrival.wait_for(lambda: len(self.heard) >= count)

    async def _hear(self, request: web.Request) -> None:
        assert request.transport is not None
        self.heard.append(
            Heard(
                request.path,
                dict(request.headers),
                await request.read(),
                request.transport.get_extra_info("peername")[:2],
            )
        )
        async with self._arrival:
            self._arrival.notify_all()


async def fine(request: web.Request) -> web.StreamResponse:
    """Answer 200."""
    return web.Response(text="thank you")


@contextlib.asynccontextmanager
async def listening(
    handler: Handler = fine, *, tls: ssl.SSLContext | None = None, address: str = "127.0.0.1"
) -> AsyncIterator[Listener]:
    """Run a target on loopback until the end of the block.

    At 0.0.0.0 it is as many hosts as loopback has addresses.
    """
    listener = Listener()

    async def serve(request: web.Request) -> web.StreamResponse:
        await listener._hear(request)
        return await handler(request)

    app = web.Application(client_max_size=8 * 2**20)
    app.router.add_route("*", "/{path:.*}", serve)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, address, 0, ssl_context=tls).start()
    listener.port = runner.addresses[0][1]
    listener.url = f"{'https' if tls else 'http'}://127.0.0.1:{listener.port}"
    try:
        yield listener
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def sending(
    settings: WebhookSettings | None = None,
    *,
    lookup: Lookup | None = None,
    breaker: CircuitBreaker | None = None,
) -> AsyncIterator[Sender]:
    """Run a sender, by default one that may reach loopback."""
    unsigned = WebhookSettings(allow_private=True, unsigned=Unsigned.ALLOW)
    sender = Sender(settings or unsigned, lookup=lookup, breaker=breaker)
    await sender.start()
    try:
        yield sender
    finally:
        await sender.stop()
