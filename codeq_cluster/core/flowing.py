"""Flowing: the rules of a queue and its keys, from its topic to every shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from codeq_cluster.core import sending
from codeq_cluster.core.administering import FlowOf, delete_topic, flow_of, stands
from codeq_cluster.core.changes import Decision, ItemChange
from codeq_cluster.core.items import Topic
from codeq_cluster.core.lane import Flow, FlowRule, SetFlow, lane_name
from codeq_cluster.core.lanes import in_force
from codeq_cluster.core.operations import DeleteTopic, PutFlow
from codeq_cluster.core.outcomes import Changed, Rejected, Rejection
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.sharding import home_shard
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.view import View


def put_flow(view: View, operation: PutFlow, _: LifetimeRules) -> Decision:
    """Create or change a topic with its rules, and send new ones to every shard.

    A rule of the whole queue brings its new tasks to one shard. The tasks of its keys must not be
    on others then, or a key's limit would hold for each shard.
    """
    asked = operation.topic
    found = view.item(ItemKind.TOPIC, asked.tenant, asked.name.lower())
    assert found is None or isinstance(found, Topic)
    had = flow_of(found) if found is not None else FlowOf()
    wanted = FlowOf(operation.per_key, operation.per_queue, had.rule_seq, had.pinned)
    if wanted == had:
        return stands(view, asked, had)
    here = view.flow(asked.tenant, asked.name.lower())
    pinned = here is not None and here.pinned
    if wanted.per_queue is not None and not pinned and here is not None and here.per_key:
        return Decision(Rejected(Rejection.KEYS_ELSEWHERE))
    pinned = pinned or wanted.per_queue is not None
    wanted = wanted._replace(rule_seq=view.next_seq(), pinned=pinned)
    decision = stands(view, asked, wanted)
    if not decision.changes:
        return decision
    rule = _rule(asked.tenant, asked.name.lower(), wanted, shard=0)
    spread = _spread(view, rule, operation.shards)
    return Decision(decision.outcome, (*decision.changes, *spread))


def drop_topic(view: View, operation: DeleteTopic, rules: LifetimeRules) -> Decision:
    """Delete a topic, and end its rules on every shard."""
    queue = operation.name.lower()
    found = view.item(ItemKind.TOPIC, operation.tenant, queue)
    decision = delete_topic(view, operation, rules)
    if not isinstance(found, Topic) or (found.per_key is None and found.per_queue is None):
        return decision
    ended = FlowOf(rule_seq=view.next_seq(), pinned=found.pinned)
    rule = _rule(operation.tenant, queue, ended, shard=0)
    return Decision(decision.outcome, (*decision.changes, *_spread(view, rule, operation.shards)))


def spread(view: View, topic: Topic, shards: int) -> list[ItemChange]:
    """Return what puts the rules of a new topic in force on every shard; nothing without any."""
    return list(_spread(view, rule_on(topic, 0), shards)) if topic.rule_seq else []


def rule_on(topic: Topic, shard: int) -> FlowRule:
    """Return the rules of a topic for a shard."""
    return _rule(topic.tenant, topic.id, flow_of(topic), shard=shard)


def restored(topic: Topic) -> Flow:
    """Return the rules of a topic in force on a shard that is made from a backup."""
    return Flow(
        tenant=topic.tenant,
        id=topic.id,
        seq=topic.rule_seq,
        per_key=topic.per_key,
        expires_ms=1,  # The other cluster may not have followed it everywhere.
        per_queue=topic.per_queue,
        pinned=topic.pinned,
    )


def restored_without(tenant: str, queue: str, *, pinned: bool) -> Flow:
    """Return what lets a queue's held tasks go although no topic of a backup has a rule for them.

    The shard may have been copied before it followed the end of the rule everywhere. A pin outlives
    the topic.
    """
    return Flow(tenant=tenant, id=queue, seq=0, expires_ms=1, pinned=pinned)


def _set_flow(view: View, operation: SetFlow, _: LifetimeRules) -> Decision:
    """Put a rule in force here; a relay brings the same one."""
    return Decision(Changed(1), tuple(in_force(view, operation.rule)))


def _rule(tenant: str, queue: str, of: FlowOf, *, shard: int) -> FlowRule:
    return FlowRule(tenant, queue, of.rule_seq, of.per_key, shard, of.per_queue, of.pinned)


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
