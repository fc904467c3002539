"""Accounting: nothing lost (G1), nothing invented (G2), no refusal that was carried out (G3)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from jepsen_lite.checker.verdict import Verdict, Violation, judged
from jepsen_lite.history import F
from jepsen_lite.operations import MS, History, Op, TaskOps


def lost(history: History) -> Verdict:
    """G1: a task whose create was acknowledged is present at the end.

    Only a read after everything came to rest decides; without one, the verdict on a task stays
    open.
    """
    acknowledged = [task for task in history.tasks.values() if task.acknowledged]
    unread = [task for task in acknowledged if task.final is None]
    found = [
        Violation(
            text=f"{task.id} was acknowledged and is gone",
            events=(*task.acknowledged.events, *task.final.events),
            task=task.id,
        )
        for task in acknowledged
        if task.acknowledged and task.final and task.final.out.absent
    ]
    checked = 0 if unread else len(acknowledged)
    note = f"{len(unread)} of {len(acknowledged)} tasks were not read at the end" if unread else ""
    return judged("G1", found, checked=checked, note=note)


def invented(history: History) -> Verdict:
    """G2: every payload delivered or read was sent by a client, byte for byte, as one task."""
    sent = {op.args.content for op in history.creates}
    found = []
    checked = 0
    for task in history.tasks.values():
        of_task = {op.args.content for op in task.creates if op.ok and op.out.task == task.id}
        for op, payload in _payloads(task):
            checked += 1
            if payload not in sent:
                text = f"{task.id} was seen with a payload nobody sent: {payload[:80]!r}"
            elif of_task and payload not in of_task:
                text = f"{task.id} was seen with the payload of another: {payload[:80]!r}"
            else:
                continue
            found.append(Violation(text=text, events=op.events, task=task.id))
    found.extend(_multiplied(history))
    return judged("G2", found, checked=checked)


def dishonest(history: History) -> Verdict:
    """G3: a refused operation did not happen.

    A refused create that happened shows in a delivery or a read; a refused result or cancel shows
    in a read. A refused or empty claim that leased a task shows as a delivery that no client had.
    Three kinds of claims may leave such a delivery: one with an unknown outcome, one whose answer
    took longer than the lease, and one under way while the task was cancelled. Each explains at
    most one.
    """
    found: list[Violation] = []
    checked = 0
    for task in history.tasks.values():
        checked += 1
        found.extend(_refused_and_done(task))
    haunted = {task.id: _ghosts(task) for task in history.tasks.values() if not task.requeues}
    cancels = [op for id_ in haunted if haunted[id_] for op in history.tasks[id_].cancels]
    unknown_claims = sum(_may_leave_a_ghost(op, cancels) for op in history.by_f[F.CLAIM])
    count = sum(haunted.values())
    if count > unknown_claims:
        task = history.tasks[max(haunted, key=lambda id_: haunted[id_])]
        text = (
            f"{count} deliveries reached nobody, and only {unknown_claims} claims have an unknown"
            f" outcome; the most of one task at {task.id}"
        )
        found.append(Violation(text=text, events=_shown(task), task=task.id))
    return judged("G3", found, checked=checked)


def _multiplied(history: History) -> Iterator[Violation]:
    """Yield creates without a key that made more than one task; G4 judges those with a key."""
    made: dict[tuple[int, str], list[TaskOps]] = defaultdict(list)
    for task in history.tasks.values():
        for op in task.creates:
            if not op.args.idempotency_key:
                made[op.i, op.args.content].append(task)
    times = Counter(op.args.content for op in history.creates if op.possible)
    for tasks in made.values():
        content = tasks[0].args.content
        if len(tasks) > max(1, times[content]):
            names = ", ".join(task.id for task in tasks)
            events = tuple(n for op in tasks[0].creates for n in op.events)
            text = f"one create made {len(tasks)} tasks: {names}"
            yield Violation(text=text, events=events, task=tasks[0].id)


def _payloads(task: TaskOps) -> Iterator[tuple[Op, str]]:
    for op in task.claims:
        yield op, op.out.content
    for op in task.reads:
        if op.out.payload:
            yield op, op.out.payload


def _refused_and_done(task: TaskOps) -> Iterator[Violation]:
    if task.creates and not any(op.possible for op in task.creates):
        events = tuple(n for op in task.creates for n in op.events) + _shown(task)
        yield Violation(
            text=f"{task.id} exists, and every create of it was refused",
            events=events,
            task=task.id,
        )
    possible = {op.args.content for op in task.results if op.possible}
    refused = {op.args.content: op for op in task.results if not op.possible}
    for read in task.reads:
        content = read.out.content
        if content and content in refused and content not in possible:
            yield Violation(
                text=f"the result of {task.id} is one that was refused",
                events=(*refused[content].events, *read.events),
                task=task.id,
            )
            break
    cancelled = next((read for read in task.reads if read.out.error == "CANCELLED"), None)
    if cancelled and not any(op.possible for op in task.cancels):
        yield Violation(
            text=f"{task.id} is cancelled, and no cancel was accepted",
            events=(*(n for op in task.cancels for n in op.events), *cancelled.events),
            task=task.id,
        )


def _may_leave_a_ghost(claim: Op, cancels: Sequence[Op]) -> bool:
    """Return whether a claim may have leased a task that no client saw.

    If the client, or the node that forwarded for it, loses the answer, it asks again. The repeated
    claim returns the same task, unless the lease has ended or the task was cancelled meanwhile.
    Without that task, the node may then find no work, or no leader to ask for it.

    Args:
        claim: Any claim.
        cancels: The cancels of tasks with a delivery that no client had.
    """
    if claim.done_ns - claim.call_ns >= claim.args.lease_ms * MS:
        return True
    return claim.possible and (
        not claim.ok
        or any(
            cancel.possible and claim.call_ns < cancel.done_ns and cancel.call_ns < claim.done_ns
            for cancel in cancels
        )
    )


def _ghosts(task: TaskOps) -> int:
    """Return the least number of deliveries that no client had."""
    attempts = [op.out.attempt for op in task.claims]
    seen = max([*attempts, *(read.out.attempt for read in task.reads)], default=0)
    return max(0, seen - len(task.claims))


def _shown(task: TaskOps) -> tuple[int, ...]:
    return tuple(n for op in (*task.claims, *task.reads[-1:]) for n in op.events)
