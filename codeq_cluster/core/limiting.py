"""Limiting: limits that several queues share, and which of them a queue may name."""

from __future__ import annotations

from codeq_cluster.core.changes import Decision, ItemChange
from codeq_cluster.core.gate import PerQueue
from codeq_cluster.core.lane import FlowRule
from codeq_cluster.core.limit import (
    LIMITS_MAX,
    SHARERS_MAX,
    DeleteLimit,
    Limit,
    PutLimit,
    scope_of_limit,
)
from codeq_cluster.core.outcomes import Changed, LimitStands, Rejected, Rejection
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.sharding import shard_of_queue
from codeq_cluster.core.spreading import RULED, is_full, spread
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.view import View

_NAMED_MAX = 10  # Queues that a refusal names.


def put_limit(view: View, operation: PutLimit, _: LifetimeRules) -> Decision:
    """Create a limit or change its rule, on every shard; equal values change nothing."""
    assert operation.rule.is_sound
    tenant, limit = operation.tenant, operation.name.lower()
    found = view.item(ItemKind.LIMIT, tenant, limit)
    assert found is None or isinstance(found, Limit)
    if found is not None and (found.name, found.rule) == (operation.name, operation.rule):
        made_now = found.version == 1 and found.request == operation.request
        return Decision(LimitStands(found, made=made_now))
    if found is None and view.count_items(ItemKind.LIMIT, tenant, LIMITS_MAX) == LIMITS_MAX:
        return Decision(Rejected(Rejection.TOO_MANY, "limits"))
    if is_full(view, tenant, scope_of_limit(limit)):
        return Decision(Rejected(Rejection.TOO_MANY, RULED))
    after = Limit(
        tenant=tenant,
        id=limit,
        name=operation.name,
        rule=operation.rule,
        rule_seq=view.next_seq(),
        version=found.version + 1 if found is not None else 1,
        created_ms=found.created_ms if found is not None else view.now_ms,
        updated_ms=view.now_ms,
        request=operation.request,
    )
    change = ItemChange(before=found, after=after)
    rules = spread(view, rule_of(after, 0), operation.shards)
    return Decision(LimitStands(after, made=found is None), (change, *rules))


def delete_limit(view: View, operation: DeleteLimit, _: LifetimeRules) -> Decision:
    """Delete a limit, unless a queue names it; a missing one counts as deleted."""
    tenant, limit = operation.tenant, operation.name.lower()
    found = view.item(ItemKind.LIMIT, tenant, limit)
    if not isinstance(found, Limit):
        return Decision(Changed(0))
    queues = sorted(view.sharers.get((tenant, scope_of_limit(limit)), ()))
    if queues:
        return Decision(Rejected(Rejection.LIMIT_IN_USE, ", ".join(queues[:_NAMED_MAX])))
    ended = _rule(tenant, limit, None, seq=view.next_seq(), shard=0)
    rules = spread(view, ended, operation.shards)
    return Decision(Changed(1), (ItemChange(before=found, after=None), *rules))


def rule_of(limit: Limit, shard: int) -> FlowRule:
    """Return the rule of a limit for a shard."""
    return _rule(limit.tenant, limit.id, limit.rule, seq=limit.rule_seq, shard=shard)


def refused_sharer(
    view: View, tenant: str, queue: str, limit: str, *, pinned: str, shards: int
) -> Rejected | None:
    """Return why a queue cannot name a limit, or None.

    Args:
        view: Of the tenant's home shard.
        tenant: The owner of both.
        queue: Whose topic names the limit.
        limit: Its name in lower case.
        pinned: What places the queue already; empty if nothing does.
    """
    scope = scope_of_limit(limit)
    if view.item(ItemKind.LIMIT, tenant, limit) is None:
        return Rejected(Rejection.UNKNOWN_LIMIT, limit)
    others = set(view.sharers.get((tenant, scope), ())) - {queue}
    if len(others) >= SHARERS_MAX:
        return Rejected(Rejection.TOO_MANY, "queues of one limit")
    here, there = (shard_of_queue(tenant, each, shards) for each in (pinned or scope, scope))
    return Rejected(Rejection.PINNED_ELSEWHERE, pinned) if here != there else None


def _rule(tenant: str, limit: str, rule: PerQueue | None, *, seq: int, shard: int) -> FlowRule:
    return FlowRule(tenant, scope_of_limit(limit), seq, None, shard, rule)
