"""Floor: HTTP servers that do nothing, to measure the cost of the HTTP stack alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop
from aiohttp import web

from bench.processes import listens, stop, wait_until
from codeq_cluster.settings import environment
from codeq_cluster.testing.ports import free_ports
from tests.harness.servers import Server

_ROOT = Path(__file__).parent.parent

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


@contextmanager
def floors(count: int = 1) -> Iterator[dict[str, int]]:
    """Run `count` such servers, each in its own process; yield their process ids by URL."""
    ports = free_ports(count)
    with TemporaryDirectory(prefix="floor-") as logs:
        servers = [Server(Path(logs) / str(port)) for port in ports]
        try:
            for port, server in zip(ports, servers, strict=True):
                command = [sys.executable, "-m", "bench.floor", str(port)]
                server.start(command, environment(), cwd=_ROOT)
            wait_until(lambda: all(map(listens, ports)), servers)
            urls = [f"http://127.0.0.1:{port}" for port in ports]
            yield {url: server.pid for url, server in zip(urls, servers, strict=True)}
        finally:
            stop(servers)


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
