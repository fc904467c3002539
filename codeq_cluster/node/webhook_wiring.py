"""Webhook wiring: runs the outbox jobs of the shards led here, and notices."""

from __future__ import annotations

from functools import partial

from codeq_cluster.artifacts.garbage_collection import AT_ONCE, GarbageCollection
from codeq_cluster.broker.background import Background
from codeq_cluster.broker.ports import StateStore
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.core.items import Delivery, Item, Sweep
from codeq_cluster.core.loops import Loop
from codeq_cluster.core.operations import Operation
from codeq_cluster.fair_shares import FairShares
from codeq_cluster.node.artifact_files import ArtifactFiles
from codeq_cluster.node.base import NodeBase
from codeq_cluster.node.parts import NodeParts
from codeq_cluster.ratelimit.token_bucket import Scope
from codeq_cluster.webhooks.http_client import Sender
from codeq_cluster.webhooks.notification_queue import NotificationQueue
from codeq_cluster.webhooks.outbox import JobOutbox, Place
from codeq_cluster.webhooks.queue_ready import KIND as QUEUE_READY
from codeq_cluster.webhooks.queue_ready import Notices
from codeq_cluster.webhooks.result_delivery import KIND as TASK_RESULT
from codeq_cluster.webhooks.result_delivery import Callbacks

_ARTIFACT_STORE = "the artifact store"  # No URL has such a host.


class WebhookWiring:
    """Starts the broker's outgoing calls."""

    def __init__(self, base: NodeBase, parts: NodeParts) -> None:
        self._settings = base.settings.webhooks
        self._engines = parts.replicas.engines
        self._stores = parts.storage.shards
        self._catalogue = parts.replicas.catalogue
        self._quotas = parts.calls.quotas
        self._metrics = base.metrics
        self._tracing = base.tracing
        self._stack = base.stack

    async def start(self, files: ArtifactFiles | None) -> Background:
        """Start all parts; return the background that runs them and may run more.

        Args:
            files: The artifact store; None for none.
        """
        # Callers of the sender stop before it does, so that a planned stop does not count as a
        # target's failure.
        sender = Sender(self._settings, webhook_key=self._catalogue.webhook_key)
        await sender.start()
        self._stack.push_async_callback(sender.stop)
        background = Background()
        self._stack.push_async_callback(background.stop)
        if files is not None:
            background.spawn(files.check_soon())
        self._start_outboxes(sender, files, background)
        self._start_notices(sender, background)
        return background

    def _start_outboxes(
        self, sender: Sender, files: ArtifactFiles | None, background: Background
    ) -> None:
        sweeps = GarbageCollection(files, on_outcome=self._metrics.swept.inc)
        callbacks = Callbacks(
            sender,
            wait_s=partial(self._quotas.wait_s, Scope.WEBHOOK, TASK_RESULT),
            on_outcome=self._metrics.webhook_delivered,
            tracing=self._tracing,
        )

        for engine, store in zip(self._engines, self._stores, strict=True):
            outbox_jobs = JobOutbox(
                engine,
                store.state,
                run=partial(_run_outbox_job, callbacks, sweeps, store.state),
                place=partial(_place, callbacks),
                room=partial(_room, callbacks),
                shares=partial(_shares, sender, sweeps),
                age_max_ms=self._settings.max_age_seconds * 1000,
                background=background,
                failed=partial(self._metrics.item_failures.inc, Loop.OUTBOX),
            )
            engine.on_rows(outbox_jobs.rows, Family.OUTBOX)
            engine.on_reload(outbox_jobs.reload)
            engine.on_leader(outbox_jobs.look_soon)
            outbox_jobs.look_soon()
            self._stack.callback(outbox_jobs.stop)

    def _start_notices(self, sender: Sender, background: Background) -> None:
        catalogue = self._catalogue

        def on_outcome(queue: str, outcome: str) -> None:
            self._metrics.webhook_delivered(QUEUE_READY, queue, outcome)

        notification_queue = NotificationQueue(
            sender,
            background=background,
            wait_s=partial(self._quotas.wait_s, Scope.WEBHOOK, QUEUE_READY),
            on_outcome=on_outcome,
        )
        notices = Notices(
            catalogue, self._engines, notification_queue=notification_queue, on_outcome=on_outcome
        )
        self._stack.callback(notices.stop)
        for shard, engine in enumerate(self._engines):
            engine.on_rows(notices.rows, Family.STATS, Family.ITEM)
            engine.on_reload(notices.reload)
            engine.on_leader(partial(notices.led, shard))
            notices.led(shard)
        self._metrics.read_at_scrape(
            "codeq_subscriptions_active",
            "Subscriptions by the command they name, `*` for all; of the tenants whose home shard "
            "this node leads.",
            ("command",),
            lambda: [
                ((queue,), float(count))
                for queue, count in catalogue.subscriptions_by_queue(notices.leads_home).items()
            ],
        )


async def _run_outbox_job(
    callbacks: Callbacks, sweeps: GarbageCollection, store: StateStore, item: Item
) -> Operation | None:
    if isinstance(item, Sweep):
        return await sweeps.run(item)
    assert isinstance(item, Delivery), f"no outbox job: {item}"
    return await callbacks.run(store, item)


def _place(callbacks: Callbacks, item: Item) -> Place:
    if isinstance(item, Sweep):
        return item.tenant, _ARTIFACT_STORE
    assert isinstance(item, Delivery), f"no outbox job: {item}"
    return callbacks.route(item)


def _room(callbacks: Callbacks, place: Place) -> int:
    if place[1] == _ARTIFACT_STORE:
        return AT_ONCE  # All go to one store, so a tenant's share is the only bound.
    return callbacks.room(place)


def _shares(sender: Sender, sweeps: GarbageCollection, item: Item) -> FairShares:
    return sweeps.jobs if isinstance(item, Sweep) else sender.calls
