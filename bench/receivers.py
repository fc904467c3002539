"""Receivers: a server that stands for many hosts of loopback, of which some are slow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

import msgspec
from aiohttp import web

from bench.steady import Request

SLOW_HOSTS = 40  # With four calls each, more than a node's 64.
_LATE_S_MAX = 30.0
_SLOW_S = 12.0  # Below the nodes' timeout, so that no circuit opens.


class _Ended(msgspec.Struct, rename="camel"):
    completed_at: datetime


class Receivers:
    """The webhooks of swift and of slow hosts.

    Attributes:
        callbacks: Of the swift hosts: when the task ended, and the time until the callback came.
    """

    def __init__(self) -> None:
        self.swift: list[str] = []
        self.slow: list[str] = []
        self.callbacks: list[Request] = []

    def listen(self, port: int) -> None:
        """Name the webhooks by the server's port."""
        self.swift = [f"http://127.0.0.1:{port}/swift"]
        self.slow = [f"http://127.0.1.{host}:{port}/slow" for host in range(1, SLOW_HOSTS + 1)]

    async def serve(self, request: web.Request) -> web.Response:
        """Take a callback; a slow host answers late."""
        body = await request.read()
        if request.path == "/slow":
            await asyncio.sleep(_SLOW_S)
        else:
            ended = msgspec.json.decode(body, type=_Ended).completed_at.timestamp()
            took_ms = round((time.time() - ended) * 1000, 2)
            self.callbacks.append(Request("callback", time.monotonic() - took_ms / 1000, took_ms))
        return web.Response()

    async def of_tasks_ended(self, from_s: float, to_s: float, *, count: int) -> list[Request]:
        """Return the callbacks of tasks that ended in a time, once there are `count`.

        Late ones are waited for, so that they count; after a while, those that came are returned.
        """
        give_up_s = time.monotonic() + _LATE_S_MAX
        while True:
            found = [each for each in self.callbacks if from_s <= each.ended_s < to_s]
            if len(found) >= count or time.monotonic() > give_up_s:
                return found
            await asyncio.sleep(0.1)


@asynccontextmanager
async def receiving() -> AsyncIterator[Receivers]:
    """Serve until the end of the block."""
    receivers = Receivers()
    app = web.Application()
    app.router.add_post("/{path}", receivers.serve)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "0.0.0.0", 0).start()
        receivers.listen(runner.addresses[0][1])
        yield receivers
    finally:
        await runner.cleanup()
