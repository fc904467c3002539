"""Idempotency: one key, one task (G4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from jepsen_lite.checker.verdict import Verdict, Violation, judged
from jepsen_lite.operations import History, Op


def one_task_a_key(history: History) -> Verdict:
    """G4: creates with one key make one task and accept one content.

    A task whose create's answer was lost is recognized by its payload, in a delivery or a read.
    """
    by_key: dict[str, list[Op]] = defaultdict(list)
    for op in history.creates:
        if op.args.idempotency_key:
            by_key[op.args.idempotency_key].append(op)
    made: dict[str, set[str]] = defaultdict(set)
    for task in history.tasks.values():
        for op in task.creates:
            if op.args.idempotency_key:
                made[op.args.idempotency_key].add(task.id)
    found = [
        violation
        for key, creates in by_key.items()
        for violation in _broken(key, creates, sorted(made[key]))
    ]
    return judged("G4", found, checked=sum(len(creates) > 1 for creates in by_key.values()))


def _broken(key: str, creates: Sequence[Op], tasks: Sequence[str]) -> Iterator[Violation]:
    events = tuple(n for op in creates for n in op.events)
    if len(tasks) > 1:
        yield Violation(
            text=f"key {key} made {len(tasks)} tasks: {', '.join(tasks)}",
            events=events,
            task=tasks[0],
        )
    accepted = {op.args.content for op in creates if op.ok}
    if len(accepted) > 1:
        yield Violation(
            text=f"key {key} was accepted with {len(accepted)} contents",
            events=events,
            task=tasks[0] if tasks else "",
        )
    if len({op.args.content for op in creates}) == 1:
        for op in creates:
            if op.out.code == "idempotency-conflict":
                yield Violation(
                    text=f"key {key} was refused as a conflict, and only one content was sent",
                    events=events,
                    task=tasks[0] if tasks else "",
                )
                break
