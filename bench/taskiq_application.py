"""Taskiq application: one task that notes its run, on each broker of `bench.frameworks`."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from taskiq import AsyncBroker


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
    """Add a byte to the journal."""
    with Path(journal).open("ab", buffering=0) as file:  # noqa: ASYNC230 - a byte
        file.write(payload[:1].encode())


async def _send(journal: str, tasks: int) -> float:
    await broker.startup()
    began_s = time.monotonic()
    for _ in range(tasks):
        await note.kiq(journal, "x" * 100)
    took_s = time.monotonic() - began_s
    await broker.shutdown()
    return took_s


if __name__ == "__main__":
    journal, tasks = sys.argv[1:]
    print(asyncio.run(_send(journal, int(tasks))))
