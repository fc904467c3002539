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
from functools import lru_cache
from types import MappingProxyType
from typing import Generic, TypeVar

from codeq_cluster.api.errors import invalid_body

# Longer ones are left to the library, which has limits for each part.
_HEAD_BYTES_MAX = 8000
_FIELDS_MAX = 64
_LINE = re.compile(rb"POST (/[A-Za-z0-9._:/-]*) HTTP/1\.1")
# Values neither begin nor end with a space, of which parsers may think differently.
_FIELDS = re.compile(r"(?:[A-Za-z0-9-]+: (?:[!-~](?:[ -~]*[!-~])?)?\r\n)+")
_FIELD = re.compile(r"([A-Za-z0-9-]+): ([ -~]*)\r\n")
_LENGTH = re.compile(r"[0-9]{1,9}")
# Those that change how a request is read, or what becomes of its connection.
_STRANGE = frozenset(("transfer-encoding", "expect", "upgrade", "content-encoding"))
_ID = "{id}"
_NONE: Mapping[str, str] = {}
# Clients send the same headers again and again: 512 heads x 24 KB at most, mostly 1 KB each.
_HEADS_KEPT = 512

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
        line_end = data.find(b"\r\n", 0, _HEAD_BYTES_MAX)
        head_end = data.find(b"\r\n\r\n", line_end, _HEAD_BYTES_MAX)
        if head_end < 0:
            return None
        line = _LINE.fullmatch(data, 0, line_end)
        if line is None:
            return None
        route, match_info = self._route(line[1].decode())
        if route is None:
            return None
        headers = _headers(data[line_end + 2 : head_end + 2])
        body = data[head_end + 4 :]
        if headers is None or int(headers["content-length"]) != len(body):
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


@lru_cache(maxsize=_HEADS_KEPT)
def _headers(head: bytes) -> Mapping[str, str] | None:
    """Return the headers, None if they can mean more than one thing.

    Args:
        head: Their lines with the ends of them.
    """
    # Latin-1 takes any byte; the pattern takes ASCII alone.
    text = head.decode("latin-1")
    if _FIELDS.fullmatch(text) is None:
        return None
    fields = _FIELD.findall(text)
    headers = {name.lower(): value for name, value in fields}
    if len(headers) != len(fields) or len(fields) > _FIELDS_MAX:
        return None
    if not _STRANGE.isdisjoint(headers):
        return None
    if headers.get("connection", "keep-alive").lower() != "keep-alive":
        return None
    if not _LENGTH.fullmatch(headers.get("content-length", "")):
        return None
    return MappingProxyType(headers)  # It is kept, and shared with later requests.
