"""Taskiq application: one task that notes its run, on each broker of `bench.frameworks`."""

from __future__ import annotations

import asyncio
import os

from taskiq import AsyncBroker

from bench import sends


def _broker(url: str) -> AsyncBroker:
    if url.startswith("redis"):
        from taskiq_redis import RedisStreamBroker  # noqa: PLC0415 - of what is measured

        return RedisStreamBroker(url)
    if url.startswith("amqp"):
        from taskiq_aio_pika import AioPikaBroker  # noqa: PLC0415

        # Its queue is a quorum queue and its publishes are confirmed; it takes one URL.
        return AioPikaBroker(url.partition(";")[0], qos=100)
    from codeq_cluster.integrations.taskiq import CodeqBroker  # noqa: PLC0415

    # Each of the others takes a hundred at once, too.
    return CodeqBroker(url, prefetch=100)


broker = _broker(os.environ["BROKER_URL"])


@broker.task(task_name="note")
async def note(journal: str, payload: str) -> None:
    """Note it in the event loop, as tasks of taskiq run."""
    sends.note(journal, payload)


async def _send() -> None:
    await broker.startup()
    for given in sends.timed():
        await note.kiq(*given)
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(_send())
