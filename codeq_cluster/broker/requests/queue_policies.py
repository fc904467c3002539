"""Queue policies: topics, pauses, subscriptions and webhook keys, on the tenant's home shard."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.ports import Shards
from codeq_cluster.broker.questions import END, ListItems, Settle
from codeq_cluster.broker.requests.producer import new_id
from codeq_cluster.broker.values import new_request
from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.items import (
    PAUSES_MAX,
    TOPICS_MAX,
    WEBHOOK_KEY_ID,
    Item,
    ItemKind,
    Subscription,
    Topic,
    WebhookKey,
)
from codeq_cluster.core.operations import (
    DeleteTopic,
    Operation,
    PauseQueue,
    PutTopic,
    Record,
    RenewSubscription,
    ResumeQueue,
    RotateWebhookKey,
    Subscribe,
    Unsubscribe,
)
from codeq_cluster.core.outcomes import Changed, Outcome, Rejected, Subscribed, TopicStands
from codeq_cluster.core.sharding import home_shard
from codeq_cluster.errors import CodeqError, OutcomeUnknown, TooMany

_PAUSES = 1000  # Pauses in one page.


_MOST = {"topics": TOPICS_MAX, "paused queues": PAUSES_MAX}


class QueuePolicies:
    """Changes the policies of a tenant's queues; answers once every shard's leader applies them.

    A leader elected right afterwards may apply the old policy for a moment. It knows its own shard
    exactly, but the home shard only as far as its node has applied it.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    async def put_topic(self, asked: PutTopic, *, timeout_s: float) -> TopicStands:
        """Create or change a topic."""
        operation = replace(asked, request=new_request())
        outcome = await self._change_and_settle(asked.tenant, operation, timeout_s=timeout_s)
        assert isinstance(outcome, TopicStands)
        return outcome

    async def topic(self, tenant: str, name: str, *, timeout_s: float) -> Topic | None:
        """Return a topic, or None."""
        item = await self._item(ItemKind.TOPIC, tenant, name.lower(), timeout_s=timeout_s)
        return item if isinstance(item, Topic) else None

    async def delete_topic(self, tenant: str, name: str, *, by: str, timeout_s: float) -> None:
        """Delete a topic; one that does not exist counts as deleted."""
        operation = DeleteTopic(request=new_request(), tenant=tenant, name=name, by=by)
        await self._change_and_settle(tenant, operation, timeout_s=timeout_s)

    async def pause(self, tenant: str, queue: str, *, by: str, timeout_s: float) -> bool:
        """Pause a queue; return whether this changed anything."""
        operation = PauseQueue(request=new_request(), tenant=tenant, queue=queue, by=by)
        return _changed(await self._change_and_settle(tenant, operation, timeout_s=timeout_s))

    async def resume(self, tenant: str, queue: str, *, by: str, timeout_s: float) -> bool:
        """Resume a queue; return whether this changed anything."""
        operation = ResumeQueue(request=new_request(), tenant=tenant, queue=queue, by=by)
        return _changed(await self._change_and_settle(tenant, operation, timeout_s=timeout_s))

    async def paused(self, tenant: str, *, timeout_s: float) -> frozenset[str]:
        """Return the tenant's paused queues."""
        deadline, home = deadline_in(timeout_s), self._home(tenant)
        found: set[str] = set()
        after = b""
        while after != END:
            asked = ListItems(tenant=tenant, kind=ItemKind.PAUSE, after=after, count=_PAUSES)
            page = await self._shards.ask(home, asked, deadline=deadline)
            found.update(item.id for _, item in page.rows)
            after = page.edge
        return frozenset(found)

    async def is_paused(self, tenant: str, queue: str, *, timeout_s: float) -> bool:
        """Return whether a queue is paused."""
        item = await self._item(ItemKind.PAUSE, tenant, queue.lower(), timeout_s=timeout_s)
        return item is not None

    async def subscribe(self, asked: Subscribe, *, timeout_s: float) -> Subscription | Rejected:
        """Add a subscription under a new id and return it, or the rejection."""
        return await self._subscribed(replace(asked, id=new_id()), timeout_s=timeout_s)

    async def renew(
        self, tenant: str, subscription_id: str, *, ttl_ms: int, timeout_s: float
    ) -> Subscription | Rejected:
        """Extend a subscription by its own time to live, or by `ttl_ms` if that is not 0."""
        operation = RenewSubscription(id=subscription_id, tenant=tenant, ttl_ms=ttl_ms)
        return await self._subscribed(operation, timeout_s=timeout_s)

    async def unsubscribe(self, tenant: str, subscription_id: str, *, timeout_s: float) -> bool:
        """End a subscription; return whether it existed."""
        operation = Unsubscribe(id=subscription_id, tenant=tenant)
        return _changed(await self._operate(tenant, operation, deadline_in(timeout_s)))

    async def webhook_key(self, tenant: str, *, timeout_s: float) -> WebhookKey:
        """Return the version of the key that signs the tenant's callbacks."""
        item = await self._item(ItemKind.WEBHOOK_KEY, tenant, WEBHOOK_KEY_ID, timeout_s=timeout_s)
        return item if isinstance(item, WebhookKey) else WebhookKey(tenant=tenant)

    async def rotate_webhook_key(
        self, tenant: str, *, overlap_ms: int, by: str, timeout_s: float
    ) -> None:
        """Begin the key's next version; other nodes sign with it once they have applied this."""
        operation = RotateWebhookKey(
            request=new_request(), tenant=tenant, overlap_ms=overlap_ms, by=by
        )
        await self._operate(tenant, operation, deadline_in(timeout_s))

    async def record(
        self, tenant: str, *, by: str, action: str, target: str, detail: str, timeout_s: float
    ) -> None:
        """Write an audit record for an operator's action that no other log entry records."""
        operation = Record(
            request=new_request(),
            tenant=tenant,
            by=by,
            action=action,
            target=target,
            detail=detail,
        )
        await self._operate(tenant, operation, deadline_in(timeout_s))

    async def _subscribed(
        self, operation: Subscribe | RenewSubscription, *, timeout_s: float
    ) -> Subscription | Rejected:
        outcome = await self._operate(operation.tenant, operation, deadline_in(timeout_s))
        if isinstance(outcome, Rejected):
            return outcome
        assert isinstance(outcome, Subscribed)
        return outcome.subscription

    async def _change_and_settle(
        self, tenant: str, operation: Operation, *, timeout_s: float
    ) -> Outcome:
        """Change a policy and wait until the leader of every shard has it; may raise TooMany."""
        deadline = deadline_in(timeout_s)
        outcome = await self._operate(tenant, operation, deadline)
        if isinstance(outcome, Rejected):
            raise TooMany(outcome.limit, _MOST[outcome.limit])
        home = self._home(tenant)
        try:
            snapshot = await self._shards.read(home, (), deadline=deadline)
            settle = Settle(shard=home, index=snapshot.applied_index)
            await asyncio.gather(
                *(
                    self._shards.ask(shard, settle, deadline=deadline)
                    for shard in range(self._shards.count)
                )
            )
        except CodeqError as error:
            raise OutcomeUnknown("it stands, but not every shard goes by it yet") from error
        return outcome

    async def _operate(self, tenant: str, operation: Operation, deadline: float) -> Outcome:
        [outcome] = await self._shards.operate(self._home(tenant), [operation], deadline=deadline)
        return outcome

    async def _item(
        self, kind: ItemKind, tenant: str, item_id: str, *, timeout_s: float
    ) -> Item | None:
        keys = (keyspace.item(kind, tenant, item_id),)
        snapshot = await self._shards.read(
            self._home(tenant), keys, deadline=deadline_in(timeout_s)
        )
        [record] = snapshot.values
        return None if record is None else records.decode_item(record)

    def _home(self, tenant: str) -> int:
        return home_shard(tenant, self._shards.count)


def _changed(outcome: Outcome) -> bool:
    assert isinstance(outcome, Changed)
    return outcome.count > 0
