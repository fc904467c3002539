"""Lanes: valid leases of a key (G28), its tasks in their order (G29), its rate and rests (G30).

G28 and G30 hold for the tasks of a whole queue too, if `keys` says that it has limits, and for all
queues that share one.
The rule of keys is one task of a key at a time, first in, first out, unless `keys` says more of
a key; a task that is given back keeps its turn; and the rate is that of `keys`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from jepsen_lite.checker.leases import lease_ended_ns
from jepsen_lite.checker.verdict import Verdict, Violation, judged
from jepsen_lite.history import F, Type
from jepsen_lite.keys import OF_QUEUE, Limits, limited_with, limits_of
from jepsen_lite.operations import MS, NEVER_NS, SECOND, History, Op, TaskOps


def within_its_limit(history: History) -> Verdict:
    """G28: no more tasks of a key or queue than may be in progress have a valid lease at once.

    Only leases that are certainly valid count.
    """
    found: list[Violation] = []
    checked = 0
    for name, limits, tasks in _limited(history):
        most = limits.running
        spans = sorted(
            (
                (claim.ret_ns, lease_ended_ns(history, task, claim), task, claim)
                for task in tasks
                for claim in task.claims
            ),
            key=lambda span: span[:2],
        )
        valid: list[tuple[int, TaskOps, Op]] = []
        for begun_ns, ended_ns, task, claim in spans:
            if ended_ns <= begun_ns:
                continue
            checked += 1
            valid = [each for each in valid if each[0] > begun_ns]
            others = {each[1].id: each for each in valid if each[1] is not task}
            if len(others) >= most:
                names = " and ".join(others)
                text = f"{task.id} was leased while {names} of its {name} was"
                events = (n for each in others.values() for n in each[2].events)
                found.append(Violation(text=text, events=(*events, *claim.events), task=task.id))
            valid.append((ended_ns, task, claim))
    return judged("G28", found, checked=checked)


def in_order_of_arrival(history: History) -> Verdict:
    """G29: no task of a key is delivered before one that was there before it has ended.

    Keys that may have several tasks in progress are left out.
    """
    found: list[Violation] = []
    checked = 0
    for key, tasks in _by_key(history).items():
        if limits_of(key).running > 1:
            continue
        for task, first, ahead in _with_those_ahead(tasks):
            checked += 1
            if ahead is not None and first.ret_ns < _may_have_ended_ns(ahead):
                text = f"{task.id} was delivered before {ahead.id} of its key {key} had ended"
                events = (*_created(ahead), *first.events)
                found.append(Violation(text=text, events=events, task=task.id))
    return judged("G29", found, checked=checked)


def within_its_rate(history: History) -> Verdict:
    """G30: in no stretch of time are more tasks of a key or queue claimed than its rate allows."""
    found: list[Violation] = []
    checked = 0
    for name, limits, tasks in _limited(history):
        claims = _claims(tasks)
        checked += len(claims)
        for first, _ in claims:
            within = [pair for pair in claims if pair[0].call_ns >= first.call_ns]
            for count, (last, task) in enumerate(within, 1):
                span_ns = last.ret_ns - first.call_ns + history.clock_ns
                if (count - limits.burst) * SECOND > limits.per_second * span_ns:
                    text = f"{count} tasks of {name} were claimed in {span_ns / SECOND:.2f} s"
                    events = (*first.events, *last.events)
                    found.append(Violation(text=text, events=events, task=task.id))
                    break
    return judged("G30", found, checked=checked)


def at_rest(history: History) -> Verdict:
    """G30: no task is claimed while a worker holds its key or queue, or an admin pauses the key."""
    found: list[Violation] = []
    checked = 0
    rests = [
        (f"key {key}", tasks, [*_holds(history, tasks), *_pauses(history, key)])
        for key, tasks in _by_key(history).items()
    ]
    rests += [
        (f"queue {command}", tasks, [*_holds(history, tasks, queue=command)])
        for command, tasks in _by_queue(history)
    ]
    for name, tasks, causes in rests:
        claims = _claims(tasks)
        for cause, until_ns in causes:
            checked += cause.ret_ns < until_ns
            for claim, task in claims:
                if cause.ret_ns <= claim.call_ns and claim.ret_ns < until_ns:
                    how = "was held" if cause.f is F.NACK else "was paused"
                    text = f"{task.id} was claimed while its {name} {how}"
                    events = (*cause.events, *claim.events)
                    found.append(Violation(text=text, events=events, task=task.id))
                    break
    return judged("G30", found, checked=checked)


def _holds(
    history: History, tasks: Sequence[TaskOps], *, queue: str = ""
) -> Iterator[tuple[Op, int]]:
    """Yield each hold of a queue, or of a key with `tasks`, and until when it certainly lasted."""
    for task in tasks:
        for op in task.releases:
            if op.ok and op.args.hold and queue in ("", op.args.command):
                yield op, op.call_ns + op.args.delay_ms * MS - history.clock_ns


def _pauses(history: History, key: str) -> Iterator[tuple[Op, int]]:
    """Yield each pause of a key, and until when it certainly lasted; a key has one admin.

    A resume whose answer was lost may take effect at any time after it.
    """
    said = [op for op in history.by_f[F.SET_KEY] if op.args.key == key]
    resumes = [op for op in said if not op.args.paused and op.possible]
    for op in said:
        lost = any(each.type is Type.INFO and each.call_ns < op.ret_ns for each in resumes)
        if op.ok and op.args.paused and not lost:
            later = (each.call_ns for each in resumes if each.call_ns > op.call_ns)
            yield op, min(later, default=NEVER_NS)


def _claims(tasks: Sequence[TaskOps]) -> list[tuple[Op, TaskOps]]:
    claims = ((claim, task) for task in tasks for claim in task.claims)
    return sorted(claims, key=lambda pair: pair[0].ret_ns)


def _limited(history: History) -> Iterator[tuple[str, Limits, list[TaskOps]]]:
    """Yield each key and queue that has limits, in words, with these and its tasks."""
    for key, tasks in _by_key(history).items():
        yield f"key {key}", limits_of(key), tasks
    for command, tasks in _by_queue(history):
        yield f"queue {command}", OF_QUEUE[command], tasks


def _by_queue(history: History) -> Iterator[tuple[str, list[TaskOps]]]:
    """Yield each queue that has limits, with its tasks and those of who shares them."""
    for command in OF_QUEUE:
        queues = limited_with(command)
        yield command, [each for each in history.tasks.values() if each.args.command in queues]


def _by_key(history: History) -> dict[str, list[TaskOps]]:
    by_key: dict[str, list[TaskOps]] = defaultdict(list)
    for task in history.tasks.values():
        if task.args.key:
            by_key[task.args.key].append(task)
    return by_key


def _with_those_ahead(
    tasks: Sequence[TaskOps],
) -> Iterator[tuple[TaskOps, Op, TaskOps | None]]:
    """Yield each delivered task, its first delivery, and who of those before it ended last."""
    acknowledged = sorted(
        (task for task in tasks if task.acknowledged is not None),
        key=lambda task: task.created_ret_ns,
    )
    delivered = sorted(
        (task for task in tasks if task.first_claim is not None),
        key=lambda task: task.created_call_ns,
    )
    latest: TaskOps | None = None
    position = 0
    for task in delivered:
        while (
            position < len(acknowledged)
            and acknowledged[position].created_ret_ns < task.created_call_ns
        ):
            other = acknowledged[position]
            if latest is None or _may_have_ended_ns(other) > _may_have_ended_ns(latest):
                latest = other
            position += 1
        assert task.first_claim is not None
        yield task, task.first_claim, latest


def _may_have_ended_ns(task: TaskOps) -> int:
    """Return the first instant at which a task may have ended; the rule keeps it until then."""
    ends = (op.call_ns for op in (*task.results, *task.cancels) if op.possible)
    return min(ends, default=NEVER_NS)


def _created(task: TaskOps) -> tuple[int, ...]:
    return task.acknowledged.events if task.acknowledged is not None else ()
