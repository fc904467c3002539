"""Broker: everything a caller can ask of one node, for every shard of the cluster."""

from __future__ import annotations

from collections.abc import Callable

from codeq_cluster.broker.background import Background
from codeq_cluster.broker.consumer import Consumer
from codeq_cluster.broker.ports import Shards
from codeq_cluster.broker.producer import Producer
from codeq_cluster.broker.queries import Queries
from codeq_cluster.broker.requests import ShardStatus
from codeq_cluster.broker.waiters import Waiters


class Broker:
    """One object for the front end; each desk does its own part."""

    def __init__(
        self,
        *,
        shards: Shards,
        waiters: Waiters,
        background: Background,
        max_attempts_default: int,
        status: Callable[[], list[ShardStatus]],
        missing: Callable[[], list[str]],
    ) -> None:
        producer = Producer(shards, max_attempts_default=max_attempts_default)
        consumer = Consumer(shards, waiters, background)
        queries = Queries(shards, waiters)
        self.create = producer.create
        self.claim = consumer.claim
        self.heartbeat = consumer.heartbeat
        self.abandon = consumer.abandon
        self.nack = consumer.nack
        self.submit = consumer.submit
        self.cancel = consumer.cancel
        self.task = queries.task
        self.result = queries.result
        self.queues = queries.queues
        self.shard_status = status
        self.missing = missing
