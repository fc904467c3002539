"""Sink: the receiver of webhooks, which fails now and then until it is told not to."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import random
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import web

from jepsen_lite.client import content_of
from jepsen_lite.history import Args, F, Out, Recorder, Type

PORT = 9000
# Of calls, while it may fail: answered 500, or not before this long.
_REFUSED = 0.2
_SLOW = 0.05
_SLOW_S = 2.0


class Sink:
    """Listens on the harness's address and records every call; an async context manager."""

    def __init__(self, address: str, recorder: Recorder, *, secret: str, seed: int) -> None:
        self.url = f"http://{address}:{PORT}/hook"
        self.fails = True
        self.told: set[str] = set()
        self._address = address
        self._recorder = recorder
        self._secret = secret
        self._random = random.Random(f"{seed}/sink")
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        application = web.Application()
        application.router.add_post("/hook", self._called)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._address, PORT).start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _called(self, request: web.Request) -> web.Response:
        raw = await request.read()
        body: dict[str, Any] = msgspec.json.decode(raw)
        draw = self._random.random() if self.fails else 1.0
        status = 500 if draw < _REFUSED else 200
        if _REFUSED <= draw < _REFUSED + _SLOW:
            await asyncio.sleep(_SLOW_S)
        completed = body.get("status") == "COMPLETED"
        content = content_of(body.get("result")) if completed else str(body.get("error", ""))
        task = str(body["taskId"])
        self._recorder.record(
            "sink",
            F.DELIVERY,
            Type.INFO,
            args=Args(task=task, status=str(body["status"]), content=content),
            out=Out(
                http=status,
                delivery=request.headers.get("X-CodeQ-Delivery", ""),
                signed=self._signed(request, raw),
            ),
        )
        if status == 200:
            self.told.add(task)
        return web.Response(status=status)

    def _signed(self, request: web.Request, raw: bytes) -> bool:
        stamp = request.headers.get("X-CodeQ-Timestamp", "")
        text = stamp.encode() + b"." + raw
        good = hmac.new(self._secret.encode(), text, hashlib.sha256).hexdigest()
        return hmac.compare_digest(good, request.headers.get("X-CodeQ-Signature", ""))
