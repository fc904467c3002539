"""Flowing: the rule of a queue's keys, from its topic to every shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from codeq_cluster.core import sending
from codeq_cluster.core.administering import delete_topic, stands
from codeq_cluster.core.changes import Decision, ItemChange
from codeq_cluster.core.items import Topic
from codeq_cluster.core.lane import Flow, FlowRule, Lane, SetFlow, lane_name
from codeq_cluster.core.lanes import in_force
from codeq_cluster.core.operations import DeleteTopic, PutFlow
from codeq_cluster.core.outcomes import Changed
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.sharding import home_shard
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.view import View


def put_flow(view: View, operation: PutFlow, _: LifetimeRules) -> Decision:
    """Create or change a topic with the rule of its keys, and send a new rule to every shard."""
    asked = operation.topic
    found = view.item(ItemKind.TOPIC, asked.tenant, asked.name.lower())
    assert found is None or isinstance(found, Topic)
    had = found.per_key if found is not None else None
    if operation.per_key == had:
        return stands(view, asked, per_key=had, rule_seq=found.rule_seq if found else 0)
    seq = view.next_seq()
    decision = stands(view, asked, per_key=operation.per_key, rule_seq=seq)
    if not decision.changes:
        return decision
    rule = FlowRule(asked.tenant, asked.name.lower(), seq, operation.per_key, 0)
    spread = _spread(view, rule, operation.shards)
    return Decision(decision.outcome, (*decision.changes, *spread))


def drop_topic(view: View, operation: DeleteTopic, rules: LifetimeRules) -> Decision:
    """Delete a topic, and end the rule of its keys on every shard."""
    queue = operation.name.lower()
    found = view.item(ItemKind.TOPIC, operation.tenant, queue)
    decision = delete_topic(view, operation, rules)
    if not isinstance(found, Topic) or found.per_key is None:
        return decision
    rule = FlowRule(operation.tenant, queue, view.next_seq(), None, 0)
    return Decision(decision.outcome, (*decision.changes, *_spread(view, rule, operation.shards)))


def spread(view: View, topic: Topic, shards: int) -> list[ItemChange]:
    """Return what puts the rule of a new topic's keys in force on every shard; none without one."""
    return list(_spread(view, rule_on(topic, 0), shards)) if topic.rule_seq else []


def rule_on(topic: Topic, shard: int) -> FlowRule:
    """Return the rule of a topic's keys for a shard."""
    return FlowRule(topic.tenant, topic.id, topic.rule_seq, topic.per_key, shard)


def restored(topic: Topic) -> Flow:
    """Return the rule of a topic's keys in force on a shard that is made from a backup."""
    return Flow(
        tenant=topic.tenant,
        id=topic.id,
        seq=topic.rule_seq,
        per_key=topic.per_key,
        expires_ms=1,  # The other cluster may not have followed it everywhere.
    )


def restored_without(lane: Lane) -> Flow:
    """Return what lets the tasks go that wait in a lane although no topic of a backup has a rule.

    The shard may have been copied before it followed the end of the rule everywhere.
    """
    return Flow(tenant=lane.tenant, id=lane.queue, seq=0, expires_ms=1)


def _set_flow(view: View, operation: SetFlow, _: LifetimeRules) -> Decision:
    """Put a rule in force here; a relay brings the same one."""
    return Decision(Changed(1), tuple(in_force(view, operation.rule)))


def _spread(view: View, rule: FlowRule, shards: int) -> Iterator[ItemChange]:
    """Yield what puts a rule in force here, and the relays to all other shards."""
    home = home_shard(rule.tenant, shards)
    cause = f"flow:{lane_name(rule.queue)}"
    yield from in_force(view, rule)
    yield from sending.sent(
        view,
        [
            sending.Cause(
                f"{cause}.{rule.seq}.{shard}",
                cause,
                shard,
                replace(rule, shard=shard),
            )
            for shard in range(shards)
            if shard != home
        ],
    )


RULES: dict[type, Callable[[View, Any, LifetimeRules], Decision]] = {SetFlow: _set_flow}
