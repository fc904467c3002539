"""Register: every operation on a task happened at one moment (G7), and reads saw it (G15)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
from msgspec import Struct

from jepsen_lite.checker.linearizability import linearizable
from jepsen_lite.checker.verdict import Verdict, Violation, judged
from jepsen_lite.history import F
from jepsen_lite.operations import NEVER_NS, TERMINAL, History, Op, TaskOps


class _Task(Struct, frozen=True):
    """A task of the model.

    No client sees a lease expire. So a task with a known lease may be ready all the same; a task
    without one is never leased.

    Attributes:
        phase: `none`, `open`, `done` or `dead`.
        token: Of the last lease a client knows of.
        leased: Whether that lease may be valid.
        said: Status and content of the end, once there is one.
    """

    phase: str = "none"
    token: int = 0
    leased: bool = False
    said: tuple[str, str] = ("", "")


def happened_at_moments(history: History) -> tuple[Verdict, Verdict]:
    """Judge the operations of each task, G7, and whether reads fit between them, G15."""
    # A claim whose answer was lost may have leased any task, so a lease may appear without a claim.
    hidden = any(op.possible and not op.ok for op in history.by_f[F.CLAIM])
    step = partial(_step, hidden=hidden)
    writes: list[Violation] = []
    reads: list[Violation] = []
    unknown = 0
    for task in history.tasks.values():
        written, read = _ops(task), task.reads
        fits = linearizable([*written, *read], _Task(), step)
        if fits is None:
            unknown += 1
        elif not fits and linearizable(written, _Task(), step) is False:
            text = f"no order of the operations on {task.id} explains their answers"
            writes.append(_violation(task, text, written, step))
        elif not fits:
            text = f"no order of the operations on {task.id} explains what was read of it"
            reads.append(_violation(task, text, [*written, *read], step))
    note = f"the search was given up for {unknown} tasks" if unknown else ""
    judged_tasks = len(history.tasks) - unknown
    read_tasks = sum(bool(task.reads) for task in history.tasks.values())
    return (
        judged("G7", writes, checked=judged_tasks, note=note),
        judged("G15", reads, checked=min(judged_tasks, read_tasks), note=note),
    )


def _violation(
    task: TaskOps, text: str, ops: list[Op], step: Callable[[_Task, Op], _Task | None]
) -> Violation:
    """Return the shortest prefix of a task's history that cannot be explained."""
    ops = sorted(ops, key=lambda op: op.done_ns)
    # Every prefix of an explainable history is explainable, so bisection finds the first bad one.
    low, high = 1, len(ops)
    while low < high:
        middle = (low + high) // 2
        if linearizable(_until(ops, middle), _Task(), step) is False:
            high = middle
        else:
            low = middle + 1
    shortest = ops[:low]
    events = tuple(sorted({n for op in shortest for n in op.events}))
    return Violation(text=text, events=events, task=task.id)


def _until(ops: list[Op], count: int) -> list[Op]:
    """Return the first `count` answered operations, and the later ones as still pending."""
    later = (op for op in ops[count:] if op.f is not F.READ)
    return [*ops[:count], *(msgspec.structs.replace(op, ret_ns=NEVER_NS) for op in later)]


def _ops(task: TaskOps) -> list[Op]:
    written = (*task.creates, *task.claims, *task.results, *task.releases)
    found = [op for op in (*written, *task.cancels, *task.requeues) if op.possible]
    # An unanswered heartbeat changes nothing the model knows.
    return found + [op for op in task.heartbeats if op.ok]


def _step(task: _Task, op: Op, *, hidden: bool) -> _Task | None:
    match op.f:
        case F.CREATE:
            return _Task("open") if task.phase == "none" else task
        case F.CLAIM:
            return _claimed(task, op)
        case F.HEARTBEAT | F.NACK | F.ABANDON | F.RESULT:
            return _held(task, op)
        case F.CANCEL:
            return _Task("dead", task.token) if task.phase == "open" else None
        case F.REQUEUE:
            return _Task("open", task.token) if task.phase in {"dead", "open"} else None
        case F.READ:
            return _read(task, op, hidden=hidden)
        case _:
            raise AssertionError(op.f)


def _claimed(task: _Task, op: Op) -> _Task | None:
    if task.phase != "open" or op.out.token <= task.token:
        return None
    return _Task("open", op.out.token, True)


def _held(task: _Task, op: Op) -> _Task | None:
    said = (op.args.status, op.args.content)
    if task.phase != "open" or not task.leased or op.args.token != task.token:
        # A repeated submit of the same result gets the stored result as its answer.
        again = op.f is F.RESULT and task.phase == "done" and task.said == said
        return task if again else None
    if op.f is F.HEARTBEAT:
        return task
    if op.f is F.RESULT:
        return _Task("done", task.token, False, said)
    return _Task("dead" if op.out.dead else "open", task.token)


def _read(task: _Task, op: Op, *, hidden: bool) -> _Task | None:
    status, content = op.out.status, op.out.content
    if op.out.absent:
        return task if task.phase == "none" else None
    if status == "PENDING":
        return _Task("open", task.token) if task.phase == "open" else None
    if status == "IN_PROGRESS":
        return task if task.phase == "open" and (task.leased or hidden) else None
    assert status in TERMINAL, status
    if task.phase == "done":
        same = task.said[0] == status and (not content or content == task.said[1])
        return task if same else None
    if status == "FAILED" and op.out.location == "DLQ_SET" and task.phase == "open":
        # No client sees a task run out of attempts or of time to live.
        return _Task("dead", task.token)
    return task if status == "FAILED" and task.phase == "dead" else None
