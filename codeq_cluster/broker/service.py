"""Broker: all operations that a node offers its callers, on every shard of the cluster."""

from __future__ import annotations

from collections.abc import Callable

from codeq_cluster.broker.background import Background
from codeq_cluster.broker.files import Files
from codeq_cluster.broker.ports import Clock, ReadinessCheck, Shards
from codeq_cluster.broker.queries.logs import Logs
from codeq_cluster.broker.queries.queries import Queries
from codeq_cluster.broker.queries.search import Search
from codeq_cluster.broker.requests.bulk_jobs import BulkJobs
from codeq_cluster.broker.requests.claims import Claims
from codeq_cluster.broker.requests.consumer import Consumer
from codeq_cluster.broker.requests.graphs import Graphs
from codeq_cluster.broker.requests.groups import Groups
from codeq_cluster.broker.requests.importer import Importer
from codeq_cluster.broker.requests.leases import Leases
from codeq_cluster.broker.requests.operators import Operators
from codeq_cluster.broker.requests.pins import Pins
from codeq_cluster.broker.requests.producer import Producer
from codeq_cluster.broker.requests.queue_policies import QueuePolicies
from codeq_cluster.broker.requests.schedules import Schedules
from codeq_cluster.broker.requests.steps import Steps
from codeq_cluster.broker.requests.triage import Triage
from codeq_cluster.broker.requests.uploads import Uploads
from codeq_cluster.broker.values import ShardStatus
from codeq_cluster.broker.waiters import Waiters


class Broker:
    """The operations of all shards, wherever each is led; the routes and the page call only this.

    `timeout_s` bounds a call from its start, not counting the time it was asked to wait; a `Caller`
    has its deadline. Unless a method says otherwise, it raises `CodeqError` if the operation was
    not carried out or its outcome is unknown. A task claimed for a cancelled call is returned to
    its queue.

    Attributes:
        operators: Lists of tasks, and actions on many of them.
        queue_policies: Topics, pauses, subscriptions.
        leases: Renews and watches many leases at once.
        importer: Imports from other clusters.
        searching: Finds tasks by their fields.
        triage: Actions on dead and waiting tasks.
    """

    def __init__(
        self,
        *,
        shards: Shards,
        clock: Clock,
        waiters: Waiters,
        background: Background,
        status: Callable[[], list[ShardStatus]],
        missing: ReadinessCheck,
        files: Files | None = None,
        artifact_base: str = "",
    ) -> None:
        pins = Pins()
        producer = Producer(shards, clock, pins)
        uploads = Uploads(shards, files, background, base=artifact_base)
        consumer = Consumer(shards, uploads)
        queries = Queries(shards, waiters)
        self.operators = Operators(shards)
        self.queue_policies = QueuePolicies(shards)
        self.schedules = Schedules(shards)
        self.groups = Groups(shards)
        self.graphs = Graphs(shards, pins)
        self.leases = Leases(shards)
        self.steps = Steps(shards)
        self.bulk = BulkJobs(shards, clock)
        self.logs = Logs(shards)
        self.importer = Importer(shards)
        self.searching = Search(shards)
        self.triage = Triage(shards)
        self.create = producer.create
        self.change_tags = producer.change_tags
        self.claim = Claims(shards, waiters, background).claim
        self.heartbeat = consumer.heartbeat
        self.give_back = consumer.give_back
        self.submit = consumer.submit
        self.upload = uploads.upload
        self.cancel = consumer.cancel
        self.task = queries.task
        self.result = queries.result
        self.queues = queries.queues
        self.shard_status = status
        self._replicas = tuple(map(shards.local, range(shards.count)))
        self.missing = missing

    def level(self) -> int:
        """Return the lowest level of formats in use on any shard; no leader's is lower."""
        return min(replica.level for replica in self._replicas)
