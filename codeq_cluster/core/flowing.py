"""Flowing: the rules of a queue and its keys, from its topic to every shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from codeq_cluster.core.administering import delete_topic, rule_on, stands
from codeq_cluster.core.changes import Decision, ItemChange
from codeq_cluster.core.gating import in_force
from codeq_cluster.core.items import Item, Topic
from codeq_cluster.core.lane import Flow, FlowRule, SetFlow
from codeq_cluster.core.limit import Limit, scope_of_limit
from codeq_cluster.core.limiting import refused_sharer, rule_of
from codeq_cluster.core.operations import DeleteTopic, PutFlow
from codeq_cluster.core.outcomes import Changed, Rejected, Rejection
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.spreading import RULED, is_full, spread
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.view import View


def put_flow(view: View, operation: PutFlow, _: LifetimeRules) -> Decision:
    """Create or change a topic with its rules, and send new ones to every shard.

    A rule of the whole queue, and a limit that it shares, bring its new tasks to one shard. The
    tasks of its keys must not be on others then, or a key's limit would hold for each shard.
    """
    asked = operation.topic
    found = view.item(ItemKind.TOPIC, asked.tenant, asked.name.lower())
    assert found is None or isinstance(found, Topic)
    queue = asked.name.lower()
    here = view.flow(asked.tenant, queue)
    had = rule_on(found, 0) if found is not None else _left(asked.tenant, queue, here)
    limit = operation.limit.lower()
    wanted = replace(had, per_key=operation.per_key, per_queue=operation.per_queue, limit=limit)
    if wanted == had:
        return stands(view, asked, had)
    if is_full(view, asked.tenant, queue):
        return Decision(Rejected(Rejection.TOO_MANY, RULED))
    pinned = here.pinned if here is not None else ""
    if limit:
        shards = operation.shards
        refused = refused_sharer(view, asked.tenant, queue, limit, pinned=pinned, shards=shards)
        if refused is not None:
            return Decision(refused)
    if limit or wanted.per_queue is not None:
        if not pinned and here is not None and here.per_key:
            return Decision(Rejected(Rejection.KEYS_ELSEWHERE))
        pinned = pinned or (scope_of_limit(limit) if limit else queue)
    wanted = replace(wanted, seq=view.next_seq(), pinned=pinned)
    decision = stands(view, asked, wanted)
    if not decision.changes:
        return decision
    return Decision(decision.outcome, (*decision.changes, *spread(view, wanted, operation.shards)))


def drop_topic(view: View, operation: DeleteTopic, rules: LifetimeRules) -> Decision:
    """Delete a topic, and end its rules on every shard."""
    queue = operation.name.lower()
    found = view.item(ItemKind.TOPIC, operation.tenant, queue)
    decision = delete_topic(view, operation, rules)
    if not isinstance(found, Topic) or not (found.per_key or found.per_queue or found.limit):
        return decision
    ended = FlowRule(operation.tenant, queue, view.next_seq(), None, 0, pinned=found.pinned)
    return Decision(decision.outcome, (*decision.changes, *spread(view, ended, operation.shards)))


def arrived(view: View, item: Topic | Limit, shards: int) -> list[ItemChange]:
    """Return what puts the rules of an imported item in force on every shard, if it has any."""
    if not item.rule_seq:
        return []
    rule = rule_on(item, 0) if isinstance(item, Topic) else rule_of(item, 0)
    return list(spread(view, rule, shards))


def restored(item: Item) -> Iterator[Flow]:
    """Yield the rules of a topic, or of a limit, in force on a shard that is made from a backup."""
    if isinstance(item, Limit):
        scope = scope_of_limit(item.id)
        yield Flow(tenant=item.tenant, id=scope, seq=item.rule_seq, per_queue=item.rule)
    if isinstance(item, Topic) and (item.per_key is not None or item.pinned):
        yield Flow(
            tenant=item.tenant,
            id=item.id,
            seq=item.rule_seq,
            per_key=item.per_key,
            expires_ms=1,  # The other cluster may not have followed it everywhere.
            per_queue=item.per_queue,
            pinned=item.pinned,
            limit=item.limit,
        )


def restored_without(tenant: str, queue: str, *, pinned: str) -> Flow:
    """Return what lets a queue's held tasks go although no topic of a backup has a rule for them.

    The shard may have been copied before it followed the end of the rule everywhere. A pin outlives
    the topic.
    """
    return Flow(tenant=tenant, id=queue, seq=0, expires_ms=1, pinned=pinned)


def _left(tenant: str, queue: str, flow: Flow | None) -> FlowRule:
    """Return what is in force without a topic: a pin, and the end of the rules, outlive theirs."""
    if flow is None:
        return FlowRule(tenant, queue, 0, None, 0)
    return FlowRule(
        tenant, queue, flow.seq, flow.per_key, 0, flow.per_queue, flow.pinned, flow.limit
    )


def _set_flow(view: View, operation: SetFlow, _: LifetimeRules) -> Decision:
    """Put a rule in force here; a relay brings the same one."""
    return Decision(Changed(1), tuple(in_force(view, operation.rule)))


RULES: dict[type, Callable[[View, Any, LifetimeRules], Decision]] = {SetFlow: _set_flow}
