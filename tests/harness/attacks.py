"""Attacks: one address, or some, that waste what a node has before or while a request arrives."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address

import msgspec

API = "/v1/codeq"
Target = tuple[str, int]

_TICK_S = 0.1
_CONNECTS_WITHIN_S = 1.0
_READ = 2**16
_STATUS_LINE = b"HTTP/1.1 "


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """What each connection sends.

    Attributes:
        first: At once, or as fast as the node takes it.
        drip: In each tick; empty for nothing.
        connections: Kept open at each node; those that ended are opened again.
        answers: A connection ends after so many.
        opened_at_once: The most connections opened at each node in a tick.
        opened_max: The most connections opened at each node in all; None for no bound.
        addresses: Those of its connections, in turn, from its source on.
    """

    name: str
    first: bytes
    drip: bytes = b""
    connections: int
    answers: int = 1
    opened_at_once: int = 100
    opened_max: int | None = None
    addresses: int = 1


def request(method: str, path: str, token: str, body: bytes = b"", *, length: int = -1) -> bytes:
    """Return a request; with `length` it announces a body of that length and ends within it."""
    announced = len(body) if length < 0 else length
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: node\r\n"
        f"Authorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {announced}\r\n\r\n"
    )
    return head.encode() + body


def posts(path: str, token: str, bodies: Sequence[Mapping[str, object]]) -> bytes:
    """Return requests in one piece, as a client sends them that does not wait for answers."""
    return b"".join(
        request("POST", API + path, token, msgspec.json.encode(body)) for body in bodies
    )


@asynccontextmanager
async def attacking(
    attack: Attack, targets: Sequence[Target], *, source: str
) -> AsyncIterator[Mapping[Target, int]]:
    """Attack nodes from an address until the end of the block.

    Yields:
        How many answers and ends of connections each node has sent so far: proof that the attack
        reached it, where a connection may be its kernel's alone.
    """
    reached: Counter[Target] = Counter()
    tasks = [asyncio.ensure_future(_keep(attack, target, source, reached)) for target in targets]
    try:
        yield reached
    finally:
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended


async def _keep(attack: Attack, target: Target, source: str, reached: Counter[Target]) -> None:
    opened: list[_Connection] = []
    count = 0
    try:
        while True:
            opened = [each for each in opened if each.stands()]
            most = min(attack.opened_at_once, attack.connections - len(opened))
            if attack.opened_max is not None:
                most = min(most, attack.opened_max - count)
            for number in range(count, count + most):
                opened.append(_Connection(attack, target, reached))
                await opened[-1].connect(str(ip_address(source) + number % attack.addresses))
            count += max(0, most)
            await asyncio.sleep(_TICK_S)
    finally:
        for each in opened:
            each.close()


class _Connection:
    def __init__(self, attack: Attack, target: Target, reached: Counter[Target]) -> None:
        self._attack = attack
        self._target = target
        self._reached = reached
        self._rest = memoryview(attack.first)
        self._answers = 0
        self._socket = socket.socket()
        self._socket.setblocking(False)

    async def connect(self, source: str) -> None:
        """Connect; a node that is down makes the connection end at the next tick."""
        with contextlib.suppress(OSError, TimeoutError):
            self._socket.bind((source, 0))
            async with asyncio.timeout(_CONNECTS_WITHIN_S):
                await asyncio.get_running_loop().sock_connect(self._socket, self._target)
            self._send()

    def stands(self) -> bool:
        """Send and receive; close it and return False once the node has ended or answered it."""
        try:
            # Receive first: the node may have answered before it stopped to take what is sent.
            if self._may_be_answered():
                self._send()
                return True
        except OSError:
            pass
        self.close()
        return False

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def _may_be_answered(self) -> bool:
        while self._answers < self._attack.answers:
            try:
                received = self._socket.recv(_READ)
            except BlockingIOError:
                return True
            answers = received.count(_STATUS_LINE)
            self._answers += answers
            self._reached[self._target] += answers or not received
            if not received:
                break
        return False

    def _send(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._rest:
                self._rest = self._rest[self._socket.send(self._rest) :]
            if self._attack.drip:
                self._socket.send(self._attack.drip)
