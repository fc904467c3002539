"""Sink: the receiver of webhooks, which fails now and then until it is told to stop."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import random
import socket
import struct
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import web

from jepsen_lite.asking import content_of
from jepsen_lite.history import Args, F, Out, Recorder, Type

PORT = 9000
# While it may fail: the share of calls answered with 500, and the longest delay of an answer.
_REFUSED = 0.2
_SLOW = 0.05
_SLOW_S = 2.0


class SinkFault(StrEnum):
    """A sink's treatment of every call."""

    NONE = ""
    ERROR = "500"
    SLOW = "slow"
    HANG = "hang"
    RESET = "reset"
    REFUSE = "refuse"


class Sink:
    """Listens on the harness's address and records every call; an async context manager.

    Attributes:
        struck: Calls affected by a fault; a refused connection is not seen here.
    """

    def __init__(self, address: str, recorder: Recorder, *, secret: str, seed: int) -> None:
        self.url = f"http://{address}:{PORT}/hook"
        self.fails = True
        self.told: set[str] = set()
        self.struck = 0
        self._fault = SinkFault.NONE
        self._over = asyncio.Event()
        self._address = address
        self._recorder = recorder
        self._secret = secret
        self._random = random.Random(f"{seed}/sink")
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None

    async def __aenter__(self) -> Self:
        application = web.Application()
        application.router.add_post("/hook", self._called)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        await self._listen()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._runner is not None
        self._over.set()
        await self._runner.cleanup()

    async def begin(self, fault: SinkFault) -> None:
        """Treat every call with this fault from now on."""
        self._fault = fault
        self._over.clear()
        if fault is SinkFault.REFUSE and self._site is not None:
            await self._site.stop()
            self._site = None

    async def end(self) -> None:
        """Take calls normally again; hanging calls end without an answer."""
        self._fault = SinkFault.NONE
        self._over.set()
        await self._listen()

    async def _listen(self) -> None:
        if self._site is None:
            assert self._runner is not None
            self._site = web.TCPSite(self._runner, self._address, PORT)
            await self._site.start()

    async def _called(self, request: web.Request) -> web.Response:
        raw = await request.read()
        body: dict[str, Any] = msgspec.json.decode(raw)
        status = await self._status(request)
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
        return web.Response(status=status or 500)

    async def _status(self, request: web.Request) -> int:
        """Return the status for a call, once it may be answered; 0 for no answer."""
        fault = self._fault
        self.struck += fault is not SinkFault.NONE
        match fault:
            case SinkFault.ERROR:
                return 500
            case SinkFault.SLOW:
                await asyncio.sleep(_SLOW_S)
                return 200
            case SinkFault.HANG:
                await self._over.wait()
                _abort(request)
                return 0
            case SinkFault.RESET | SinkFault.REFUSE:
                # A refusing sink must also refuse calls on connections that are already open.
                _abort(request)
                return 0
        draw = self._random.random() if self.fails else 1.0
        if _REFUSED <= draw < _REFUSED + _SLOW:
            await asyncio.sleep(_SLOW_S)
        return 500 if draw < _REFUSED else 200

    def _signed(self, request: web.Request, raw: bytes) -> bool:
        # The receiver's own derivation (RFC 5869) of the key of the tenant of every task.
        drawn = hmac.digest(bytes(32), self._secret.encode(), hashlib.sha256)
        about = b"codeq-cluster webhook key, tenant _, version 1\x01"
        derived = base64.urlsafe_b64encode(hmac.digest(drawn, about, hashlib.sha256))
        key = b"cqwh_" + derived.rstrip(b"=")
        stamp = request.headers.get("X-CodeQ-Timestamp", "")
        text = stamp.encode() + b"." + raw
        good = hmac.new(key, text, hashlib.sha256).hexdigest()
        return hmac.compare_digest(good, request.headers.get("X-CodeQ-Signature", ""))


def _abort(request: web.Request) -> None:
    """End a connection with a reset."""
    if request.transport is not None:
        reset = struct.pack("ii", 1, 0)
        connection = request.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        request.transport.abort()
