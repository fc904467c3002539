"""Stepping: records what a task's function has done, parks the task, and wakes it.

A wait ends by its instant or by its signal, whichever is first in the log; its step keeps which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from msgspec.structs import replace

from codeq_cluster.core.changes import Change, Decision, ItemChange, TaskChange
from codeq_cluster.core.durable import (
    CLEARED_MAX,
    DURABLE_BYTES_MAX,
    PARK_MS_MAX,
    SIGNALS_BYTES_MAX,
    SIGNALS_MAX,
    STEPS_MAX,
    UNREAD_MAX,
    Park,
    RecordStep,
    SendSignal,
    Signal,
    Step,
    digest_of,
    row_id,
)
from codeq_cluster.core.holding import found, held, lease_until_ms, refusal_of
from codeq_cluster.core.items import KIND_OF
from codeq_cluster.core.log_line import LogLine
from codeq_cluster.core.outcomes import Rejected, Rejection, Signalled, StepStands
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Durable, More, State, Task, cancelling_of
from codeq_cluster.core.transitions import awake, due, extended, parked
from codeq_cluster.core.view import View

_R = TypeVar("_R", bound=Step | Signal | LogLine)


def record(view: View, operation: RecordStep, rules: LifetimeRules) -> Decision:
    """Record a step, or answer with it: what is recorded stays, whoever records it again."""
    assert operation.extend_ms >= 1
    task = held(view, operation)
    if isinstance(task, Rejected):
        return Decision(task)
    known = _step(view, task, operation.name)
    if known is not None:
        if known.until_ms or known.value != operation.value:
            return Decision(Rejected(Rejection.STEP_CONFLICT))
        return _goes_on(view, task, known, operation, rules)
    durable = durable_of(task)
    step = Step(
        tenant=task.tenant,
        id=row_id(task.id, operation.name),
        name=operation.name,
        number=durable.steps + 1,
        position=operation.position,
        value=operation.value,
        at_ms=view.now_ms,
    )
    if durable.steps >= STEPS_MAX:
        return Decision(Rejected(Rejection.TOO_MANY, "steps"))
    if durable.bytes + step.size > DURABLE_BYTES_MAX:
        return Decision(Rejected(Rejection.TOO_MANY, "stepBytes"))
    return _goes_on(view, task, step, operation, rules, ItemChange(before=None, after=step))


def park(view: View, operation: Park, rules: LifetimeRules) -> Decision:
    """Let a task wait without a worker, unless what it waits for has come already."""
    assert operation.extend_ms >= 1
    task = found(view, operation)
    if task is None:
        return Decision(Rejected(Rejection.NOT_FOUND))
    known = _step(view, task, operation.step)
    if known is not None and known.is_open and _parked_by(task, known, operation):
        return Decision(StepStands(known))
    refusal = refusal_of(task, operation)
    if refusal is not None:
        return Decision(Rejected(refusal))
    if known is None and durable_of(task).steps >= STEPS_MAX:
        return Decision(Rejected(Rejection.TOO_MANY, "steps"))
    if known is not None and (not known.until_ms or known.signal != operation.signal):
        return Decision(Rejected(Rejection.STEP_CONFLICT))
    if known is not None and not known.is_open:
        return _goes_on(view, task, known, operation, rules)
    if cancelling_of(task) is not None:
        return Decision(Rejected(Rejection.CANCELLING))  # Without a worker it would sleep on.
    return _waits(view, task, known, operation, rules)


def send_signal(view: View, operation: SendSignal, rules: LifetimeRules) -> Decision:
    """Give a task a signal: it wakes if it waits for that one, and else it keeps the signal."""
    task = found(view, operation)
    if task is None:
        return Decision(Rejected(Rejection.NOT_FOUND))
    signal = Signal(
        tenant=task.tenant,
        id=row_id(task.id, operation.key or operation.request),
        name=operation.name,
        seq=view.next_seq(),
        digest=digest_of(f"{operation.name}\0{operation.payload}"),
        payload=operation.payload,
        sent_ms=view.now_ms,
    )
    known = view.item(ItemKind.SIGNAL, task.tenant, signal.id)
    if isinstance(known, Signal):
        if known.digest != signal.digest:
            return Decision(Rejected(Rejection.IDEMPOTENCY_CONFLICT))
        return Decision(Signalled(replay=True))
    refused = _refused_signal(view, task, signal, rules)
    if refused is not None:
        return Decision(refused)
    step = _step(view, task, task.parked_at) if task.parked_at else None
    change = ItemChange(before=None, after=signal)
    if step is None or not step.is_open or step.signal != signal.name:
        after = _with(task, counted(durable_of(task), (change,)))
        return Decision(Signalled(), (TaskChange(before=task, after=after), change))
    change = ItemChange(before=None, after=_read(signal).after)
    ended = ItemChange(before=step, after=_ended(step, view.now_ms, signal.payload))
    awoken = _awake(task, (change, ended))
    after = due(awoken, seq=view.next_seq(), now_ms=view.now_ms)
    return Decision(Signalled(), (TaskChange(before=task, after=after), change, ended))


def settled(view: View, changes: Iterable[Change]) -> tuple[Change, ...]:
    """Return a decision's changes with those of the rows beside its tasks.

    The end of a wait by time ends its step. Rows go with their task, at most `CLEARED_MAX` in one
    decision: a task with more stays until the next, ended. Another payload begins with no steps and
    an empty log.
    """
    all_: list[Change] = []
    left = CLEARED_MAX
    for change in changes:
        before = change.before if isinstance(change, TaskChange) else None
        if not isinstance(change, TaskChange) or before is None or _durable(before) is None:
            all_.append(change)
            continue
        after = change.after
        if after is None:
            gone = _gone(view, before, left)
            left -= len(gone)
            if len(gone) < durable_of(before).rows:
                rest = counted(durable_of(before), gone)
                change = replace(change, after=_going(before, rest, view.now_ms))  # noqa: PLW2901
            all_ += [change, *gone]
        elif change.payload is not None:
            gone = [*map(_none, _beside(view, before, Step)), *map(_none, _lines(view, before))]
            all_ += [replace(change, after=_awake(after, gone)), *gone]
        elif after.parked_at and after.state is not State.DELAYED:
            ended = list(_over(view, before))
            all_ += [replace(change, after=_awake(after, ended)), *ended]
        else:
            all_.append(change)
    return tuple(all_)


def steps_of(view: View, task: Task) -> tuple[Step, ...]:
    """Return what a task's function has recorded, in that order."""
    return tuple(sorted(_beside(view, task, Step), key=lambda step: step.number))


