"""Key rules: what an admin or a worker says of one key, beside the rule of its queue's keys."""

from __future__ import annotations

from msgspec.structs import replace

from codeq_cluster.core.changes import Decision, ItemChange
from codeq_cluster.core.lane import (
    KEY_RULES_MAX,
    KeyRule,
    Lane,
    SetKey,
    lane_id,
    lane_name,
    lane_of,
)
from codeq_cluster.core.outcomes import Changed, Rejected, Rejection
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.tally import KEY_RULES, count_of, moved
from codeq_cluster.core.task import Task
from codeq_cluster.core.view import View


def set_key(view: View, operation: SetKey, _: LifetimeRules) -> Decision:
    """Put a key's own rule in force, or end it; its lane follows in this entry.

    Equal values change nothing, and are answered as if they did: the request may be repeated.
    """
    assert operation.own is None or operation.own.is_sound
    tenant, name = operation.tenant, lane_id(operation.queue, lane_name(operation.key))
    found = view.item(ItemKind.KEY_RULE, tenant, name)
    assert found is None or isinstance(found, KeyRule)
    if operation.own == (found.own if found is not None else None):
        return Decision(Changed(1))
    if found is None and is_full(view, tenant):
        return Decision(Rejected(Rejection.TOO_MANY, "keys with rules of their own"))
    if operation.own is None:
        assert found is not None
        lane = follows(view, found, own=False)
        gone = ItemChange(before=found, after=None)
        return Decision(Changed(1), (gone, lane, tallied(view, tenant, -1)))
    rule = KeyRule(
        tenant=tenant,
        id=name,
        key=operation.key,
        own=operation.own,
        updated_ms=view.now_ms,
        pinned=view.pins.get((tenant, operation.queue), ""),
    )
    changes = ItemChange(before=found, after=rule), follows(view, rule)
    new = () if found is not None else (tallied(view, tenant, 1),)
    return Decision(Changed(1), (*changes, *new))


def held(view: View, task: Task, until_ms: int) -> ItemChange | None:
    """Return the change by which nothing of a task's key goes until then; None without a rule."""
    queue = task.command.lower()
    lane = view.item(ItemKind.LANE, task.tenant, lane_id(queue, lane_name(lane_of(task))))
    flow = view.flow(task.tenant, queue)
    if not isinstance(lane, Lane) or flow is None or flow.per_key is None:
        return None
    return ItemChange(before=lane, after=replace(lane, held_until_ms=until_ms))


def follows(view: View, rule: KeyRule, *, own: bool = True) -> ItemChange:
    """Return the change by which the lane of a key follows its own rule, or its queue's again."""
    found = view.item(ItemKind.LANE, rule.tenant, rule.id)
    assert found is None or isinstance(found, Lane)
    lane = found or Lane(tenant=rule.tenant, id=rule.id, key=rule.key)
    return ItemChange(before=found, after=replace(lane, own=rule.own if own else None))


def tallied(view: View, tenant: str, more: int) -> ItemChange:
    """Return the change of the tenant's number of keys with rules of their own on the shard."""
    found = view.item(ItemKind.TALLY, tenant, KEY_RULES)
    return ItemChange(before=found, after=moved(found, tenant, KEY_RULES, more))


def is_full(view: View, tenant: str, *, begun: int = 0) -> bool:
    """Return whether the tenant may have no more of them on the shard, with some just begun."""
    return count_of(view.item(ItemKind.TALLY, tenant, KEY_RULES)) + begun >= KEY_RULES_MAX
