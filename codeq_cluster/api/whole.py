"""Whole requests: those of the busiest routes that come in one piece, read in a few microseconds.

A client sends a create, a claim, a heartbeat or a result in one packet, head and body together. The
library's way of such a request (a parser, a stream, a router, a task that waits for the next one)
costs several times what is done for it. So a request that can only mean one thing is read here.
Everything else is left to the library as it came: more or less than one request, a body in chunks,
a header twice, a name or a value of unusual characters, a path that is no busy route.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Generic, TypeVar

from codeq_cluster.api.errors import invalid_body

# Longer ones are left to the library, which has limits for each part.
_HEAD_BYTES_MAX = 8000
_FIELDS_MAX = 64
_REQUEST = re.compile(
    r"POST (/[A-Za-z0-9._:/-]*) HTTP/1\.1\r\n"
    # Values neither begin nor end with a space, of which parsers may think differently.
    r"((?:[A-Za-z0-9-]+: (?:[!-~](?:[ -~]*[!-~])?)?\r\n)+)"
)
_FIELD = re.compile(r"([A-Za-z0-9-]+): ([ -~]*)\r\n")
_LENGTH = re.compile(r"[0-9]{1,9}")
# Those that change how a request is read, or what becomes of its connection.
_STRANGE = frozenset(("transfer-encoding", "expect", "upgrade", "content-encoding"))
_ID = "{id}"
_NONE: Mapping[str, str] = {}

R = TypeVar("R")


class Whole:
    """A request that came in one piece, by HTTP/1.1, on a connection that is kept.

    Attributes:
        headers: Each once, by its name in lower case.
        match_info: The parts of the path that the route names.
        query_string: Always empty.
    """

    __slots__ = ("body", "headers", "match_info")

    method = "POST"
    query_string = ""

    def __init__(
        self, headers: Mapping[str, str], match_info: Mapping[str, str], body: bytes
    ) -> None:
        self.headers = headers
        self.match_info = match_info
        self.body = body

    def text(self, unreadable: str) -> str:
        """Return the body as text.

        Args:
            unreadable: What the route calls a body it cannot read.

        Raises:
            ApiError: 400; it is not UTF-8.
        """
        try:
            return self.body.decode()
        except UnicodeDecodeError as error:
            raise invalid_body(unreadable) from error


class WholeRoutes(Generic[R]):
    """The routes whose requests are read here.

    Args:
        base: What all their paths begin with.
        body_bytes_max: Longer bodies are left to the library's way, which refuses them.
    """

    def __init__(self, base: str, *, body_bytes_max: int) -> None:
        self._begin = f"POST {base}".encode()
        self._base = f"{base}/"
        self._body_bytes_max = body_bytes_max
        self._fixed: dict[str, R] = {}
        self._of_a_task: dict[str, R] = {}

    def add(self, path: str, route: R) -> None:
        """Take a route in: a fixed path, or one with an id between the base and a last word."""
        before, named, after = path.partition(_ID)
        if not named:
            self._fixed[path] = route
            return
        assert before == self._base, path
        self._of_a_task[after] = route

    def read(self, data: bytes) -> tuple[R, Whole] | None:
        """Return the route and the request that `data` is, None for what the library shall read."""
        if not data.startswith(self._begin):
            return None
        end = data.find(b"\r\n\r\n", 0, _HEAD_BYTES_MAX)
        if end < 0:
            return None
        # Latin-1 takes any byte; the pattern takes ASCII alone.
        matched = _REQUEST.fullmatch(data[: end + 2].decode("latin-1"))
        if matched is None:
            return None
        path, head = matched.groups()
        route, match_info = self._route(path)
        if route is None:
            return None
        fields = _FIELD.findall(head)
        headers = {name.lower(): text for name, text in fields}
        if len(headers) != len(fields) or len(fields) > _FIELDS_MAX:
            return None
        if not _STRANGE.isdisjoint(headers):
            return None
        if headers.get("connection", "keep-alive").lower() != "keep-alive":
            return None
        body = data[end + 4 :]
        length = headers.get("content-length", "")
        if not _LENGTH.fullmatch(length) or int(length) != len(body):
            return None
        if len(body) > self._body_bytes_max:
            return None
        return route, Whole(headers, match_info, body)

    def _route(self, path: str) -> tuple[R | None, Mapping[str, str]]:
        route = self._fixed.get(path)
        if route is not None:
            return route, _NONE
        task_id, slash, last = path[len(self._base) :].partition("/")
        # Dots may be taken for a way up.
        if not task_id.strip(".") or not path.startswith(self._base):
            return None, _NONE
        return self._of_a_task.get(slash + last), {"id": task_id}
