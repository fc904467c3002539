"""Connection: requests to the nodes of one cluster, repeated until one is answered."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from codeq_cluster.client.nodes import Nodes
from codeq_cluster.client.refusals import Refused, Unreachable, Untrusted
from codeq_cluster.client.retrying import is_harmless, may_succeed, pause_s
from codeq_cluster.client.tokens import described
from codeq_cluster.client.transport import Request, ServerAnswer, Transport, foreign, trust
from codeq_cluster.errors import ConfigInvalid

BASE = "/v1/codeq"
TIMEOUT_S: Final = 15.0  # Above the broker's own 10 s, so that the broker answers first.
DEADLINE_S: Final = 30.0  # Room for an election and a second try of a silent node.

_LEARN_EVERY_S: Final = 60.0
_LEARN_AGAIN_S: Final = 5.0  # After a round in which no node answered.
_LEARN_TIMEOUT_S: Final = 5.0
_STATUS: Final = Request(method="GET", path=f"{BASE}/raft/status")

_STEP: Final = re.compile(r"~*\.\.?")  # `~` so that each name has one segment of its own.

T = TypeVar("T")

log = logging.getLogger(__name__)


class _Peer(msgspec.Struct, rename="camel"):
    http_addr: str = ""


class _Group(msgspec.Struct, rename="camel"):
    self_http_addr: str = msgspec.field(name="selfHTTPAddr", default="")
    leader_http_addr: str = msgspec.field(name="leaderHTTPAddr", default="")
    peers: tuple[_Peer, ...] = ()


class _Ids(msgspec.Struct):
    ids: tuple[str, ...]


class _Status(msgspec.Struct):
    groups: tuple[_Group, ...] = ()

    def urls(self) -> list[str]:
        """Return the URL of every node that the answer lists."""
        found = [
            url
            for group in self.groups
            for url in (
                group.self_http_addr,
                group.leader_http_addr,
                *(peer.http_addr for peer in group.peers),
            )
            if url
        ]
        return list(dict.fromkeys(found))


class Connection:
    """A connection to the nodes of one cluster; an async context manager, or closed by `close`.

    A request goes to the node that answered last, and to the next one when a node takes no
    connection. It is repeated until its deadline, with growing pauses, while a repetition may
    succeed and is harmless. Nodes the caller did not name are learned from those it named.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        token: str,
        deadline_s: float = DEADLINE_S,
        timeout_s: float = TIMEOUT_S,
        discover: bool = True,
        ca_file: Path | None = None,
    ) -> None:
        """Prepare a connection; nothing is sent yet.

        Args:
            urls: Base URLs of nodes, at least one, the preferred ones first.
            token: Sent as a bearer token.
            deadline_s: The deadline of a call with all its repetitions, not counting a wait that
                the call asks for. 0 asks each node at most once.
            timeout_s: The timeout of one request to one node, not counting such a wait either.
            discover: Learn the other nodes. Turn it off behind a load balancer whose nodes are not
                reachable from here.
            ca_file: PEM file of the only authorities trusted for https; None trusts those of
                the system.

        Raises:
            ConfigInvalid: There is no list of URLs, one is not http or https, the token has a
                control character, or the file holds no certificate.
        """
        if not urls:
            raise ConfigInvalid("urls: give at least one base URL of a node")
        if isinstance(urls, str):
            raise ConfigInvalid(f"urls={urls!r}: must be a list of URLs, such as [{urls!r}]")
        for url in urls:
            if not _names_a_node(url):
                raise ConfigInvalid(f"urls={url!r}: must be http://HOST:PORT or https://…")
        if not token.isprintable():
            raise ConfigInvalid(f"token: {described(token)}; it must have no end of a line")
        secure = ca_file is not None or any(url.startswith("https://") for url in urls)
        self._nodes = Nodes(urls)
        self._transport = Transport(token=token, trust=trust(ca_file) if secure else None)
        self._deadline_s = deadline_s
        self._timeout_s = timeout_s
        self._discover = discover
        self._learning: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._transport.is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections to all nodes; calls fail then, also those under way.

        New ones raise `ConnectionGone`, unless the connection is entered again.
        """
        learning, self._learning = self._learning, None
        if learning is not None:
            learning.cancel()
            with suppress(asyncio.CancelledError):
                await learning
        await self._transport.close()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Base URLs of the nodes known so far: those the caller named, then those learned."""
        return self._nodes.all

    async def raft_status(self) -> Mapping[str, Any]:
        """Return the Raft groups as the node that answers sees them."""
        return await self._call(_STATUS, dict[str, Any])

    async def ids(self, prefix: str) -> tuple[str, ...]:
        """Return the first ids of tasks that begin with a prefix of at least 8 characters."""
        return (await self._read(f"{BASE}/tasks{query(idPrefix=prefix)}", _Ids)).ids

    async def _read(self, path: str, answer: type[T]) -> T:
        """Return what a path has, as `_call` does."""
        return await self._call(Request(method="GET", path=path), answer)

    async def _changed(self, method: str, path: str, body: object = None, *, of: type[T]) -> T:
        """Make a change whose repetition is harmless, and return its answer as `_call` does."""
        request = Request(method=method, path=path, body=None if body is None else as_json(body))
        return await self._call(request, of)

    async def _call(
        self,
        request: Request,
        answer: type[T],
        *,
        within_s: float | None = None,
    ) -> T:
        """Make a request and return its answer as a type; an empty body counts as `{}`.

        Args:
            within_s: The deadline of this call, in place of the connection's.

        Raises:
            Unreachable: No node took the request; nothing was done.
            Refused: The broker refused it, or its outcome is unknown.
        """
        got = await self._exchange(request, within_s=within_s)
        return read_as(got.content, answer, request)

    async def _exchange(self, request: Request, *, within_s: float | None = None) -> ServerAnswer:
        """Make a request, and repeat it until it is answered, hopeless or too late."""
        self._learn_soon()
        deadline_s = self._deadline_s if within_s is None else within_s
        until_s = time.monotonic() + deadline_s if deadline_s else None
        failures = 0
        while True:
            try:
                return await self._round(request, until_s=until_s)
            except (Unreachable, Refused) as error:
                if not may_succeed(error) or not (request.repeatable or is_harmless(error)):
                    raise
                if request.final and isinstance(error, Refused) and error.code == request.final:
                    raise
                pause = pause_s(failures, error)
                if until_s and request.wait_s and failures == 0:
                    # The wait that the broker was asked for does not count toward the deadline.
                    until_s = time.monotonic() + deadline_s
                if until_s is None or time.monotonic() + pause >= until_s:
                    raise
                failures += 1
                # The path and the error are in the text too: a program that prints only messages
                # shows no fields.
                log.warning("%s: no answer, trying again: %s", request.path, error)
            await asyncio.sleep(pause)

    async def _round(self, request: Request, *, until_s: float | None) -> ServerAnswer:
        """Ask one node after the other until one takes the request."""
        last: Unreachable | Refused | None = None
        for url in self._nodes.order():
            if until_s is not None and time.monotonic() >= until_s:
                break
            try:
                return await self._sent(url, request, until_s=until_s)
            except Unreachable as error:
                # Report the node that gave no answer rather than the one that took no connection:
                # only the former may have done something.
                last = last if isinstance(last, Refused) else error
            except Refused as error:
                if error.status or not request.repeatable:
                    raise
                last = error
        if last is None:
            raise Unreachable("no node was asked before the deadline")
        if isinstance(last, Unreachable) and not isinstance(last, Untrusted):
            raise Unreachable(f"no node takes a connection: {', '.join(self.nodes)}") from last
        raise last

    async def _sent(self, url: str, request: Request, *, until_s: float | None) -> ServerAnswer:
        """Send a request to one node, and note whether it serves."""
        timeout_s = self._timeout_s
        if until_s is not None:
            timeout_s = min(timeout_s, until_s - time.monotonic())
        try:
            answer = await self._transport.send(url, request, timeout_s=timeout_s + request.wait_s)
        except (Unreachable, Refused) as error:
            if isinstance(error, Refused) and 0 < error.status < 500:
                self._nodes.answered(url)
            else:
                self._nodes.failed(url)
            raise
        self._nodes.answered(url)
        return answer

    def _learn_soon(self) -> None:
        if self._discover and self._learning is None and self._transport.is_open:
            self._learning = asyncio.create_task(self._learn())

    async def _learn(self) -> None:
        """Learn the other nodes repeatedly, for as long as the connection is open."""
        while True:
            try:
                answer = await self._round(_STATUS, until_s=time.monotonic() + _LEARN_TIMEOUT_S)
                self._nodes.learn(read_as(answer.content, _Status, _STATUS).urls())
            except (Unreachable, Refused) as error:
                # Nodes learned before are kept. A cluster that is away is reported by the requests
                # themselves.
                log.debug("the other nodes are not known: %s", error)
                await asyncio.sleep(_LEARN_AGAIN_S)
            else:
                await asyncio.sleep(_LEARN_EVERY_S)


