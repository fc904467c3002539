"""Dramatiq application: one actor that notes its run, on each broker of `bench.frameworks`."""

from __future__ import annotations

import os
from typing import Any

import dramatiq

from bench import sends


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

    # RabbitMQ's broker does not await its acknowledgements either.
    return CodeqBroker(url, confirm_acks=False)


broker = _broker(os.environ["BROKER_URL"])
dramatiq.set_broker(broker)


note = dramatiq.actor(sends.note)


if __name__ == "__main__":
    for given in sends.timed():
        note.send(*given)
    broker.close()
