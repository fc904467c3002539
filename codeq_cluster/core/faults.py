"""Faults: why a record from outside, of an import or a backup, could not have been made here.

The fields' own bounds stand at the records; here are the rules between fields.
Everything that an operation makes passes; the properties compare both.
"""

from __future__ import annotations

from msgspec.structs import replace

from codeq_cluster.core import stepping
from codeq_cluster.core.arrival import Arrival
from codeq_cluster.core.bounds import broken, is_json, is_queue_name
from codeq_cluster.core.changes import ItemChange
from codeq_cluster.core.checkpoint import checkpoint_bytes
from codeq_cluster.core.dependencies import input_id
from codeq_cluster.core.durable import Step, row_id
from codeq_cluster.core.items import DELIVERIES_MAX, NEW_NAME, Governing, Item
from codeq_cluster.core.lane import lane_of
from codeq_cluster.core.log_line import LINES_MAX, LogLine
from codeq_cluster.core.task import (
    COMPLETED,
    Durable,
    Result,
    Role,
    State,
    Task,
    Until,
    cancelling_of,
)
from codeq_cluster.core.unique import lets_go, unique_of


def fault(arrival: Arrival) -> str:
    """Return why this task could not have been created here and lived; empty when it could."""
    task, result = arrival.task, arrival.result
    why = task_fault(task)
    if why:
        return why
    if not is_queue_name(task.command):
        return f"command: {NEW_NAME}"
    if not arrival.payload or not is_json(arrival.payload):
        return "payload: must be JSON, nested at most 900 deep"
    if task.has_result != (result is not None):
        return "result: must be there, as has_result says"
    if result is not None:
        why = result_fault(result)
        if not why and (result.task_id, result.error) != (task.id, task.error):
            why = "task_id, error: must be those of the task"
        if not why and (result.status == COMPLETED) != (task.state is State.DONE):
            why = "status: must be that of the task's state"
        if why:
            return f"result: {why}"
    return (
        _deliveries_fault(arrival)
        or _dependencies_fault(arrival)
        or _beside_fault(arrival)
        or _checkpoint_fault(arrival)
    )


def task_fault(task: Task) -> str:
    """Return why no operation can have left this task; empty when one can."""
    return broken(task) or _state_fault(task) or _unique_fault(task)


def result_fault(result: Result) -> str:
    """Return why no operation can have stored this result; empty when one can."""
    if result.status == COMPLETED and not result.body:
        return "body: must not be empty, since status is COMPLETED"
    return broken(result)


def new_item_fault(item: Governing) -> str:
    """Return why this item could not have been made here; empty when it could."""
    return item.new_fault or item_fault(item)


def item_fault(item: Item) -> str:
    """Return why no operation can have left this item; empty when one can."""
    return broken(item) or item.fault


def _dependencies_fault(arrival: Arrival) -> str:
    task, row = arrival.task, arrival.dependencies
    if row is None:
        return "inputs: must have dependencies" if arrival.inputs else ""
    if row.id != task.id or task.more is None or not task.more.depends:
        return "dependencies: must be the task's"
    why = item_fault(row) or next(filter(None, map(item_fault, arrival.inputs)), "")
    names = {input_id(row.id, place) for place in range(len(row.of))}
    if not why and not {each.id for each in arrival.inputs} <= names:
        why = "id: must be one for each dependency"
    return f"dependencies: {why}" if why else ""


def _beside_fault(arrival: Arrival) -> str:
    """Return what is wrong with the steps of a task, the signals to it, and its log."""
    task, rows = arrival.task, arrival.beside
    if len({row.id for row in rows}) < len(rows):
        return "beside: must each have an id of its own"
    for row in rows:
        why = item_fault(row)
        if not why and row.id.partition(".")[0] != task.id:
            why = "id: must be one of the task"
        if not why and isinstance(row, Step) and row.id != row_id(task.id, row.name):
            why = "id: must be that of the name"
        if why:
            return f"beside: {why}"
    durable = task.more.durable if task.more is not None else None
    counted = stepping.counted(Durable(), (ItemChange(before=None, after=row) for row in rows))
    kept = replace(durable or Durable(), parked_at="", keeps_key=False)
    if kept != replace(counted, logged=kept.logged):
        return "durable: must count what is beside the task"
    lines = sorted(row.number for row in rows if isinstance(row, LogLine))
    if len(lines) > LINES_MAX or lines != [*range(kept.logged - len(lines) + 1, kept.logged + 1)]:
        return f"beside: lines of a log must be the last ones, at most {LINES_MAX}"
    if not task.parked_at:
        return ""
    at = [row for row in rows if isinstance(row, Step) and row.name == task.parked_at]
    if task.state is not State.DELAYED or not any(row.is_open for row in at):
        return "durable: must be parked at an open step, in the state DELAYED"
    return ""


