"""Floor: HTTP servers that do nothing, to measure the cost of the HTTP stack alone."""

from __future__ import annotations

import sys

import uvloop
from aiohttp import web

_ANSWER = (
    b'{"id":"0190a5e0-0000-7000-8000-000000000000","command":"floor","payload":"{}",'
    b'"status":"PENDING","lastKnownLocation":"PENDING_LIST","attempts":0,"maxAttempts":5}'
)


async def _answer(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(body=_ANSWER, content_type="application/json")


async def _serve(port: int) -> None:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", _answer)
    await web._run_app(  # noqa: SLF001 - run_app brings its own loop; this one is uvloop's
        app, host="127.0.0.1", port=port, print=None, access_log=None
    )


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
