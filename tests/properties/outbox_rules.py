"""Outbox jobs: the leader's reports on callbacks and sweeps, and the subscriptions."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from codeq_cluster.core.items import Delivery, Item, Mode, Sweep
from codeq_cluster.core.operations import (
    Delivered,
    RenewSubscription,
    Replay,
    Subscribe,
    Swept,
    Undelivered,
    Unsubscribe,
)
from codeq_cluster.core.stored_item import ItemKind
from tests.properties.machine import Machine, indexes, tenants, workers
from tests.properties.model_items import DELIVERY_AGE_MAX_MS, DELIVERY_ATTEMPTS_MAX

# The number of the reported attempt, relative to the right one.
skews = st.sampled_from([0, 0, 0, 0, -1, 1])
subscriptions = st.sampled_from(["sub-1", "sub-2"])


class OutboxJobs(Machine):
    """Deliveries, sweeps, subscriptions."""

    @precondition(lambda self: self.items_of(ItemKind.DELIVERY))
    @rule(index=indexes)
    def delivered(self, index: int) -> None:
        """Report that a target has accepted."""
        deliveries = self.items_of(ItemKind.DELIVERY)
        found = deliveries[index % len(deliveries)]
        self.ask(Delivered(tenant=found.tenant, id=found.id))

    @precondition(lambda self: self.items_of(ItemKind.DELIVERY))
    @rule(
        index=indexes,
        skew=skews,
        deferred_ms=st.sampled_from([0, 0, 0, 5]),
        wait_ms=st.sampled_from([0, 0, 30]),
    )
    def undelivered(self, *, index: int, skew: int, deferred_ms: int, wait_ms: int) -> None:
        """Report that a target has not accepted."""
        deliveries = self.items_of(ItemKind.DELIVERY)
        found = deliveries[index % len(deliveries)]
        self._fail(found, skew=skew, deferred_ms=deferred_ms, wait_ms=wait_ms)

    @precondition(lambda self: self.items_of(ItemKind.DELIVERY))
    @rule(index=indexes, replays=st.integers(0, 2))
    def give_up(self, index: int, replays: int) -> None:
        """Let a delivery die, perhaps replay it, let it die again and retry the replay."""
        deliveries = self.items_of(ItemKind.DELIVERY)
        found = deliveries[index % len(deliveries)]
        replay = Replay(request=self.request(), tenant=found.tenant, ids=(found.id,), by="op")
        for number in range(replays + 1):
            for _ in range(DELIVERY_ATTEMPTS_MAX):
                self._fail(found)
            if number < replays:
                self.ask(replay)

    @precondition(lambda self: self.items_of(ItemKind.DELIVERY))
    @rule(
        index=indexes,
        short_ms=st.sampled_from([0, 0, 1]),
        deferred_ms=st.sampled_from([0, 5, 5, 5]),
    )
    def outlive(self, index: int, short_ms: int, deferred_ms: int) -> None:
        """Report on a delivery when it is too old, or almost, whether it was tried or not."""
        deliveries = self.items_of(ItemKind.DELIVERY)
        found = deliveries[index % len(deliveries)]
        assert isinstance(found, Delivery)
        end_ms = found.since_ms + DELIVERY_AGE_MAX_MS - short_ms
        passed_ms = max(0, end_ms - self.view.now_ms)
        self.view.now_ms += passed_ms
        self.model.pass_ms(passed_ms)
        self._fail(found, deferred_ms=deferred_ms)

    def _fail(self, name: Item, *, skew: int = 0, deferred_ms: int = 0, wait_ms: int = 0) -> None:
        found = self.view.item(ItemKind.DELIVERY, name.tenant, name.id)
        assert isinstance(found, Delivery)
        self.ask(
            Undelivered(
                tenant=found.tenant,
                id=found.id,
                attempt=max(1, found.attempts + 1 + skew),
                error="503",
                deferred_ms=deferred_ms,
                wait_ms=wait_ms,
            )
        )

    @precondition(lambda self: self.items_of(ItemKind.SWEEP))
    @rule(index=indexes, skew=skews, failed=st.booleans())
    def swept(self, index: int, skew: int, failed: bool) -> None:
        """Report that the store has deleted artifacts, or could not."""
        sweeps = self.items_of(ItemKind.SWEEP)
        found = sweeps[index % len(sweeps)]
        assert isinstance(found, Sweep)
        attempt = max(1, found.attempts + 1 + skew)
        self.ask(Swept(tenant=found.tenant, id=found.id, attempt=attempt, failed=failed))

    @rule(
        tenant=tenants,
        name=subscriptions,
        worker=workers,
        ttl_ms=st.sampled_from([5, 20]),
        mode=st.sampled_from(Mode),
    )
    def subscribe(self, tenant: str, name: str, worker: str, ttl_ms: int, mode: Mode) -> None:
        """Subscribe, or find the existing subscription."""
        self.ask(
            Subscribe(
                id=name,
                tenant=tenant,
                worker=worker,
                callback_url="https://worker.example/",
                event_types=("render",),
                mode=mode,
                group_id="g",
                ttl_ms=ttl_ms,
                min_interval_ms=3,
            )
        )

    @rule(tenant=tenants, name=subscriptions, ttl_ms=st.sampled_from([0, 7]))
    def renew(self, tenant: str, name: str, ttl_ms: int) -> None:
        """Renew a subscription, which may have ended."""
        self.ask(RenewSubscription(id=name, tenant=tenant, ttl_ms=ttl_ms))

    @rule(tenant=tenants, name=subscriptions)
    def unsubscribe(self, tenant: str, name: str) -> None:
        """End a subscription, which may be missing."""
        self.ask(Unsubscribe(id=name, tenant=tenant))
