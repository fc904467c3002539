"""Health: whether a worker reaches its broker, for the supervisor of its process."""

from __future__ import annotations

import time
from typing import Self

from aiohttp import web


class Health:
    """The state of the worker's claims, served at `/healthz`; an async context manager.

    It fails when a claim has had no answer for too long. A full worker makes no claims and is
    healthy.
    """

    def __init__(self, *, host: str, port: int | None, silent_s_max: float) -> None:
        """Prepare it.

        Args:
            host: The address to listen on.
            port: The port to listen on; 0 for any free one, None serves nothing.
            silent_s_max: How long a claim may go without an answer, its repetitions included.
        """
        self._host = host
        self._port = port
        self._silent_s_max = silent_s_max
        self._claiming_since_s: float | None = None
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """The port it listens on, once entered."""
        assert self._runner is not None
        return int(self._runner.addresses[0][1])

    def claiming(self) -> None:
        """Note that a claim begins."""
        self._claiming_since_s = time.monotonic()

    def claimed(self) -> None:
        """Note that a claim was answered."""
        self._claiming_since_s = None

    @property
    def silent_s(self) -> float:
        """How long the current claim has had no answer, in seconds; 0 if there is none."""
        since_s = self._claiming_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    async def __aenter__(self) -> Self:
        if self._port is not None:
            app = web.Application()
            app.router.add_get("/healthz", self._answer)
            self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
            await self._runner.setup()
            await web.TCPSite(self._runner, self._host, self._port).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, _: web.Request) -> web.Response:
        silent_s = self.silent_s
        ok = silent_s <= self._silent_s_max
        body = {"status": "ok" if ok else "no claim is answered", "silentSeconds": round(silent_s)}
        return web.json_response(body, status=200 if ok else 503)
