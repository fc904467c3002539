"""Grouping: what people do with groups, and what time does with them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from itertools import islice
from typing import Any

from msgspec.structs import replace

from codeq_cluster.core import task_ids
from codeq_cluster.core.changes import Change, Decision, ItemChange
from codeq_cluster.core.creating import on_its_way, refusal_of_new
from codeq_cluster.core.groups import (
    CANCELLED_MAX,
    DELETED_MAX,
    GROUPS_MAX,
    KEPT_MS,
    MEMBERS_MAX,
    AddMembers,
    CancelGroup,
    CreateGroup,
    Group,
    SealGroup,
    member_id,
)
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.outcomes import GroupStands, Rejected, Rejection
from codeq_cluster.core.placing import kept_id
from codeq_cluster.core.rolls import Roll, Rolls, as_member
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.sharding import shard_of_key
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import FollowUp, Task
from codeq_cluster.core.transitions import retention_ms
from codeq_cluster.core.view import View

_FIRST = "0"  # The name of the members that come with a group.


def create(view: View, operation: CreateGroup, rules: LifetimeRules) -> Decision:
    """Begin a group, or answer with the one that the same request made."""
    found = view.item(ItemKind.GROUP, operation.tenant, operation.id)
    if isinstance(found, Group):
        if found.digest != operation.digest:
            return Decision(Rejected(Rejection.IDEMPOTENCY_CONFLICT))
        return _stands(view, found, _named(view, found, _FIRST, operation.tasks, rules))
    rolls = Rolls(view, rules)
    if rolls.open_groups(operation.tenant) >= GROUPS_MAX:
        return Decision(Rejected(Rejection.TOO_MANY, "groups"))
    group = Group(
        tenant=operation.tenant,
        id=operation.id,
        generation=view.next_seq(),
        then=operation.then,
        then_if=operation.then_if,
        on_failure=operation.on_failure,
        digest=operation.digest,
        created_ms=view.now_ms,
        expires_ms=view.now_ms + operation.seal_within_ms,
    )
    tasks = _named(view, group, _FIRST, operation.tasks, rules)
    then = () if group.then is None else (replace(group.then, tenant=group.tenant),)
    refused = _refused(view, group, (*then, *tasks), rules)
    if refused is not None:
        return Decision(refused)
    roll = rolls.begin(group)
    return _added(view, rolls, roll, tasks, seal=operation.seal, made=True)


def add(view: View, operation: AddMembers, rules: LifetimeRules) -> Decision:
    """Add tasks to a group that is not sealed, all of them or none."""
    rolls = Rolls(view, rules)
    roll = rolls.roll(operation.tenant, operation.id)
    if roll is None:
        return Decision(Rejected(Rejection.NOT_FOUND))
    tasks = _named(view, roll.at, operation.name, operation.tasks, rules)
    if tasks and all(roll.member(task.id) for task in tasks):
        return _stands(view, roll.at, tasks)  # A retry, even if it is sealed by now.
    if roll.at.sealed_ms:
        return Decision(Rejected(Rejection.GROUP_SEALED))
    refused = _refused(view, roll.at, tasks, rules)
    if refused is not None:
        return Decision(refused)
    return _added(view, rolls, roll, tasks, seal=operation.seal)


def _on_its_roll(
    act: Callable[[Roll], None],
    view: View,
    operation: SealGroup | CancelGroup,
    rules: LifetimeRules,
) -> Decision:
    """Do something to a group that is there."""
    rolls = Rolls(view, rules)
    roll = rolls.roll(operation.tenant, operation.id)
    if roll is None:
        return Decision(Rejected(Rejection.NOT_FOUND))
    act(roll)
    changes = tuple(rolls.changes)
    return Decision(GroupStands(group=roll.at), changes)


def elapsed(
    view: View, group: Group, rules: LifetimeRules, busy: Collection[str], *, most: int
) -> list[Change]:
    """Return what time does with a group: it ends unsealed, its walk goes on, or it is deleted.

    Args:
        group: Whose instant has come.
        rules: With the number of shards.
        busy: The tasks that the decision changes already; a walk waits in front of these.
        most: How many members a walk may cancel; fewer than `CANCELLED_MAX` if so many did not fit
            an entry.
    """
    if group.ended_ms:
        return _deleted(view, group)
    rolls = Rolls(view, rules)
    roll = rolls.roll(group.tenant, group.id)
    assert roll is not None
    if not group.cancelled_ms:
        roll.overdue()
        return rolls.changes
    members = view.members(group.tenant, group.id, after=group.walked)
    cancelled_max = min(CANCELLED_MAX, most)
    rows = list(islice(members, cancelled_max))
    walked = group.walked
    for row in rows:
        if row.task_id in busy:
            break
        if not row.status:
            roll.cancel(row, view.task(row.task_id))
        walked = row.id.partition(":")[2]
    else:
        if len(rows) < cancelled_max:
            roll.at = replace(roll.at, walked="", expires_ms=0)
            return rolls.changes
    roll.at = replace(roll.at, walked=walked, expires_ms=view.now_ms)
    return rolls.changes


def kept_until_ms(view: View, task: Task, rules: LifetimeRules) -> int:
    """Return until when an ended task is kept for its group; 0 without one on this shard.

    Its retention begins with the group's end, so it is asked again as long as the group goes on.
    """
    member = task.more.member if task.more is not None else None
    if member is None:
        return 0
    group = view.item(ItemKind.GROUP, task.tenant, member.group)
    if not isinstance(group, Group) or group.generation != member.generation:
        return 0
    policy = view.policy(task.tenant, task.command.lower())
    begun_ms = group.ended_ms or view.now_ms
    until_ms = begun_ms + retention_ms(task.state, rules, policy)
    return min(until_ms, task.updated_ms + KEPT_MS)


def _deleted(view: View, group: Group) -> list[Change]:
    """Delete an ended group's rows, and with the last of them the group."""
    rows = list(islice(view.members(group.tenant, group.id, after=""), DELETED_MAX))
    gone: list[Change] = [ItemChange(before=row, after=None) for row in rows]
    # Its walk is the first again only after those of others.
    after = None if len(rows) < DELETED_MAX else replace(group, expires_ms=view.now_ms)
    return [*gone, ItemChange(before=group, after=after)]


