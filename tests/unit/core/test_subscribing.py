"""Subscriptions: created once, renewed while they live, gone at their end."""

from __future__ import annotations

from msgspec.structs import replace

from codeq_cluster.core.items import SUBSCRIPTIONS_MAX, Mode, Subscription
from codeq_cluster.core.operations import RenewSubscription, Subscribe, Unsubscribe
from codeq_cluster.core.outcomes import Changed, Rejected, Rejection, Subscribed
from codeq_cluster.core.stored_item import ItemKind

from .shard import NOW_MS, Shard

SUBSCRIBE = Subscribe(
    id="s",
    tenant="acme",
    worker="ann",
    callback_url="https://worker.example/",
    event_types=("render",),
    mode=Mode.GROUP,
    group_id="g",
    ttl_ms=300,
    min_interval_ms=5,
)
MADE = Subscription(
    tenant="acme",
    id="s",
    worker="ann",
    callback_url="https://worker.example/",
    event_types=("render",),
    mode=Mode.GROUP,
    group_id="g",
    ttl_ms=300,
    min_interval_ms=5,
    created_ms=NOW_MS,
    expires_ms=NOW_MS + 300,
)
RENEW = RenewSubscription(id="s", tenant="acme")


def test_a_subscription_is_made_once() -> None:
    """A second one of the same id is a retry, at any time."""
    shard = Shard()

    assert Subscribed(MADE) == shard.ask(SUBSCRIBE)
    shard.view.now_ms += 5
    assert Subscribed(MADE) == shard.ask(SUBSCRIBE)
    assert [MADE] == shard.items(ItemKind.SUBSCRIPTION)


def test_a_tenant_has_so_many_subscriptions_and_no_more() -> None:
    """Other tenants are not affected, and an ended subscription makes room."""
    shard = Shard()
    for n in range(SUBSCRIPTIONS_MAX):
        shard.ask(replace(SUBSCRIBE, id=f"s-{n}"))

    refused = shard.ask(replace(SUBSCRIBE, id="one more"))
    elsewhere = shard.ask(replace(SUBSCRIBE, id="one more", tenant="umbrella"))

    assert Rejected(Rejection.TOO_MANY, "subscriptions") == refused
    assert isinstance(elsewhere, Subscribed)
    # An id that exists is a retry, so the bound does not apply.
    assert isinstance(shard.ask(replace(SUBSCRIBE, id="s-7")), Subscribed)
    shard.ask(Unsubscribe(id="s-3", tenant="acme"))
    assert isinstance(shard.ask(replace(SUBSCRIBE, id="one more")), Subscribed)


def test_a_renewed_subscription_lives_for_its_time_again() -> None:
    """The time is its own, or a new one that it keeps from then on."""
    shard = Shard()
    shard.ask(SUBSCRIBE)
    shard.view.now_ms += 299

    assert Subscribed(replace(MADE, expires_ms=NOW_MS + 599)) == shard.ask(RENEW)
    longer = replace(MADE, ttl_ms=900, expires_ms=NOW_MS + 1_199)
    assert Subscribed(longer) == shard.ask(replace(RENEW, ttl_ms=900))
    shard.view.now_ms += 1
    assert Subscribed(replace(longer, expires_ms=NOW_MS + 1_200)) == shard.ask(RENEW)


def test_a_subscription_that_is_over_cannot_be_renewed() -> None:
    """It has ended at its last instant, deleted or not."""
    shard = Shard()
    shard.ask(SUBSCRIBE)
    shard.view.now_ms += 300

    assert Rejected(Rejection.NOT_FOUND) == shard.ask(RENEW)
    assert 1 == shard.wait(0)
    assert [] == shard.items(ItemKind.SUBSCRIPTION)
    assert Rejected(Rejection.NOT_FOUND) == shard.ask(RENEW)


def test_another_tenants_subscription_does_not_exist() -> None:
    """It can be neither renewed nor ended, and its id is free for others."""
    shard = Shard()
    shard.ask(SUBSCRIBE)
    foreign = Unsubscribe(id="s", tenant="umbrella")

    assert Rejected(Rejection.NOT_FOUND) == shard.ask(replace(RENEW, tenant="umbrella"))
    assert Changed(0) == shard.ask(foreign)
    assert Subscribed(replace(MADE, tenant="umbrella")) == shard.ask(
        replace(SUBSCRIBE, tenant="umbrella")
    )
    assert Changed(1) == shard.ask(foreign)
    assert [MADE] == shard.items(ItemKind.SUBSCRIPTION)


def test_an_ended_subscription_stays_ended() -> None:
    """Ending it again is neither an error nor a change."""
    shard = Shard()
    shard.ask(SUBSCRIBE)
    end = Unsubscribe(id="s", tenant="acme")

    assert Changed(1) == shard.ask(end)
    assert Changed(0) == shard.ask(end)
    assert Rejected(Rejection.NOT_FOUND) == shard.ask(RENEW)
