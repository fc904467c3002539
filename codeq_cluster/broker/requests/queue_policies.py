"""Queue policies: topics, pauses, subscriptions and webhook keys, on the tenant's home shard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from codeq_cluster.broker.ports import Shards
from codeq_cluster.broker.queries.browsing import every_shards
from codeq_cluster.broker.queries.search import item_of, items_of
from codeq_cluster.broker.questions import Settle
from codeq_cluster.broker.requests.producer import new_id, on_their_shards
from codeq_cluster.broker.values import Caller, new_request
from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.administering import rule_on
from codeq_cluster.core.gate import Gate, PerQueue
from codeq_cluster.core.items import (
    PAUSES_MAX,
    TOPICS_MAX,
    WEBHOOK_KEY_ID,
    Pause,
    Subscription,
    Topic,
    WebhookKey,
)
from codeq_cluster.core.lane import (
    FLOWS_MAX,
    KEY_RULES_MAX,
    Flow,
    FlowRule,
    Lane,
    OwnRule,
    PerKey,
    SetFlow,
    SetKey,
    lane_id,
    lane_name,
)
from codeq_cluster.core.limit import (
    LIMITS_MAX,
    SHARERS_MAX,
    DeleteLimit,
    Limit,
    PutLimit,
    scope_of_limit,
)
from codeq_cluster.core.limiting import rule_of
from codeq_cluster.core.operations import (
    DeleteTopic,
    Operation,
    PauseQueue,
    PutFlow,
    PutTopic,
    Record,
    RenewSubscription,
    ResumeQueue,
    RotateWebhookKey,
    Subscribe,
    Unsubscribe,
)
from codeq_cluster.core.outcomes import (
    Changed,
    LimitStands,
    Outcome,
    Rejected,
    Rejection,
    Subscribed,
    TopicStands,
)
from codeq_cluster.core.sharding import home_shard, shard_of_lane, shard_of_queue
from codeq_cluster.core.spreading import RULED
from codeq_cluster.core.stored_item import ItemKind, StoredItem
from codeq_cluster.core.task import Counters
from codeq_cluster.errors import CodeqError, OutcomeUnknown, TooMany

_I = TypeVar("_I", bound=StoredItem)

_PAGE = 1000  # Pauses, or topics, in one page.
_RULE_S_MAX = 2.0  # Until a shard has a new rule; after that its relay brings it.


_MOST = {
    "topics": TOPICS_MAX,
    "paused queues": PAUSES_MAX,
    "keys with rules of their own": KEY_RULES_MAX,
    "limits": LIMITS_MAX,
    "queues of one limit": SHARERS_MAX,
    RULED: FLOWS_MAX,
}
_FEWER_RULES = (
    "other names count for a day after their rules have ended, and for ever if they had a limit; "
    "give new rules to names that had some"
)


class LimitState(Struct, frozen=True, kw_only=True):
    """A limit, and what the queues that share it do.

    Attributes:
        queues: Those that name it, by name.
        running: Their tasks in progress, on all shards.
        gate: What its rate has spent, and until when it is held; None for nothing.
    """

    limit: Limit
    queues: tuple[str, ...]
    running: int
    gate: Gate | None


class QueuePolicies:
    """Changes the policies of a tenant's queues; answers once every shard's leader applies them.

    A leader elected right afterwards may apply the old policy for a moment. It knows its own shard
    exactly, but the home shard only as far as its node has applied it.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    async def put_topic(self, caller: Caller, asked: PutTopic) -> TopicStands:
        """Create or change a topic."""
        outcome = await self._change_and_settle(caller, replace(asked, request=new_request()))
        assert isinstance(outcome, TopicStands)
        return outcome

    async def put_flow(
        self,
        caller: Caller,
        asked: PutTopic,
        per_key: PerKey | None,
        per_queue: PerQueue | None,
        *,
        limit: str = "",
    ) -> TopicStands | Rejected:
        """Create or change a topic with its rules, and tell every shard of them."""
        operation = PutFlow(
            topic=replace(asked, request=new_request()),
            per_key=per_key,
            shards=self._shards.count,
            per_queue=per_queue,
            limit=limit,
        )
        outcome = await self._change_and_settle(caller, operation)
        if isinstance(outcome, Rejected):
            return outcome
        assert isinstance(outcome, TopicStands)
        if outcome.topic.rule_seq:
            await self._tell(lambda shard: rule_on(outcome.topic, shard))
        return outcome

    async def put_limit(self, caller: Caller, name: str, rule: PerQueue) -> LimitStands:
        """Create or change a limit, and tell every shard of it; may raise TooMany."""
        operation = PutLimit(**caller.signed(), name=name, rule=rule, shards=self._shards.count)
        outcome = await self._change_and_settle(caller, operation)
        assert isinstance(outcome, LimitStands)
        await self._tell(lambda shard: rule_of(outcome.limit, shard))
        return outcome

    async def delete_limit(self, caller: Caller, name: str) -> Rejected | None:
        """Delete a limit, or return why not; one that does not exist counts as deleted."""
        operation = DeleteLimit(**caller.signed(), name=name, shards=self._shards.count)
        outcome = await self._change_and_settle(caller, operation)
        return outcome if isinstance(outcome, Rejected) else None

    async def limit(self, caller: Caller, name: str) -> LimitState | None:
        """Return a limit and what its queues do now, or None."""
        item = await self._item(caller, Limit, name.lower())
        if item is None:
            return None
        topics = self._listed(caller, Topic)
        queues = [topic.id async for topic in topics if topic.limit == item.id]
        scope = scope_of_limit(item.id)
        home = shard_of_queue(caller.tenant, scope, self._shards.count)
        gate_key = keyspace.item(ItemKind.GATE, caller.tenant, scope)
        keys = (gate_key, *(keyspace.stats(queue, caller.tenant) for queue in queues))
        read = (
            self._shards.read(shard, keys, deadline=caller.deadline)
            for shard in range(self._shards.count)
        )
        rows = [snapshot.values for snapshot in await asyncio.gather(*read)]
        counted = (row for values in rows for row in values[1:] if row is not None)
        return LimitState(
            limit=item,
            queues=tuple(sorted(queues)),
            running=sum(records.decode_counters(row).leased for row in counted),
            gate=records.item_in(rows[home][0], Gate),
        )

    def _listed(self, caller: Caller, kind: type[_I]) -> AsyncIterator[_I]:
        return items_of(self._shards, self._home(caller.tenant), kind, caller, count=_PAGE)

    async def _tell(self, rule_for: Callable[[int], FlowRule]) -> None:
        """Bring a rule to every shard at once.

        The home shard's relays say the same, and reach a shard that is out now.
        """
        rules = [(shard, SetFlow(rule_for(shard))) for shard in range(self._shards.count)]
        await on_their_shards(self._shards, rules, timeout_s=_RULE_S_MAX)

    async def is_settling(self, caller: Caller, topic: Topic) -> bool:
        """Return whether some tasks do not follow the topic's rules yet."""
        if not topic.rule_seq:
            return False
        key = keyspace.item(ItemKind.FLOW, caller.tenant, topic.id)
        read = (
            self._shards.read(shard, (key,), deadline=caller.deadline)
            for shard in range(self._shards.count)
        )
        for found in await asyncio.gather(*read, return_exceptions=True):
            if isinstance(found, CodeqError):
                return True  # A shard that does not answer may have an older rule.
            if isinstance(found, BaseException):
                raise found
            flow = records.item_in(found.values[0], Flow)
            if flow is None and not (
                topic.per_key or topic.per_queue or topic.pinned or topic.limit
            ):
                continue  # The shard has followed the end of the rules, and has forgotten it since.
            if flow is None or flow.seq < topic.rule_seq or not flow.is_followed:
                return True
        return False

    async def draining(self, caller: Caller, topic: Topic) -> list[int]:
        """Return the shards that still have tasks from before the queue was pinned, or may have.

        Its limit counts them as they are known, and its rate holds on each of these shards.
        """
        if not topic.pinned:
            return []
        home = shard_of_queue(caller.tenant, topic.pinned, self._shards.count)
        others = [shard for shard in range(self._shards.count) if shard != home]
        key = keyspace.stats(topic.id, caller.tenant)
        read = (self._shards.read(each, (key,), deadline=caller.deadline) for each in others)
        found = await asyncio.gather(*read, return_exceptions=True)
        draining = []
        for shard, each in zip(others, found, strict=True):
            if isinstance(each, BaseException) and not isinstance(each, CodeqError):
                raise each
            if isinstance(each, CodeqError) or _is_alive(*each.values):
                draining.append(shard)
        return draining

    async def key(self, caller: Caller, queue: str, key: str) -> Lane:
        """Return a key of a queue; one without tasks and rule is empty."""
        tenant, name = caller.tenant, lane_id(queue, lane_name(key))
        shard = await self._key_shard(caller, queue, key)
        found = await item_of(self._shards, shard, Lane, caller, name)
        return found or Lane(tenant=tenant, id=name, key=key)

    async def set_key(self, caller: Caller, queue: str, key: str, own: OwnRule | None) -> None:
        """Give a key a rule of its own, another one, or none; may raise TooMany.

        One from before its queue was pinned ends: it may be on another shard, where the key's new
        tasks were then.
        """
        operation = SetKey(**caller.signed(), queue=queue, key=key, own=own)
        shard = await self._key_shard(caller, queue, key)
        [outcome] = await self._shards.operate(shard, [operation], deadline=caller.deadline)
        if isinstance(outcome, Rejected):
            raise too_many(outcome.limit)
        before = shard_of_lane(caller.tenant, queue, key, self._shards.count)
        if before != shard:
            ended = replace(operation, own=None)
            await self._shards.operate(before, [ended], deadline=caller.deadline)

    async def topic(self, caller: Caller, name: str) -> Topic | None:
        """Return a topic, or None."""
        return await self._item(caller, Topic, name.lower())

    async def delete_topic(self, caller: Caller, name: str) -> None:
        """Delete a topic; one that does not exist counts as deleted."""
        operation = DeleteTopic(**caller.signed(), name=name, shards=self._shards.count)
        await self._change_and_settle(caller, operation)

    async def pause(self, caller: Caller, queue: str) -> bool:
        """Pause a queue; return whether this changed anything."""
        operation = PauseQueue(**caller.signed(), queue=queue)
        return _changed(await self._change_and_settle(caller, operation))

    async def resume(self, caller: Caller, queue: str) -> bool:
        """Resume a queue; return whether this changed anything."""
        operation = ResumeQueue(**caller.signed(), queue=queue)
        return _changed(await self._change_and_settle(caller, operation))

    async def paused(self, caller: Caller) -> frozenset[str]:
        """Return the tenant's paused queues."""
        return frozenset([pause.id async for pause in self._listed(caller, Pause)])

    async def is_paused(self, caller: Caller, queue: str) -> bool:
        """Return whether a queue is paused."""
        return await self._item(caller, Pause, queue.lower()) is not None

    async def subscribe(self, caller: Caller, asked: Subscribe) -> Subscription | Rejected:
        """Add a subscription under a new id and return it, or the rejection."""
        return await self._subscribed(caller, replace(asked, id=new_id()))

    async def renew(
        self, caller: Caller, subscription_id: str, *, ttl_ms: int
    ) -> Subscription | Rejected:
        """Extend a subscription by its own time to live, or by `ttl_ms` if that is not 0."""
        operation = RenewSubscription(id=subscription_id, tenant=caller.tenant, ttl_ms=ttl_ms)
        return await self._subscribed(caller, operation)

    async def unsubscribe(self, caller: Caller, subscription_id: str) -> bool:
        """End a subscription; return whether it existed."""
        operation = Unsubscribe(id=subscription_id, tenant=caller.tenant)
        return _changed(await self._operate(caller, operation))

    async def webhook_key(self, caller: Caller) -> WebhookKey:
        """Return the version of the key that signs the tenant's callbacks."""
        found = await self._item(caller, WebhookKey, WEBHOOK_KEY_ID)
        return found or WebhookKey(tenant=caller.tenant)

    async def rotate_webhook_key(self, caller: Caller, *, overlap_ms: int) -> None:
        """Begin the key's next version; other nodes sign with it once they have applied this."""
        operation = RotateWebhookKey(**caller.signed(), overlap_ms=overlap_ms)
        await self._operate(caller, operation)

    async def record(self, caller: Caller, *, action: str, target: str, detail: str) -> None:
        """Write an audit record for an operator's action that no other log entry records."""
        operation = Record(**caller.signed(), action=action, target=target, detail=detail)
        await self._operate(caller, operation)

    async def _key_shard(self, caller: Caller, queue: str, key: str) -> int:
        """Return the shard of a key's new tasks."""
        # A pin outlives its topic, so that one does not say.
        flow = await self._item(caller, Flow, queue)
        if flow is not None and flow.pinned:
            return shard_of_queue(caller.tenant, flow.pinned, self._shards.count)
        return shard_of_lane(caller.tenant, queue, key, self._shards.count)

    async def _subscribed(
        self, caller: Caller, operation: Subscribe | RenewSubscription
    ) -> Subscription | Rejected:
        outcome = await self._operate(caller, operation)
        if isinstance(outcome, Rejected):
            return outcome
        assert isinstance(outcome, Subscribed)
        return outcome.subscription

    async def _change_and_settle(self, caller: Caller, operation: Operation) -> Outcome:
        """Change a policy and wait until the leader of every shard has it; may raise TooMany."""
        outcome = await self._operate(caller, operation)
        if isinstance(outcome, Rejected):
            if outcome.rejection is Rejection.TOO_MANY:
                raise too_many(outcome.limit)
            return outcome
        home, deadline = self._home(caller.tenant), caller.deadline
        try:
            snapshot = await self._shards.read(home, (), deadline=deadline)
            settle = Settle(shard=home, index=snapshot.applied_index)
            await every_shards(self._shards, settle, deadline=deadline)
        except CodeqError as error:
            raise OutcomeUnknown("it stands, but not every shard goes by it yet") from error
        return outcome

    async def _operate(self, caller: Caller, operation: Operation) -> Outcome:
        home = self._home(caller.tenant)
        [outcome] = await self._shards.operate(home, [operation], deadline=caller.deadline)
        return outcome

    async def _item(self, caller: Caller, kind: type[_I], item_id: str) -> _I | None:
        return await item_of(self._shards, self._home(caller.tenant), kind, caller, item_id)

    def _home(self, tenant: str) -> int:
        return home_shard(tenant, self._shards.count)


def too_many(what: str) -> TooMany:
    """Return the refusal of one more of what a tenant may keep, or name, at most so many of."""
    return TooMany(what, _MOST[what], advice=_FEWER_RULES if what == RULED else "")


def _is_alive(row: bytes | None) -> bool:
    """Return whether a queue has tasks on a shard that have not ended."""
    counters = Counters() if row is None else records.decode_counters(row)
    return counters.waiting + counters.leased > 0


def _changed(outcome: Outcome) -> bool:
    assert isinstance(outcome, Changed)
    return outcome.count > 0