def durable_of(task: Task) -> Durable:
    """Return what stands beside a task."""
    return _durable(task) or Durable()


def counted(durable: Durable, changes: Iterable[ItemChange]) -> Durable:
    """Return the counts after rows have changed."""
    steps, size, signals, unread = durable.steps, durable.bytes, durable.signals, durable.unread
    lines, line_bytes, logged = durable.lines, durable.line_bytes, durable.logged
    for change in changes:
        for row, sign in ((change.before, -1), (change.after, 1)):
            if isinstance(row, Step):
                steps, size = steps + sign, size + sign * row.size
            elif isinstance(row, Signal):
                signals, size = signals + sign, size + sign * row.size
                unread += 0 if row.is_read else sign
            elif isinstance(row, LogLine):
                lines, line_bytes = lines + sign, line_bytes + sign * row.size
                logged = max(logged, row.number)
    return replace(
        durable,
        steps=steps,
        bytes=size,
        signals=signals,
        unread=unread,
        lines=lines,
        line_bytes=line_bytes,
        logged=logged,
    )


def without_log(view: View, task: Task) -> tuple[Task, tuple[ItemChange, ...]]:
    """Return a task that begins with an empty log, and the end of its lines."""
    gone = tuple(map(_none, _lines(view, task)))
    return (_with(task, counted(durable_of(task), gone)), gone) if gone else (task, gone)


def _durable(task: Task) -> Durable | None:
    return task.more.durable if task.more is not None else None


def _with(task: Task, durable: Durable) -> Task:
    return replace(task, more=replace(task.more or More(), durable=durable))


def _going(task: Task, rest: Durable, now_ms: int) -> Task:
    """Return a deleted task that stays until its rows are gone; its group keeps it no longer."""
    more = replace(task.more or More(), durable=rest, member=None)
    return replace(task, more=more, retain_until_ms=now_ms)


def _goes_on(
    view: View,
    task: Task,
    step: Step,
    operation: RecordStep | Park,
    rules: LifetimeRules,
    *rows: ItemChange,
) -> Decision:
    """Answer with a step while the worker keeps its lease; a new one begins the attempts anew."""
    until_ms = lease_until_ms(task, operation.extend_ms, rules, now_ms=view.now_ms)
    until_ms = max(until_ms, task.lease_until_ms)
    after = extended(task, lease_until_ms=until_ms, now_ms=view.now_ms)
    if rows:
        after = _with(replace(after, attempts=1), counted(durable_of(task), rows))
    return Decision(StepStands(step, until_ms), (TaskChange(before=task, after=after), *rows))


