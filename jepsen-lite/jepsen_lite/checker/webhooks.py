"""Webhooks: every end of a task is reported, truthfully, under one id and signed (G21)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from jepsen_lite.checker.verdict import Verdict, Violation, judged
from jepsen_lite.history import Event
from jepsen_lite.operations import TERMINAL, History, Op, TaskOps

OPEN = frozenset({"PENDING", "IN_PROGRESS"})


def told(history: History) -> Verdict:
    """G21: every ended task with a webhook was reported, and every report is true."""
    by_task: dict[str, list[Event]] = defaultdict(list)
    for event in history.deliveries:
        by_task[event.args.task].append(event)
    found: list[Violation] = []
    for task_id, calls in by_task.items():
        found.extend(_untrue(history.tasks.get(task_id), task_id, calls))
    due = [task for task in history.tasks.values() if task.args.webhook and _ended(task)]
    awaited = "delivered" in history.phases
    if awaited:
        found.extend(
            Violation(
                text=f"{task.id} has ended and its webhook was not told",
                events=task.final.events if task.final else (),
                task=task.id,
            )
            for task in due
            if not any(200 <= call.out.http < 300 for call in by_task[task.id])
        )
    checked = len(due) if awaited else 0
    return judged("G21", found, checked=checked)


def _ended(task: TaskOps) -> bool:
    return task.final is not None and task.final.out.status in TERMINAL


def _untrue(task: TaskOps | None, task_id: str, calls: Sequence[Event]) -> Iterator[Violation]:
    events = tuple(call.i for call in calls)

    def violation(text: str) -> Violation:
        return Violation(text=f"{task_id}: {text}", events=events, task=task_id)

    if not all(call.out.signed for call in calls):
        yield violation("a webhook call has no good signature")
    requeued = task is not None and any(op.possible for op in task.requeues)
    if len({call.out.delivery for call in calls}) > 1 and not requeued:
        yield violation("one end was told under several ids")
    if task is None or requeued:
        return
    told_ns = min(call.t_ns for call in calls)
    for op in _alive(task):
        if op.call_ns > told_ns:
            yield violation(f"its webhook was told that it ended, and then a {op.f} found it open")
            return
    if task.final is None:
        return
    final = task.final
    for call in calls:
        content = call.args.content
        contrary = bool(content and final.out.content and content != final.out.content)
        if call.args.status != final.out.status or contrary:
            text = f"its webhook was told {call.args.status}, and it is {final.out.status}"
            yield violation(text)
            return


def _alive(task: TaskOps) -> Iterator[Op]:
    """Yield operations that prove that the task had not ended when they were carried out."""
    yield from (op for op in task.claims if op.ok)
    yield from (op for op in (*task.heartbeats, *task.releases) if op.ok)
    yield from (op for op in task.reads if op.ok and op.out.status in OPEN)