def _names_a_node(url: str) -> bool:
    try:
        parts = urlsplit(url)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:  # Its port is none.
        return False
    return named and url.startswith(("http://", "https://"))


def part(name: str) -> str:
    """Return a name quoted as one segment of a path, which `.` and `..` alone would not be."""
    return f"~{name}" if _STEP.fullmatch(name) else quote(name, safe="")


def query(**values: str | int | Sequence[str]) -> str:
    """Return the non-empty values as a query with its question mark, or an empty string.

    A name with several values is there several times.
    """
    given = {name: value for name, value in values.items() if value not in ("", [])}
    return f"?{urlencode(given, doseq=True)}" if given else ""


def as_json(value: Any) -> bytes:
    """Return a body as JSON."""
    return msgspec.json.encode(value)


def _number(text: str) -> float | str:
    """Return a number of a document, which may quote a payload's; its text if no float holds it."""
    number = float(text)
    return number if math.isfinite(number) else text


def whole(text: str) -> int | str:
    """Return a whole number of a document; its text if Python reads no number of its length."""
    return int(text) if len(text) <= _DIGITS_MAX else text


_DIGITS_MAX = 4300  # Python's own, unless its user changes it.


def read_as(content: bytes, answer: type[T], request: Request) -> T:
    """Return the body of an answer as a type; an empty one counts as `{}`.

    Raises:
        Refused: The body is not a broker's.
    """
    try:
        try:
            return msgspec.json.Decoder(answer, float_hook=_number).decode(content or b"{}")
        except msgspec.ValidationError as error:
            if "Integer value out of range" not in str(error):
                raise
        quoted = json.loads(content, parse_int=whole, parse_float=_number)
        return msgspec.convert(quoted, answer)
    except msgspec.ValidationError as error:
        text = f"{request.path}: the answer has an unknown form: {error}"
        raise Refused(text, status=200) from error
    except msgspec.DecodeError as error:
        raise foreign(request.path, 200) from error
