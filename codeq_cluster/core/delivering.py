"""Delivering: what leaves the broker because of a decision, and the outcome of each attempt.

A task's end and its callback are one decision, so neither exists without the other. The same holds
for a task's deletion and the garbage collection of its artifacts.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from codeq_cluster.core.changes import Change, Decision, ItemChange, TaskChange
from codeq_cluster.core.items import Delivery, Sweep
from codeq_cluster.core.operations import Delivered, Replay, Swept, Undelivered
from codeq_cluster.core.outcomes import Changed
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import HISTORY_ERROR_CHARS_MAX, Task
from codeq_cluster.core.view import View

SWEEP_RETRY_MS = 60_000  # The store may be down, and nothing waits for the space.


def consequences(view: View, decision: Decision, rules: LifetimeRules) -> Iterator[ItemChange]:
    """Yield the deliveries and sweeps that a decision's task changes cause.

    Artifacts that a task no longer has after the change are swept. Those of an ended task are swept
    once no upload can still be under way, so that one sweep finds them all.
    """
    for change in decision.changes:
        if not isinstance(change, TaskChange):
            continue
        before, after = change.before, change.after
        if after is None:
            assert before is not None
            yield from _sweeps(view, before, before.uploads, due_ms=view.now_ms)
        elif change.result is not None:
            assert before is not None
            if after.webhook and not change.restored:
                delivery = _delivery(after, now_ms=view.now_ms)
                # A task with the id of a deleted one may find that one's delivery still here.
                left = view.item(ItemKind.DELIVERY, after.tenant, delivery.id)
                yield ItemChange(before=left, after=delivery, body=change.result)
            if before.uploads:
                unneeded = tuple(each for each in before.uploads if each not in after.uploads)
                due_ms = view.now_ms + rules.sweep_delay_ms
                yield from _sweeps(view, after, unneeded, due_ms=due_ms)


def delivered(view: View, operation: Delivered, _: LifetimeRules) -> Decision:
    """End a delivery; a missing one has ended before."""
    found = view.item(ItemKind.DELIVERY, operation.tenant, operation.id)
    if not isinstance(found, Delivery) or found.died_ms:
        return Decision(Changed(0))
    return Decision(Changed(1), (ItemChange(before=found, after=None),))


def undelivered(view: View, operation: Undelivered, rules: LifetimeRules) -> Decision:
    """Plan the next attempt with a doubled wait, or give the delivery up.

    A delivery is given up after its last attempt, or at its maximum age with or without attempts.
    """
    assert operation.attempt >= 1
    found = view.item(ItemKind.DELIVERY, operation.tenant, operation.id)
    if not isinstance(found, Delivery) or found.died_ms or found.attempts + 1 != operation.attempt:
        return Decision(Changed(0))
    tried = operation.deferred_ms <= 0
    known, wait_ms = found, operation.deferred_ms
    if tried:
        error = operation.error[:HISTORY_ERROR_CHARS_MAX]
        known = replace(found, attempts=operation.attempt, error=error)
        grown_ms = rules.delivery_base_ms * 2 ** (operation.attempt - 1)
        wait_ms = max(min(grown_ms, rules.delivery_max_ms), operation.wait_ms)
    if tried and operation.attempt >= rules.delivery_attempts_max:
        after = _dead(known, known.error, rules, now_ms=view.now_ms)
    elif view.now_ms >= (end_ms := given_up_ms(known, age_max_ms=rules.delivery_age_max_ms)):
        after = _dead(known, _too_old(known, rules), rules, now_ms=view.now_ms)
    else:
        after = replace(known, due_ms=min(view.now_ms + wait_ms, end_ms))
    if after == found:
        return Decision(Changed(1))  # Deferred to the same instant twice.
    return Decision(Changed(1), (ItemChange(before=found, after=after),))


def given_up_ms(delivery: Delivery, *, age_max_ms: int) -> int:
    """Return the instant from which on a pending delivery is too old to be tried again."""
    return delivery.since_ms + age_max_ms


def replay(view: View, operation: Replay, _: LifetimeRules) -> Decision:
    """Make dead deliveries pending again; those this request has revived before count as well."""
    count = 0
    changes: list[Change] = []
    for delivery_id in dict.fromkeys(operation.ids):
        found = view.item(ItemKind.DELIVERY, operation.tenant, delivery_id)
        if not isinstance(found, Delivery):
            continue
        if found.replay != operation.request:
            if not found.died_ms:
                continue
            after = replace(
                found,
                attempts=0,
                due_ms=view.now_ms,
                died_ms=0,
                expires_ms=0,
                replay=operation.request,
                since_ms=view.now_ms,
            )
            changes.append(ItemChange(before=found, after=after))
        count += 1
    return Decision(Changed(count), tuple(changes))


def swept(view: View, operation: Swept, _: LifetimeRules) -> Decision:
    """End a sweep, or plan its next attempt; a sweep is never given up."""
    found = view.item(ItemKind.SWEEP, operation.tenant, operation.id)
    if not isinstance(found, Sweep) or found.attempts + 1 != operation.attempt:
        return Decision(Changed(0))
    after = None
    if operation.failed:
        after = replace(found, attempts=operation.attempt, due_ms=view.now_ms + SWEEP_RETRY_MS)
    return Decision(Changed(1), (ItemChange(before=found, after=after),))


def sweep_id(task: Task, upload: str) -> str:
    """Return the id of the sweep for one artifact set of a task."""
    return f"{task.id}.{upload}"


def _delivery(task: Task, *, now_ms: int) -> Delivery:
    return Delivery(
        tenant=task.tenant,
        id=f"{task.id}.{task.endings}",
        task_id=task.id,
        command=task.command,
        url=task.webhook,
        created_ms=now_ms,
        due_ms=now_ms,
        trace_parent=task.trace_parent,
        trace_state=task.trace_state,
        since_ms=now_ms,
        tags=() if task.more is None else task.more.tags,
        metadata="" if task.more is None else task.more.metadata,
    )


def _dead(delivery: Delivery, error: str, rules: LifetimeRules, *, now_ms: int) -> Delivery:
    return replace(
        delivery,
        due_ms=0,
        died_ms=now_ms,
        expires_ms=now_ms + rules.dlq_retention_ms,
        error=error,
    )


def _too_old(delivery: Delivery, rules: LifetimeRules) -> str:
    # Until it is tried, a revived delivery still has the error of its former life.
    last = f"at last: {delivery.error}" if delivery.attempts else "and not tried"
    text = f"not accepted within {rules.delivery_age_max_ms // 1000} s, {last}"
    return text[:HISTORY_ERROR_CHARS_MAX]


def _sweeps(
    view: View, task: Task, uploads: tuple[str, ...], *, due_ms: int
) -> Iterator[ItemChange]:
    for upload in uploads:
        sweep = Sweep(
            tenant=task.tenant,
            id=sweep_id(task, upload),
            task_id=task.id,
            upload=upload,
            due_ms=due_ms,
        )
        # An imported task may have an upload that is being swept for the deleted one of its id.
        left = view.item(ItemKind.SWEEP, task.tenant, sweep.id)
        yield ItemChange(before=left, after=sweep)
