"""Dramatiq application: one actor that notes its run, on each broker of `bench.frameworks`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import dramatiq


def _broker(url: str) -> dramatiq.Broker:
    if url.startswith("redis"):
        from dramatiq.brokers.redis import RedisBroker  # noqa: PLC0415 - of what is measured

        return RedisBroker(url=url)
    if url.startswith("amqp"):
        from dramatiq.brokers.rabbitmq import RabbitmqBroker  # noqa: PLC0415

        class Quorum(RabbitmqBroker):
            def _build_queue_arguments(self, queue_name: str) -> Any:
                arguments = super()._build_queue_arguments(queue_name)
                return arguments | {"x-queue-type": "quorum"}

        # A message that was sent is then on a majority, as with the cluster.
        return Quorum(url=url, confirm_delivery=True)
    from codeq_cluster.integrations.dramatiq import CodeqBroker  # noqa: PLC0415

    return CodeqBroker(url)


broker = _broker(os.environ["BROKER_URL"])
dramatiq.set_broker(broker)


@dramatiq.actor
def note(journal: str, payload: str) -> None:
    """Add a byte to the journal."""
    with Path(journal).open("ab", buffering=0) as file:
        file.write(payload[:1].encode())


if __name__ == "__main__":
    journal, tasks = sys.argv[1:]
    began_s = time.monotonic()
    for _ in range(int(tasks)):
        note.send(journal, "x" * 100)
    print(time.monotonic() - began_s)
    broker.close()