def _waits(
    view: View, task: Task, known: Step | None, operation: Park, rules: LifetimeRules
) -> Decision:
    """Park a task at an open step, unless its instant or a signal has come already."""
    durable, now_ms = durable_of(task), view.now_ms
    step = known or Step(
        tenant=task.tenant,
        id=row_id(task.id, operation.step),
        name=operation.step,
        number=durable.steps + 1,
        position=operation.position,
        at_ms=now_ms,
        signal=operation.signal,
        until_ms=_until_ms(operation, now_ms),
        is_open=True,
    )
    step = replace(step, token=task.lease_token)
    signal = _unread(view, task, operation.signal) if durable.unread else None
    rows = [_read(signal)] if signal is not None else []
    if signal is not None or step.until_ms <= now_ms:
        step = _ended(step, now_ms, signal.payload if signal is not None else "")
    rows.append(ItemChange(before=known, after=step))
    if not step.is_open:
        return _goes_on(view, task, step, operation, rules, *rows)
    durable = replace(counted(durable, rows), parked_at=step.name, keeps_key=operation.keeps_key)
    after = parked(_with(task, durable), until_ms=step.until_ms, now_ms=now_ms)
    return Decision(StepStands(step), (TaskChange(before=task, after=after), *rows))


def _step(view: View, task: Task, name: str) -> Step | None:
    if _durable(task) is None:
        return None
    row = view.item(ItemKind.STEP, task.tenant, row_id(task.id, name))
    return row if isinstance(row, Step) else None


def _beside(view: View, task: Task, kind: type[_R]) -> Iterator[_R]:
    """Yield the rows of a kind beside a task."""
    rows = view.beside(KIND_OF[kind], task.tenant, task.id)
    return (row for row in rows if isinstance(row, kind))


def _lines(view: View, task: Task) -> Iterator[LogLine]:
    return _beside(view, task, LogLine) if durable_of(task).lines else iter(())


def _unread(view: View, task: Task, name: str) -> Signal | None:
    """Return the oldest signal of the name that nobody has read."""
    rows = (row for row in _beside(view, task, Signal) if row.name == name and not row.is_read)
    return min(rows, key=lambda row: row.seq, default=None) if name else None


def _read(signal: Signal) -> ItemChange:
    return ItemChange(before=signal, after=replace(signal, payload="", is_read=True))


def _ended(step: Step, now_ms: int, value: str = "") -> Step:
    return replace(step, is_open=False, at_ms=now_ms, value=value)


def _none(row: Step | Signal | LogLine) -> ItemChange:
    return ItemChange(before=row, after=None)


def _until_ms(operation: Park, now_ms: int) -> int:
    latest_ms = now_ms + PARK_MS_MAX
    if operation.until_ms:
        return min(operation.until_ms, latest_ms)
    return min(now_ms + operation.wait_ms, latest_ms) if operation.wait_ms else latest_ms


def _parked_by(task: Task, step: Step, operation: Park) -> bool:
    """Return whether the operation repeats the one that has parked the task."""
    return task.parked_at == step.name and 0 < operation.token == step.token


def _refused_signal(
    view: View, task: Task, signal: Signal, rules: LifetimeRules
) -> Rejected | None:
    durable = durable_of(task)
    if task.state.terminal:
        return Rejected(Rejection.ALREADY_TERMINAL)
    if durable.unread >= UNREAD_MAX:
        return Rejected(Rejection.TOO_MANY, "unreadSignals")
    if durable.signals >= SIGNALS_MAX:
        return Rejected(Rejection.TOO_MANY, "signals")
    over = _over_bytes(view, task, signal)
    if over:
        return Rejected(Rejection.TOO_MANY, over)
    bytes_max = rules.budget_of(task.tenant).bytes_max
    if bytes_max and view.usage(task.tenant).stored_bytes + signal.size > bytes_max:
        return Rejected(Rejection.BUDGET_EXCEEDED, "storedBytes")
    return None


def _over_bytes(view: View, task: Task, signal: Signal) -> str:
    """Return the name of the bound in bytes that a signal would exceed, or ""."""
    durable = durable_of(task)
    if durable.bytes + signal.size <= SIGNALS_BYTES_MAX:
        return ""
    if durable.bytes + signal.size > DURABLE_BYTES_MAX:
        return "stepBytes"
    unread = sum(row.size for row in _beside(view, task, Signal)) if durable.unread else 0
    return "signalBytes" if unread + signal.size > SIGNALS_BYTES_MAX else ""


def _gone(view: View, task: Task, most: int) -> list[ItemChange]:
    """Return the deletions of at most so many rows beside a task."""
    gone: list[ItemChange] = []
    for rows in (_beside(view, task, Step), _beside(view, task, Signal), _lines(view, task)):
        for row in rows:
            if len(gone) == most:
                return gone
            gone.append(_none(row))
    return gone


def _over(view: View, task: Task) -> Iterator[ItemChange]:
    """Yield the end of the wait of a task whose instant has come."""
    step = _step(view, task, task.parked_at)
    if step is not None and step.is_open:
        yield ItemChange(before=step, after=_ended(step, view.now_ms))


def _awake(task: Task, rows: Iterable[ItemChange]) -> Task:
    noted = _with(task, counted(durable_of(task), rows))
    return replace(noted, more=awake(noted.more))


RULES: dict[type, Callable[[View, Any, LifetimeRules], Decision]] = {
    RecordStep: record,
    Park: park,
    SendSignal: send_signal,
}
