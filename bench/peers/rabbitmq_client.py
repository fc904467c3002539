"""RabbitMQ client: AMQP by aio-pika, one connection to each node."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import aio_pika

from bench.peers.clients import ANSWER_WITHIN_S

_REPLICAS = 3


class RabbitClient:
    """A quorum queue, publisher confirms, consumers with a prefetch, manual acknowledgements."""

    def __init__(self) -> None:
        self._connections: list[Any] = []

    async def connect(self, urls: Sequence[str], *, queue: str, lanes: int, batch: int) -> None:
        """Connect to every node, create the queue, and consume from it on every node."""
        self._queue = queue
        for url in urls:
            self._connections.append(await aio_pika.connect(url))
        self._publishing = [
            await self._connections[lane % len(urls)].channel(publisher_confirms=True)
            for lane in range(lanes)
        ]
        await self._publishing[0].declare_queue(
            queue,
            durable=True,
            arguments={"x-queue-type": "quorum", "x-quorum-initial-group-size": _REPLICAS},
        )
        # All connections share one local queue, so that no lane waits while another one has a
        # message.
        self._given: asyncio.Queue[Any] = asyncio.Queue()
        for connection in self._connections:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=lanes * batch)
            await (await channel.get_queue(queue, ensure=False)).consume(self._given.put)

    async def create(self, lane: int, payload: bytes, *, key: str | None = None) -> None:
        """Publish a message, and wait for the confirmation; AMQP does not deduplicate retries."""
        del key
        message = aio_pika.Message(payload, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await self._publishing[lane].default_exchange.publish(
            message, self._queue, timeout=ANSWER_WITHIN_S
        )

    async def claim(self, lane: int, *, within_s: float = ANSWER_WITHIN_S) -> Any:
        """Return the next message pushed over any connection."""
        del lane
        async with asyncio.timeout(within_s):
            return await self._given.get()

    def payload(self, handle: Any) -> bytes:
        """Return the message's body."""
        return bytes(handle.body)

    async def finish(self, lane: int, handle: Any) -> None:
        """Acknowledge the message; AMQP does not confirm that."""
        del lane
        await handle.ack()

    async def create_batch(self, lane: int, payloads: Sequence[bytes]) -> None:
        """Publish all, then wait for all confirmations."""
        await asyncio.gather(*(self.create(lane, payload) for payload in payloads))

    async def claim_batch(self, lane: int, count: int) -> list[Any]:
        """Take the messages already pushed, up to `count`."""
        found = [await self.claim(lane)]
        while len(found) < count and not self._given.empty():
            found.append(self._given.get_nowait())
        return found

    async def finish_batch(self, lane: int, handles: Sequence[Any]) -> None:
        """Acknowledge each message by itself, because they came over several channels."""
        for handle in handles:
            await self.finish(lane, handle)

    async def close(self) -> None:
        """Disconnect from every node."""
        for connection in self._connections:
            await connection.close()
