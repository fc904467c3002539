"""Finishing: a worker's result, and the tasks that follow it.

The result and its follow-ups are one decision: there is no result without them, and none of them
without the result. Their ids follow from the ended task, so no retry and no restore makes one
twice. A follow-up with an idempotency key belongs on the key's shard; if that is another one, it
is relayed there.
"""

from __future__ import annotations

from msgspec.structs import replace

from codeq_cluster.core import task_ids
from codeq_cluster.core.changes import Decision, TaskChange
from codeq_cluster.core.creating import made, outside_tiers, too_many_queues
from codeq_cluster.core.groups import MEMBERS_MAX, NewMember, group_shard
from codeq_cluster.core.holding import found, refusal_of
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import Finish, Submit
from codeq_cluster.core.outcomes import Rejected, Rejection, Submitted
from codeq_cluster.core.placing import placed_by_key
from codeq_cluster.core.relays import RelayedTask
from codeq_cluster.core.rolls import Rolls
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.sending import Cause, sent
from codeq_cluster.core.sharding import shard_of, with_shard
from codeq_cluster.core.task import FollowUp, More, Result, Task
from codeq_cluster.core.transitions import submitted
from codeq_cluster.core.view import View


def submit(
    view: View, operation: Submit, rules: LifetimeRules, *, next_digest: str = ""
) -> Decision:
    """End a leased task with its worker's result; a repetition gets the stored one."""
    assert operation.request
    task = found(view, operation)
    if task is None:
        return Decision(Rejected(Rejection.NOT_FOUND))
    if task.has_result:
        stored = view.result(task.id)
        assert stored is not None
        if _says_the_same(stored, operation, next_digest):
            return Decision(Submitted(stored))
    refusal = refusal_of(task, operation)
    if refusal is not None:
        return Decision(Rejected(refusal))
    if not set(operation.uploads) <= set(task.uploads):
        # These artifacts were staged before the task died and an operator revived it, so they are
        # swept.
        return Decision(Rejected(Rejection.LEASE_LOST))
    policy = view.policy(task.tenant, task.command.lower())
    change = submitted(task, operation, rules, policy, now_ms=view.now_ms)
    assert change.result is not None
    return Decision(Submitted(change.result), (change,))


def finish(view: View, operation: Finish, rules: LifetimeRules) -> Decision:
    """End a leased task with its worker's result and create what follows; all of it or nothing.

    No budget refuses a follow-up, because the work it follows is done. A key that is taken names
    the task that has it.
    """
    assert operation.next
    ended = submit(view, operation.submit, rules, next_digest=operation.digest)
    if not ended.changes:
        return ended
    [change] = ended.changes
    assert isinstance(change, TaskChange)
    parent, result = change.after, change.result
    assert parent is not None
    assert result is not None
    refused = _refused(view, operation, rules) or _refused_group(view, operation, parent, rules)
    if refused is not None:
        return Decision(refused)
    home, shards = shard_of(parent.id, operation.shards), operation.shards
    more = More(
        parent_id=parent.id, root_id=(parent.more.root_id if parent.more else "") or parent.id
    )
    member = parent.more.member if parent.more else None
    names: list[FollowUp] = []
    here: list[TaskChange] = []
    elsewhere: list[Cause] = []
    rolls = Rolls(view, rules)
    for position, asked in enumerate(operation.next):
        key, cause = asked.idempotency_key, f"{parent.id}.{parent.endings}.{position}"
        placed = placed_by_key(asked, parent.tenant, shards, view.pins)
        joined = member if operation.groups and operation.groups[position] else None
        start = home if joined is None else group_shard(parent.tenant, joined.group, shards)
        shard = start if placed is None else placed
        task_id = with_shard(task_ids.derived(parent.tenant, cause), shards=shards, wanted=shard)
        create = _of_parent(asked, parent, task_id)
        names.append(FollowUp(key=key) if key else FollowUp(task_id))
        if joined is not None:
            new_member = NewMember(
                create=create, parent=joined, parent_id=more.parent_id, root_id=more.root_id
            )
            if start == home:
                rolls.joined(new_member)
            else:
                elsewhere.append(Cause(cause, parent.id, start, new_member))
        elif shard != home:
            elsewhere.append(Cause(cause, parent.id, shard, RelayedTask(create, more)))
        elif new := made(view, create, rules, more=more):
            here.append(new)
    result = replace(result, next=tuple(names), next_digest=operation.digest)
    relays = sent(view, elsewhere)
    first = replace(change, result=result)
    return Decision(Submitted(result), (first, *here, *rolls.changes, *relays))


def _of_parent(asked: Create, parent: Task, task_id: str) -> Create:
    return replace(
        asked,
        id=task_id,
        tenant=parent.tenant,
        trace_parent=parent.trace_parent,
        trace_state=parent.trace_state,
    )


def _refused(view: View, operation: Finish, rules: LifetimeRules) -> Rejected | None:
    """Return the first follow-up's refusal: a relay must not be refused by the other shard."""
    tenant = operation.submit.tenant
    begun: set[str] = set()
    for asked in operation.next:
        topic = view.policy(tenant, asked.command.lower()).topic
        if topic is not None and (refused := outside_tiers(topic, asked)):
            return refused
        if refused := too_many_queues(view, asked, tenant, rules, begun):
            return refused
    return None


def _refused_group(
    view: View, operation: Finish, parent: Task, rules: LifetimeRules
) -> Rejected | None:
    """Return why a follow-up cannot join its group, or None: only a live member adds to its own."""
    wanted = {each for each in operation.groups if each}
    if not wanted:
        return None
    member = parent.more.member if parent.more else None
    if member is None or wanted != {member.group}:
        return Rejected(Rejection.OTHER_GROUP)
    if parent.endings > 1:
        return Rejected(Rejection.GROUP_SEALED)
    if shard_of(parent.id, operation.shards) != group_shard(
        parent.tenant, member.group, operation.shards
    ):
        return None
    roll = Rolls(view, rules).roll(parent.tenant, member.group)
    row = roll.member(member.name) if roll is not None else None
    if roll is None or row is None or row.status or roll.at.generation != member.generation:
        return Rejected(Rejection.GROUP_SEALED)
    if roll.at.rows + len(operation.next) > MEMBERS_MAX:
        return Rejected(Rejection.TOO_MANY, "members")
    return None


def _says_the_same(stored: Result, operation: Submit, next_digest: str) -> bool:
    """Return whether the stored result is that of this submit, by its request or its content."""
    if stored.request == operation.request:
        return True
    return (
        stored.worker == operation.worker
        and stored.status == operation.status
        and stored.body == operation.body
        and stored.error == operation.error
        and stored.artifacts == operation.artifacts
        and stored.next_digest == next_digest
    )
