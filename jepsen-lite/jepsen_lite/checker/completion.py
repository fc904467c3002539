"""Completion: one result, from the holder of the lease (G7), and nothing after it (G8)."""

from __future__ import annotations

from collections.abc import Iterator

from jepsen_lite.checker.verdict import Verdict, Violation, judged
from jepsen_lite.history import F
from jepsen_lite.operations import TERMINAL, History, Op, TaskOps


def one_result(history: History) -> Verdict:
    """G7: a task gets one result, and none from a worker whose lease was followed by another.

    `register` checks the other part of G7: each operation on a task happened at one moment.
    """
    found: list[Violation] = []
    checked = 0
    for task in history.tasks.values():
        checked += sum(op.ok for op in task.results)
        found.extend(_two_results(task))
        found.extend(_fenced(task))
        found.extend(_other_result(task))
    return judged("G7", found, checked=checked)


def terminal_is_terminal(history: History) -> Verdict:
    """G8: a task that has ended is never delivered again and never changes."""
    found: list[Violation] = []
    checked = 0
    for task in history.tasks.values():
        end = _end(task)
        if end is None:
            continue
        checked += 1
        if any(op.possible for op in task.requeues):
            continue  # G10 judges those: a dead letter may be requeued.
        found.extend(
            Violation(
                text=f"{task.id} was delivered after its end was known",
                events=(*end.events, *claim.events),
                task=task.id,
            )
            for claim in task.claims
            if claim.call_ns > end.ret_ns
        )
        found.extend(
            Violation(
                text=f"{task.id} had ended ({_said(end)}) and was read as {_said(read)}",
                events=(*end.events, *read.events),
                task=task.id,
            )
            for read in task.reads
            if read.call_ns > end.ret_ns and _contradicts(read, end)
        )
    return judged("G8", found, checked=checked)


def _two_results(task: TaskOps) -> Iterator[Violation]:
    accepted = {op.args.content: op for op in task.results if op.ok}
    if len(accepted) > 1:
        yield Violation(
            text=f"{task.id} has {len(accepted)} accepted results",
            events=tuple(n for op in accepted.values() for n in op.events),
            task=task.id,
        )


def _fenced(task: TaskOps) -> Iterator[Violation]:
    for op in (*task.results, *task.heartbeats, *task.releases):
        if not op.ok or not op.args.token:
            continue
        newer = next(
            (
                claim
                for claim in task.claims
                if claim.out.token > op.args.token and claim.ret_ns < op.call_ns
            ),
            None,
        )
        if newer is not None:
            yield Violation(
                text=f"{task.id}: {op.f} was accepted with a token older than a later lease's",
                events=(*newer.events, *op.events),
                task=task.id,
            )


def _other_result(task: TaskOps) -> Iterator[Violation]:
    if task.final is None or task.final.out.status != "COMPLETED":
        return
    if task.final.out.content not in {op.args.content for op in task.results if op.possible}:
        yield Violation(
            text=f"{task.id} ended with a result nobody sent",
            events=task.final.events,
            task=task.id,
        )


def _end(task: TaskOps) -> Op | None:
    """Return the earliest proof that a task has ended."""
    proofs = [
        *(op for op in (*task.results, *task.cancels) if op.ok),
        *(op for op in task.releases if op.ok and op.out.dead),
        *(read for read in task.reads if read.out.status in TERMINAL),
    ]
    return min(proofs, key=lambda op: op.ret_ns, default=None)


def _contradicts(read: Op, end: Op) -> bool:
    status, content = _told(end)
    if read.out.status != status:
        return True
    # Not every proof has the content: a dead task has the broker's own text, which only a read
    # shows.
    return bool(content and read.out.content and content != read.out.content)


def _told(op: Op) -> tuple[str, str]:
    """Return the status that an operation proves for a task, and its result if it has one."""
    match op.f:
        case F.RESULT:
            return op.args.status, op.args.content
        case F.READ:
            return op.out.status, op.out.content
        case _:
            return "FAILED", ""


def _said(op: Op) -> str:
    status, content = _told(op)
    return f"{status or 'absent'} {content[:80]}".strip()
