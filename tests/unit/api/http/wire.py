"""A connection whose packets a test cuts, with the requests seen on it and its answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.http import HttpProcessingError

from codeq_cluster.api.app import ACCESS_LOG, STRANGERS, WAITS
from codeq_cluster.api.http.access_log import AccessLog
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Asked
from codeq_cluster.api.http.callers import Callers
from codeq_cluster.api.http.connection import _LINGER_S, HttpConnection
from codeq_cluster.api.http.errors import ApiError
from codeq_cluster.api.http.middleware import Answering, error_answer, for_library, request_id_of
from codeq_cluster.api.http.strangers import Strangers
from codeq_cluster.api.http.waits import Waits
from codeq_cluster.api.http.whole_requests import Whole, WholeRoutes
from codeq_cluster.api.server import HttpServer
from codeq_cluster.fair_turns import FairTurns
from codeq_cluster.settings import LimitSettings, ProxySettings
from codeq_cluster.telemetry import Metrics

FIXED, OF_A_TASK = "/tasks", "/tasks/{id}/result"
_QUIET_TURNS = 16  # Longer than any step between two requests of a connection.
_ANSWER = re.compile(rb"(?=HTTP/1\.[01] \d{3} )")
_HEAD = re.compile(rb"(?s)(HTTP/1\.[01] \d{3} [^\r]*\r\n)(.*?\r\n)\r\n")
_VARYING = re.compile(rb"Date: [^\r]*\r\n|(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that reached its handler with its whole body."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a connection: its requests, its answers without dates and ids, its state.

    Attributes:
        closed: Whether the server closes it, once the rest of a refused body is drained.
        whole: How many requests were read without the library.
        taken: How many packets the server read.
    """

    seen: tuple[Seen, ...]
    answers: bytes
    closed: bool
    whole: int
    taken: int = field(compare=False)


class Loop(asyncio.SelectorEventLoop):
    """A loop whose clock also goes forward at once, as far as a test wants.

    Attributes:
        passed_s: How far it went.
    """

    passed_s = 0.0

    def time(self) -> float:
        """Return the monotonic clock, plus what has passed at once."""
        return super().time() + self.passed_s