def _checkpoint_fault(arrival: Arrival) -> str:
    task, row = arrival.task, arrival.checkpoint
    if row is None:
        return ""
    why = item_fault(row)
    size = 0 if task.more is None else task.more.checkpoint_bytes
    if not why and (row.id, checkpoint_bytes(row.text)) != (task.id, size):
        why = "id: must be the task's, which has its size"
    return f"checkpoint: {why}" if why else ""


def _deliveries_fault(arrival: Arrival) -> str:
    task, deliveries = arrival.task, arrival.deliveries
    if len(deliveries) > DELIVERIES_MAX:
        return f"deliveries: must be at most {DELIVERIES_MAX}"
    if len({delivery.id for delivery, _ in deliveries}) < len(deliveries):
        return "deliveries: must each have an id of its own"
    for delivery, body in deliveries:
        why = item_fault(delivery) or result_fault(body)
        if not why and not delivery.task_id == body.task_id == task.id:
            why = "task_id: must be the task's"
        if why:
            return f"delivery {delivery.id[:256]}: {why}"
    return ""


def _state_fault(task: Task) -> str:
    """Return what a task lacks, or has too much of, in its state.

    A timer, an index or a later transition relies on each of these.
    """
    state, held = task.state, (task.worker, task.claim, task.lease_until_ms)
    for field, there, due in (
        ("has_result", task.has_result, state.terminal),
        ("retain_until_ms", task.retain_until_ms, state.terminal),
        ("dead_queue", task.dead_queue, state is State.DEAD),
        ("error", task.error and not state.terminal, False),
        ("seq", task.seq, state in (State.READY, State.HELD)),
        ("due_ms", task.due_ms, state is State.DELAYED),
        ("worker, claim, lease_until_ms", any(held), state is State.LEASED),
        ("worker, claim, lease_until_ms", all(held), state is State.LEASED),
        ("lease_token", task.lease_token or state is not State.LEASED, True),
        ("attempts", task.attempts or state is not State.LEASED, True),
    ):
        if bool(there) != due:
            return f"{field}: must {'' if due else 'not '}be set in the state {state.name}"
    if len(task.upload_bytes) != len(task.uploads):
        return "upload_bytes: must be one for each upload"
    if state is State.HELD and not lane_of(task) and not task.waits_for_others:
        return "more: must have a key or dependencies in the state HELD"
    asked = cancelling_of(task)
    if asked is not None and (
        state not in (State.LEASED, State.DONE, State.FAILED)
        or task.lease_until_ms > asked.deadline_ms
    ):
        return "cancelling: must be of a task that ends by its deadline"
    if task.more is not None and task.more.waits and state is not State.HELD:
        return f"more: must not wait in the state {state.name}"
    most = task.max_attempts - (state in (State.READY, State.DELAYED, State.HELD))
    if task.attempts > most:
        return f"attempts: must be at most {most}"
    return ""


def _unique_fault(task: Task) -> str:
    """Return what its unique key demands of a task that it is not."""
    unique, state = unique_of(task), task.state
    if unique is None or task.more is None:
        return ""
    waits = task.waits_for_others and not task.more.depends
    is_holder = unique.role is Role.HOLDER
    for holds, why in (
        ((unique.role is Role.NEXT) == waits, "must be next exactly while it waits for its key"),
        (not (is_holder and lets_go(task, unique)), f"must let go in the state {state.name}"),
        (
            bool(unique.held_until_ms) == (is_holder and bool(unique.throttle_ms)),
            "held_until_ms must be that of a holder with a throttle",
        ),
        (unique.until is not Until.THROTTLE or unique.throttle_ms, "must have a throttle_ms"),
    ):
        if not holds:
            return f"unique: {why}"
    return ""
