"""Answer: a value as JSON, in the bytes of one write or as an aiohttp response."""

from __future__ import annotations

import time
from collections.abc import Mapping, MutableMapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final, Generic, TypeVar

import msgspec
from aiohttp import web

JSON = "application/json; charset=utf-8"

# Every answer carries them; aiohttp would reveal its name and version.
HEADERS: Mapping[str, str] = {
    "Server": "codeq-cluster",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}

T = TypeVar("T")

encode = msgspec.json.Encoder().encode

_NO_HEADERS: Mapping[str, str] = {}
_STALLED = 408


class HttpAnswer(Generic[T]):
    """A JSON answer; without a body for 204.

    `T` is the type of the value that the body is made of. A handler's signature names it, and the
    OpenAPI document takes it from there.

    Attributes:
        headers: Beside the headers of every answer; trusted names and texts.
        request_id: Set once the request has been answered.
    """

    __slots__ = ("body", "headers", "request_id", "status")

    def __init__(
        self,
        body: bytes = b"",
        status: int = 200,
        headers: Mapping[str, str] = _NO_HEADERS,
        request_id: str = "",
    ) -> None:
        assert bool(body) != (status == HTTPStatus.NO_CONTENT)
        self.body = body
        self.status = status
        self.headers = headers
        self.request_id = request_id

    def encoded(self, *, closing: bool = False) -> bytes:
        """Return head and body as HTTP/1.1; `closing` adds that the connection ends."""
        body = self.body
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        more = ""
        for name, text in self.headers.items():
            more += f"{name}: {text}\r\n"
        if closing:
            more += "Connection: close\r\n"
        head = (
            f"{_beginning(self.status)}X-Request-Id: {self.request_id}\r\n"
            f"{length}Date: {_date(int(time.time()))}\r\n{more}\r\n"
        )
        return head.encode() + body

    def response(self) -> web.Response:
        """Return the answer as an aiohttp response."""
        headers = {"X-Request-Id": self.request_id, **self.headers}
        if not self.body:
            return web.Response(status=self.status, headers=headers)
        headers = {"Content-Type": JSON, **headers}
        response = web.Response(body=self.body, status=self.status, headers=headers)
        if self.status == _STALLED:
            response.force_close()
        return response


class Refusal(HttpAnswer[T]):
    """The answer to a caller whose token was refused; its connection may delay it."""

    __slots__ = ("caller",)

    def __init__(self, answer: HttpAnswer[T], caller: str) -> None:
        super().__init__(answer.body, answer.status, answer.headers)
        self.caller = caller

    def response(self) -> web.Response:
        """Return the answer as an aiohttp response, in which its connection finds it."""
        response = super().response()
        response[REFUSAL] = self
        return response


REFUSAL: Final = web.ResponseKey("refusal", Refusal)


def reply(
    value: T, *, status: int = 200, headers: Mapping[str, str] = _NO_HEADERS
) -> HttpAnswer[T]:
    """Return the answer that has a value as its body."""
    # By position: keywords would cost every answer another 0.1 µs.
    return HttpAnswer(encode(value), status, headers)


def guard(headers: MutableMapping[str, str]) -> None:
    """Add each header that the answer does not set itself."""
    for name, text in HEADERS.items():
        headers.setdefault(name, text)


@lru_cache(maxsize=64)
def _beginning(status: int) -> str:
    headers = dict(HEADERS)
    if status != HTTPStatus.NO_CONTENT:
        headers["Content-Type"] = JSON
    fields = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{fields}"


@lru_cache(maxsize=1)
def _date(unix_s: int) -> str:
    return formatdate(unix_s, usegmt=True)
