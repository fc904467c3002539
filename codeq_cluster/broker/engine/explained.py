"""Explained: why a task is in its state, from the rows of its shard."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from codeq_cluster.broker.engine.state import EngineState
from codeq_cluster.broker.ports import StateStore
from codeq_cluster.broker.questions import Explain
from codeq_cluster.codec import keyspace, lane_keys, records
from codeq_cluster.codec.keyspace import QueuePlace
from codeq_cluster.codec.records import RecordInvalid
from codeq_cluster.core.dependencies import Dependencies, Dependency, Verdict
from codeq_cluster.core.durable import Step, row_id
from codeq_cluster.core.explaining import Explanation, Facts, explain, set_aside
from codeq_cluster.core.gating import shared_limit
from codeq_cluster.core.items import TASK, aside_id
from codeq_cluster.core.lane import Flow, Lane, lane_id, lane_name, lane_of
from codeq_cluster.core.lanes import is_stopped
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Role, State, Task
from codeq_cluster.core.unique import Holder, scope_of, unique_of

AHEAD_MAX = 10_000  # Tasks counted ahead of a task; more would not help an operator.
RUNNING_MAX = 1000  # Tasks of a queue in progress that are looked at for one of a key.
BEHIND_S = 5  # More than the clock of a machine is corrected by as it runs.
_PAGE = 100  # Of those, read at once; it divides the bound.


def explain_task(state: EngineState, asked: Explain) -> Explanation | None:
    """Return why the task is in its state, or None if it is not the tenant's."""
    store, setup, view = state.store, state.setup, state.replica
    aside = view.item(ItemKind.ASIDE, asked.tenant, aside_id(TASK, asked.id))
    record = store.get(keyspace.task(asked.id))
    try:
        task = None if record is None else records.decode_task(record)
    except RecordInvalid:
        if aside is None:
            raise
        return set_aside(asked.id)
    if task is None or task.tenant != asked.tenant:
        return None
    queue = keyspace.queue_name(task.command)
    facts = Facts(
        now_ms=state.now_ms,
        policy=view.policy(task.tenant, queue),
        leased=view.leased(task.tenant, queue),
        tenant_leased=view.usage(task.tenant).leased,
        tenant_leased_max=setup.rules.budget_of(task.tenant).leased_max,
        ahead=_ahead(store, task) if task.state is State.READY else 0,
        set_aside=aside is not None,
        limit=shared_limit(state.view, task.tenant, queue),
    )
    gate = state.view.gates.get((task.tenant, queue))
    if gate is not None:
        facts = replace(facts, held_until_ms=gate.held_until_ms, limited_until_ms=gate.opens_ms)
    unique = unique_of(task)
    if unique is not None and unique.role is Role.NEXT:
        row = state.replica.item(ItemKind.UNIQUE, task.tenant, scope_of(task))
        assert isinstance(row, Holder)
        facts = replace(facts, before=row.task_id, throttled_until_ms=row.expires_ms)
    elif task.parked_at:
        step = view.item(ItemKind.STEP, task.tenant, row_id(task.id, task.parked_at))
        facts = replace(facts, signal=step.signal if isinstance(step, Step) else "")
    elif task.waits_for_others:
        facts = replace(facts, waits_for=_waits_for(state, task))
    elif task.state is State.HELD:
        facts = replace(facts, **_keys(state, task))
    return _with_clock(explain(task, facts), facts.now_ms, wall_ms=setup.clock.wall_ms())


def _with_clock(found: Explanation, now_ms: int, *, wall_ms: int) -> Explanation:
    """Say so if what a task waits for is over by the wall clock, and not by the shard's."""
    behind_s = (wall_ms - now_ms) // 1000
    if behind_s < BEHIND_S or not 0 < found.until_ms <= wall_ms:
        return found
    text = (
        f"{found.text}; the clock of its shard is {behind_s} s behind that of its leader's "
        "machine: transfer the leadership"
    )
    return replace(found, text=text)


def _waits_for(state: EngineState, task: Task) -> tuple[Dependency, ...]:
    """Return the dependencies of a task that are not decided."""
    row = state.replica.item(ItemKind.DEPENDENCIES, task.tenant, task.id)
    of = row.of if isinstance(row, Dependencies) else ()
    return tuple(each for each in of if each.verdict is Verdict.WAITS)


def _keys(state: EngineState, task: Task) -> dict[str, Any]:
    """Return what a task with a key waits for: a dead letter, tokens, a task before it."""
    queue = keyspace.queue_name(task.command)
    name = lane_id(queue, lane_name(lane_of(task)))
    lane = state.replica.item(ItemKind.LANE, task.tenant, name)
    flow = state.replica.item(ItemKind.FLOW, task.tenant, queue)
    assert isinstance(lane, Lane)
    rule = flow.per_key if isinstance(flow, Flow) else None
    stops = rule is not None and is_stopped(lane, rule)
    before, looked_at = _taker(state.store, lane)
    return {
        "stopper": lane.stopped_by if stops else "",
        "key_paused": lane.own is not None and lane.own.paused,
        "held_until_ms": lane.held_until_ms,
        "limited_until_ms": lane.limited_until_ms,
        "before": before,
        "running": 0 if before else lane.running,
        "looked_at": looked_at,
    }


def _taker(store: StateStore, lane: Lane) -> tuple[str, int]:
    """Return a task that takes a place of a key, or "" if none is known.

    Also return how many of its queue in progress were looked at for one, `RUNNING_MAX` at most.
    Those that a worker holds or that back off are preferred to those that are ready.
    """
    start, end = lane_keys.slot_range(lane, ready_only=False)
    kept = store.scan(start, lane_keys.slot_range(lane, ready_only=True)[0], 1)
    if kept:
        return keyspace.last_id(kept[0][0]), 0
    if not lane.running:
        ready = store.scan(start, end, 1)
        return (keyspace.last_id(ready[0][0]) if ready else ""), 0
    looked_at, key = 0, lane.key.encode()
    start, end = keyspace.prefix_range(
        keyspace.place_prefix(QueuePlace.INPROG, lane.queue, lane.tenant)
    )
    while looked_at < RUNNING_MAX:
        page = store.scan(start, end, _PAGE)
        ids = [keyspace.last_id(row) for row, _ in page]
        for task_id, record in zip(ids, store.get_many([*map(keyspace.task, ids)]), strict=True):
            # Texts stand in a record as they are, and to look for one is quicker than to decode.
            if record is not None and key in record and _is_of(lane, record):
                return task_id, looked_at
        looked_at += len(page)
        if len(page) < _PAGE:
            break
        start = page[-1][0] + b"\0"
    return "", looked_at


def _is_of(lane: Lane, record: bytes) -> bool:
    """Return whether a record is of a task with the key of a lane; False if it is damaged."""
    try:
        return lane_of(records.decode_task(record)) == lane.key
    except RecordInvalid:
        return False  # Whoever needs this one reads it, and says so.


def _ahead(store: StateStore, task: Task) -> int:
    queue = keyspace.queue_name(task.command)
    start, _ = keyspace.pending_range(queue, task.tenant)
    [end, *_] = keyspace.index_keys(task)
    return len(store.scan(start, end, AHEAD_MAX))
