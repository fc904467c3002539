"""Whole requests: one-piece requests of the busiest routes, read in a few microseconds.

A client sends a create, a claim, a heartbeat or a result in one packet, head and body together. For
such a request aiohttp runs a parser, a stream, a router and a task, at several times the cost of
the handler. A request with only one possible meaning is therefore read here. Everything else goes
to aiohttp unchanged: more or less than one request, a chunked body, a repeated header, unusual
characters in a name or value, and any other path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Generic, TypeVar

from codeq_cluster.api.http.errors import not_utf8

# Longer requests go to aiohttp, which limits each part.
_HEAD_BYTES_MAX = 8000
_FIELDS_MAX = 64
_LINE = re.compile(rb"POST (/[A-Za-z0-9._:/-]*) HTTP/1\.1")
# A value neither begins nor ends with a space, because parsers differ on these.
_FIELDS = re.compile(r"(?:[A-Za-z0-9-]+: (?:[!-~](?:[ -~]*[!-~])?)?\r\n)+")
_FIELD = re.compile(r"([A-Za-z0-9-]+): ([ -~]*)\r\n")
_LENGTH = re.compile(r"[0-9]{1,9}")
# These headers change how a request is read, or how its connection goes on.
_STRANGE = frozenset(("transfer-encoding", "expect", "upgrade", "content-encoding"))
_ID = "{id}"
_NONE: Mapping[str, str] = {}
# Clients send the same headers again and again: 512 heads x 24 KB at most, mostly 1 KB each.
_HEADS_KEPT = 512

R = TypeVar("R")


class Whole:
    """A one-piece HTTP/1.1 request, on a connection that stays open.

    Attributes:
        headers: One value each, by name in lower case.
        match_info: The named parts of the path.
        query_string: Always empty.
        remote: The address of the connection's other end; set by the connection.
    """

    __slots__ = ("body", "headers", "match_info", "remote")

    method = "POST"
    query_string = ""

    def __init__(
        self, headers: Mapping[str, str], match_info: Mapping[str, str], body: bytes
    ) -> None:
        self.headers = headers
        self.match_info = match_info
        self.body = body
        self.remote = ""

    def text(self, unreadable: str) -> str:
        """Return the body as text.

        Args:
            unreadable: The route's name for a body it cannot read.

        Raises:
            ApiError: 400; the body is not UTF-8.
        """
        try:
            return self.body.decode()
        except UnicodeDecodeError as error:
            raise not_utf8(unreadable) from error


class WholeRoutes(Generic[R]):
    """The routes whose requests are read in one piece.

    Args:
        base: The common prefix of all their paths.
        body_bytes_max: Longer bodies go to aiohttp, which refuses them.
    """

    def __init__(self, base: str, *, body_bytes_max: int) -> None:
        self._begin = f"POST {base}".encode()
        self._base = f"{base}/"
        self._body_bytes_max = body_bytes_max
        self._fixed: dict[bytes, R] = {}  # By the request's line.
        self._of_a_task: dict[str, R] = {}

    def add(self, path: str, route: R) -> None:
        """Add a route: a fixed path, or one with an id between the base and a last word."""
        before, named, after = path.partition(_ID)
        if not named:
            self._fixed[f"POST {path} HTTP/1.1".encode()] = route
            return
        assert before == self._base, path
        self._of_a_task[after] = route

    def read(self, data: bytes) -> tuple[R, Whole] | None:
        """Return the route and the request in `data`, or None when aiohttp must read it."""
        if not data.startswith(self._begin):
            return None
        line_end = data.find(b"\r\n", 0, _HEAD_BYTES_MAX)
        head_end = data.find(b"\r\n\r\n", line_end, _HEAD_BYTES_MAX)
        if head_end < 0:
            return None
        route, match_info = self._fixed.get(data[:line_end]), _NONE
        if route is None:
            route, match_info = self._route(data, line_end)
            if route is None:
                return None
        headers = _headers(data[line_end + 2 : head_end + 2])
        body = data[head_end + 4 :]
        if headers is None or int(headers["content-length"]) != len(body):
            return None
        if len(body) > self._body_bytes_max:
            return None
        return route, Whole(headers, match_info, body)

    def _route(self, data: bytes, line_end: int) -> tuple[R | None, Mapping[str, str]]:
        line = _LINE.fullmatch(data, 0, line_end)
        path = line[1].decode() if line is not None else ""
        task_id, slash, last = path[len(self._base) :].partition("/")
        # A segment of dots may be read as a parent directory.
        if not task_id.strip(".") or not path.startswith(self._base):
            return None, _NONE
        return self._of_a_task.get(slash + last), {"id": task_id}


@lru_cache(maxsize=_HEADS_KEPT)
def _headers(head: bytes) -> Mapping[str, str] | None:
    """Return the headers, or None if they are ambiguous.

    Args:
        head: The header lines, with their line ends.
    """
    # Latin-1 decodes any byte; the pattern then accepts ASCII only.
    text = head.decode("latin-1")
    if _FIELDS.fullmatch(text) is None:
        return None
    fields = _FIELD.findall(text)
    headers = {name.lower(): value for name, value in fields}
    if len(headers) != len(fields) or len(fields) > _FIELDS_MAX:
        return None
    if "host" not in headers or not _STRANGE.isdisjoint(headers):
        return None
    if headers.get("connection", "keep-alive").lower() != "keep-alive":
        return None
    if not _LENGTH.fullmatch(headers.get("content-length", "")):
        return None
    return MappingProxyType(headers)  # The cache shares it with later requests.
