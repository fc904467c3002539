"""Attempts: deliveries are counted exactly, and dead letters are neither early nor lost (G10)."""

from __future__ import annotations

from collections.abc import Iterator

from jepsen_lite.checker.verdict import Verdict, Violation, judged
from jepsen_lite.operations import History, Op, TaskOps

# Causes of death that do not require the attempts to be used up.
_AT_ONCE = frozenset({"MESSAGE_EXPIRED", "CANCELLED"})


def exact(history: History) -> Verdict:
    """G10: delivery numbers grow within the limit; attempts end a task only at the limit."""
    found: list[Violation] = []
    checked = 0
    for task in history.tasks.values():
        checked += len(task.claims)
        if any(op.possible for op in task.requeues):
            found.extend(_requeued(task))
            continue
        found.extend(_numbers(task))
        found.extend(_deaths(task))
    return judged("G10", found, checked=checked)


def _numbers(task: TaskOps) -> Iterator[Violation]:
    # A delivery that ends by a hold of its key does not count.
    uncounted = {op.args.token for op in task.releases if op.possible and op.args.hold}
    for before, after in zip(task.claims, task.claims[1:], strict=False):
        if after.out.attempt <= before.out.attempt - (before.out.token in uncounted):
            yield _violation(
                task,
                f"delivery {after.out.attempt} came after delivery {before.out.attempt}",
                before,
                after,
            )
    most = task.args.attempts_max
    for claim in task.claims:
        if most and claim.out.attempt > most:
            yield _violation(task, f"delivery {claim.out.attempt} of {most}", claim)


def _deaths(task: TaskOps) -> Iterator[Violation]:
    most = task.args.attempts_max
    attempts = {claim.out.token: claim.out.attempt for claim in task.claims}
    for op in task.releases:
        if not op.ok or op.args.token not in attempts or not most:
            continue
        attempt = attempts[op.args.token]
        if op.out.dead != (attempt >= most and not op.args.hold):
            what = "died" if op.out.dead else "lived on"
            yield _violation(task, f"{what} after delivery {attempt} of {most}", op)
    died = next((op for op in task.releases if op.ok and op.out.dead), None)
    final = task.final
    if final is None:
        return
    if died is not None and final.out.location != "DLQ_SET":
        yield _violation(task, "died and is no dead letter at the end", died, final)
    if final.out.location != "DLQ_SET":
        return
    done = next((op for op in task.results if op.ok), None)
    if done is not None:
        yield _violation(task, "has a result and is a dead letter", done, final)
    if most and final.out.attempt < most and final.out.error not in _AT_ONCE:
        yield _violation(task, f"is a dead letter after {final.out.attempt} of {most}", final)


def _requeued(task: TaskOps) -> Iterator[Violation]:
    """Judge a task that an operator requeued: it must still exist."""
    final = task.final
    accepted = next((op for op in task.requeues if op.ok), None)
    if final is not None and accepted is not None and final.out.absent:
        yield _violation(task, "was made ready again and is gone", accepted, final)


def _violation(task: TaskOps, text: str, *shown: Op) -> Violation:
    events = tuple(n for op in shown for n in op.events)
    return Violation(text=f"{task.id}: {text}", events=events, task=task.id)