class Wire(asyncio.Transport):
    """A transport in memory: the test is the client."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.closed = False
        self.paused = False
        self.protocol: asyncio.Protocol | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take an answer, at once."""
        if not self.closed:
            self.sent += data

    def close(self) -> None:
        """Tell the protocol, as a loop does."""
        if not self.closed:
            self.closed = True
            assert self.protocol is not None
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        """Return whether the server has closed the connection."""
        return self.closed

    def pause_reading(self) -> None:
        """Send nothing until it resumes."""
        self.paused = True

    def resume_reading(self) -> None:
        """Send again."""
        self.paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore the limits: every answer is taken at once."""


class _Library(web.RequestHandler):
    """A connection of the library."""

    __slots__ = ()

    def data_received(self, data: bytes) -> None:
        """Read on, or close at the one target at which the library fails."""
        try:
            super().data_received(data)
        except IndexError:
            self.force_close()


class Connections:
    """Makes connections to one small application, and plays packets on them."""

    def __init__(self) -> None:
        self._seen: list[Seen] = []
        self._whole = 0
        self._limits = LimitSettings()
        self._metrics = Metrics(commands_max=1)
        self._routes = WholeRoutes[Answering]("/tasks", body_bytes_max=1000)
        self._none = WholeRoutes[Answering]("", body_bytes_max=0)
        app = web.Application()
        callers = Callers(ProxySettings())
        app[ACCESS_LOG] = AccessLog("never", callers)
        app[WAITS] = Waits(self._limits, FairTurns(64, name="the room"))
        app[STRANGERS] = Strangers(self._limits, callers)
        for path in (FIXED, OF_A_TASK):
            answering = self._answering(path)
            self._routes.add(path, answering)
            app.router.add_post(path, for_library(answering))
        app.router.add_route("*", "/library", for_library(self._answering("/library")))
        app.router.add_post("/unread", for_library(self._answering("/unread", read=False)))
        self._server = HttpServer(app, host="", port=0, limits=self._limits, metrics=self._metrics)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True)

    async def open(self) -> None:
        """Prepare the application."""
        await self._runner.setup()

    async def close(self) -> None:
        """End it."""
        await self._runner.cleanup()

    async def ours(self, packets: Sequence[tuple[bytes, bool]], *, whole: bool) -> Outcome:
        """Play packets on a connection of the product.

        Args:
            packets: Each with whether the client awaits what the server does with it.
            whole: Whether requests are read without the library.
        """

        def connection() -> asyncio.Protocol:
            return HttpConnection(
                self._manager,
                loop=asyncio.get_running_loop(),
                server=self._server,
                place=self._server.strangers.enter(()),
                limits=self._limits,
                metrics=self._metrics,
                whole_routes=self._routes if whole else self._none,
            )

        return await self._play(connection, packets)

    async def library(self, stream: bytes) -> Outcome:
        """Play a stream on a connection of the library alone, byte by byte.

        Then it neither forgets a request nor drops bytes, as it may when messages share a packet.
        """

        def connection() -> asyncio.Protocol:
            return _Library(
                self._manager,
                loop=asyncio.get_running_loop(),
                auto_decompress=False,
                lingering_time=_LINGER_S,
            )

        return await self._play(connection, [(bytes([each]), False) for each in stream])

    @property
    def _manager(self) -> web.Server:
        manager = self._runner.server
        assert manager is not None
        return manager

    async def _play(
        self, connect: Callable[[], asyncio.Protocol], packets: Sequence[tuple[bytes, bool]]
    ) -> Outcome:
        self._seen, self._whole = [], 0
        wire = Wire()
        wire.protocol = protocol = connect()
        protocol.connection_made(wire)
        await self._settled(wire)
        taken = 0
        for packet, awaited in packets:
            if wire.closed or wire.paused:
                break
            taken += 1
            protocol.data_received(packet)
            if awaited or wire.paused:
                await self._settled(wire)
        await self._settled(wire)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        loop.passed_s += _LINGER_S
        await self._settled(wire)
        closed = wire.closed
        wire.close()
        await self._settled(wire)
        answers = _comparable(bytes(wire.sent))
        return Outcome(tuple(self._seen), answers, closed, self._whole, taken)

    async def _settled(self, wire: Wire) -> None:
        """Let the server go on until it waits for the client."""
        quiet, last = 0, (0, 0, False, False)
        while quiet < _QUIET_TURNS:
            await asyncio.sleep(0)
            now = (len(wire.sent), len(self._seen), wire.closed, wire.paused)
            quiet, last = (quiet + 1 if now == last else 0), now

    def _answering(self, path: str, *, read: bool = True) -> Answering:
        async def answer(asked: Asked) -> HttpAnswer[object]:
            request_id = request_id_of(asked)
            try:
                body = b"" if not read else await _body(asked)
            except (web.RequestPayloadError, HttpProcessingError):
                answered = error_answer(ApiError(400, "broken", "invalid-body"), request_id)
            else:
                target = path.format(**asked.match_info)
                headers = sorted((name.lower(), text) for name, text in asked.headers.items())
                self._whole += isinstance(asked, Whole)
                self._seen.append(Seen(asked.method, target, tuple(headers), body))
                answered = reply({"seen": len(self._seen), "bytes": len(body)})
                answered.request_id = request_id
            return answered

        return answer


def each_answer(outcome: Outcome) -> list[bytes]:
    """Return the answers one by one; no body of theirs contains a status line."""
    return [each for each in _ANSWER.split(outcome.answers) if each]


def statuses(outcome: Outcome) -> list[bytes]:
    """Return the status of each answer."""
    return [each[9:12] for each in each_answer(outcome)]


def _comparable(answers: bytes) -> bytes:
    """Return answers without dates and ids, and with the headers of each in order."""

    def ordered(head: re.Match[bytes]) -> bytes:
        return head[1] + b"".join(sorted(head[2].splitlines(keepends=True))) + b"\r\n"

    return _HEAD.sub(ordered, _VARYING.sub(b"", answers))


async def _body(asked: Asked) -> bytes:
    return asked.body if isinstance(asked, Whole) else await asked.read()
