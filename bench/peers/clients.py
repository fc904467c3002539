"""Clients: the operations that a lane needs from any broker, each over its client library."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Protocol

ANSWER_WITHIN_S = 30.0


class Client(Protocol):
    """One queue of one broker; a handle is a task that a lane holds.

    Methods raise their library's errors, and TimeoutError if nothing came in time.
    """

    async def connect(self, urls: Sequence[str], *, queue: str, lanes: int, batch: int) -> None:
        """Connect to every node, and create the queue if it does not exist."""

    async def create(self, lane: int, payload: bytes, *, key: str | None = None) -> None:
        """Create a task; return once the broker has acknowledged it.

        Args:
            lane: The number of the lane.
            payload: A JSON document.
            key: An idempotency key, for brokers that support one.
        """

    async def claim(self, lane: int, *, within_s: float = ANSWER_WITHIN_S) -> Any:
        """Wait for a task and return it."""

    async def finish(self, lane: int, handle: Any) -> None:
        """Finish a task; return once the broker has confirmed it, if the protocol confirms."""

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
    # Imported here, because only the `bench` extra installs the libraries.
    match protocol:
        case "codeq":
            from bench.peers.http_client import CodeqClient  # noqa: PLC0415

            return CodeqClient()
        case "nats":
            from bench.peers.nats_client import NatsClient  # noqa: PLC0415

            return NatsClient()
        case "rabbitmq":
            from bench.peers.rabbitmq_client import RabbitClient  # noqa: PLC0415

            return RabbitClient()
        case _:
            raise ValueError(f"no client speaks {protocol}")


def fresh_queue() -> str:
    """Return a name that no queue has yet."""
    return f"bench{secrets.token_hex(6)}"