def _named(
    view: View, group: Group, name: str, tasks: tuple[Create, ...], rules: LifetimeRules
) -> tuple[Create, ...]:
    """Return new members with their ids; each key's task is on the shard of the key."""
    tenant, shards = group.tenant, rules.shards
    home = shard_of_key(tenant, group.shard_name, shards)
    found = []
    for position, task in enumerate(tasks):
        drawn = task_ids.derived(tenant, f"{group.shard_name}.{group.generation}.{name}.{position}")
        task_id = kept_id(
            drawn,
            task,
            tenant,
            home=home,
            shards=shards,
            pins=view.pins,
            is_there=partial(_is_member, view, group),
        )
        found.append(replace(task, id=task_id, tenant=tenant))
    return tuple(found)


def _is_member(view: View, group: Group, task_id: str) -> bool:
    return view.item(ItemKind.MEMBER, group.tenant, member_id(group.id, task_id)) is not None


def _refused(
    view: View, group: Group, tasks: tuple[Create, ...], rules: LifetimeRules
) -> Rejected | None:
    """Return the first refusal: what another shard makes must not be refused there."""
    if group.rows + len(tasks) > MEMBERS_MAX:
        return Rejected(Rejection.TOO_MANY, "members")
    queues: set[str] = set()
    for begun, task in enumerate(tasks):
        refused = refusal_of_new(view, task, rules, begun=begun, queues=queues)
        if refused is not None:
            return refused
    return None


def _added(
    view: View,
    rolls: Rolls,
    roll: Roll,
    tasks: tuple[Create, ...],
    *,
    seal: bool,
    made: bool = False,
) -> Decision:
    for task in tasks:
        roll.add(task)
    if seal:
        roll.seal()
    here = {task.id: task for task in roll.tasks_here}
    changes = tuple(rolls.changes)
    shown = _shown(view, roll.at, tasks, here.get)
    outcome = GroupStands(group=roll.at, made=made, names=_names(tasks), tasks=shown)
    return Decision(outcome, changes)


def _stands(view: View, group: Group, tasks: tuple[Create, ...]) -> Decision:
    shown = _shown(view, group, tasks, view.task)
    return Decision(GroupStands(group=group, names=_names(tasks), tasks=shown))


def _shown(
    view: View, group: Group, tasks: tuple[Create, ...], here: Callable[[str], Task | None]
) -> tuple[Task, ...]:
    """Return members as they are here; others as they begin, if they have no idempotency key.

    Another shard may know the key of another task. One that is gone was made by an earlier send of
    the same request, whose answer showed it so.
    """
    found: list[Task] = []
    for each in tasks:
        task = here(each.id)
        if task is None and not each.idempotency_key:
            task, _ = on_its_way(as_member(group, each), now_ms=view.now_ms)
        found += [task] if task is not None else []
    return tuple(found)


def _names(tasks: tuple[Create, ...]) -> tuple[FollowUp, ...]:
    return tuple(
        FollowUp(key=task.idempotency_key) if task.idempotency_key else FollowUp(task.id)
        for task in tasks
    )


RULES: dict[type, Callable[[View, Any, LifetimeRules], Decision]] = {
    CreateGroup: create,
    AddMembers: add,
    # Without live members, a sealed group ends; those of a cancelled one are cancelled by steps.
    SealGroup: partial(_on_its_roll, Roll.seal),
    CancelGroup: partial(_on_its_roll, Roll.begin_cancelling),
}
