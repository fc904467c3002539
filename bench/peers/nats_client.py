"""NATS client: JetStream by nats-py, one connection to each server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import nats
from nats.aio.msg import Msg
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    Header,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.errors import NotFoundError

from bench.peers.clients import ANSWER_WITHIN_S

_REPLICAS = 3


class NatsClient:
    """A work-queue stream of three replicas, a pull consumer, and confirmed acknowledgements."""

    def __init__(self) -> None:
        self._connections: list[Any] = []

    async def connect(self, urls: Sequence[str], *, queue: str, lanes: int, batch: int) -> None:
        """Connect to every server, and create stream and consumer."""
        for url in urls:
            self._connections.append(await nats.connect(url, allow_reconnect=False))
        self._streams = [
            connection.jetstream(
                timeout=ANSWER_WITHIN_S, publish_async_max_pending=lanes * batch + 1
            )
            for connection in self._connections
        ]
        self._subject = f"tasks.{queue}"
        first = self._streams[0]
        try:
            await first.stream_info(queue)
        except NotFoundError:
            await first.add_stream(
                StreamConfig(
                    name=queue,
                    subjects=[self._subject],
                    retention=RetentionPolicy.WORK_QUEUE,
                    storage=StorageType.FILE,
                    num_replicas=_REPLICAS,
                )
            )
            await first.add_consumer(
                queue,
                ConsumerConfig(
                    durable_name="workers",
                    ack_policy=AckPolicy.EXPLICIT,
                    ack_wait=60,
                    max_ack_pending=20_000,
                    max_waiting=2_048,
                    num_replicas=_REPLICAS,
                ),
            )
        self._pulls = [
            await self._of(lane).pull_subscribe_bind("workers", queue) for lane in range(lanes)
        ]

    async def create(self, lane: int, payload: bytes, *, key: str | None = None) -> None:
        """Publish a message, and wait for the stream's acknowledgement."""
        headers = {Header.MSG_ID: key} if key else None
        await self._of(lane).publish(self._subject, payload, headers=headers)

    async def claim(self, lane: int, *, within_s: float = ANSWER_WITHIN_S) -> Msg:
        """Pull one message."""
        (message,) = await self._pulls[lane].fetch(1, timeout=within_s)
        return message

    def payload(self, handle: Msg) -> bytes:
        """Return the message's body."""
        return handle.data

    async def finish(self, lane: int, handle: Msg) -> None:
        """Acknowledge the message, and wait until the server confirms that."""
        del lane
        await handle.ack_sync(timeout=ANSWER_WITHIN_S)

    async def create_batch(self, lane: int, payloads: Sequence[bytes]) -> None:
        """Publish all messages, then wait for all acknowledgements."""
        stream = self._of(lane)
        await asyncio.gather(*[await stream.publish_async(self._subject, one) for one in payloads])

    async def claim_batch(self, lane: int, count: int) -> list[Msg]:
        """Pull the available messages, up to `count`."""
        return list(await self._pulls[lane].fetch(count, timeout=ANSWER_WITHIN_S))

    async def finish_batch(self, lane: int, handles: Sequence[Msg]) -> None:
        """Acknowledge all messages, then wait for all confirmations."""
        await asyncio.gather(*(self.finish(lane, handle) for handle in handles))

    async def close(self) -> None:
        """Disconnect from every server."""
        for connection in self._connections:
            await connection.close()

    def _of(self, lane: int) -> Any:
        return self._streams[lane % len(self._streams)]
