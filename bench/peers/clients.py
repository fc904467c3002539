"""Clients: what a lane asks of any broker, and which client library asks it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Protocol

ANSWER_WITHIN_S = 30.0


class Client(Protocol):
    """One queue of one broker; a handle is a task that a lane holds.

    Methods raise what their library raises; TimeoutError where nothing came in time.
    """

    async def connect(self, urls: Sequence[str], *, queue: str, lanes: int, batch: int) -> None:
        """Connect to every node, and make the queue if it is not there."""

    async def create(self, lane: int, payload: bytes, *, key: str | None = None) -> None:
        """Create a task, and return once the broker says it is kept.

        Args:
            lane: Who asks.
            payload: A JSON document.
            key: By which the broker knows a second attempt, where it can.
        """

    async def claim(self, lane: int, *, within_s: float = ANSWER_WITHIN_S) -> Any:
        """Wait for a task and return it."""

    async def finish(self, lane: int, handle: Any) -> None:
        """Finish a task, and return once the broker has said so, where it does."""

    def payload(self, handle: Any) -> bytes:
        """Return the payload of a task."""

    async def create_batch(self, lane: int, payloads: Sequence[bytes]) -> None:
        """Create tasks, all sent before the first answer."""

    async def claim_batch(self, lane: int, count: int) -> list[Any]:
        """Wait for at least one task; return up to `count`."""

    async def finish_batch(self, lane: int, handles: Sequence[Any]) -> None:
        """Finish tasks, all sent before the first answer."""

    async def close(self) -> None:
        """Disconnect."""


def client_of(protocol: str) -> Client:
    """Return an unconnected client.

    Raises:
        ValueError: No client speaks this protocol.
    """
    # The libraries are there with the `bench` extra only.
    match protocol:
        case "codeq":
            from bench.peers.http_client import HttpClient  # noqa: PLC0415

            return HttpClient()
        case "nats":
            from bench.peers.nats_client import NatsClient  # noqa: PLC0415

            return NatsClient()
        case "rabbitmq":
            from bench.peers.rabbitmq_client import RabbitClient  # noqa: PLC0415

            return RabbitClient()
        case _:
            raise ValueError(f"no client speaks {protocol}")


def fresh_queue() -> str:
    """Return a name that no queue has."""
    return f"bench{secrets.token_hex(6)}"
