"""Receiver: a target of webhooks to put beside nodes, with nothing but the standard library.

    receiver.py PORT

It takes every POST, and tells at GET /heard what came: headers and body, the oldest first.
"""

from __future__ import annotations

import json
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_HEARD_MAX = 1000


class Receiver(BaseHTTPRequestHandler):
    """Answers one connection."""

    heard: list[dict[str, object]] = []  # noqa: RUF012 - of all connections, on purpose

    def do_POST(self) -> None:
        """Store a call; beyond the limit, forget the oldest one."""
        body = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
        self.heard.append({"headers": dict(self.headers), "body": body})
        del self.heard[:-_HEARD_MAX]
        self._answer(204, b"")

    def do_GET(self) -> None:
        """Answer with the stored calls."""
        self._answer(200, json.dumps(self.heard).encode())

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def main(port: int) -> None:
    """Receive until SIGTERM; the first process of a container ignores it without a handler."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with ThreadingHTTPServer(("0.0.0.0", port), Receiver) as server:
        server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
