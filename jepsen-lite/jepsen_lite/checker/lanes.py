"""Lanes: one valid lease a key (G28), its tasks in their order (G29), and its rate (G30).

The workload's rule is one task of a key at a time, first in, first out; a task that is given back
keeps its turn; and the rate is that of `keys`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from jepsen_lite.checker.leases import lease_ended_ns
from jepsen_lite.checker.verdict import Verdict, Violation, judged
from jepsen_lite.keys import BURST, PER_SECOND
from jepsen_lite.operations import NEVER_NS, SECOND, History, Op, TaskOps


def one_lease_a_key(history: History) -> Verdict:
    """G28: no two tasks of a key certainly have a valid lease at one instant."""
    found: list[Violation] = []
    checked = 0
    for key, tasks in _by_key(history).items():
        spans = sorted(
            (
                (claim.ret_ns, lease_ended_ns(history, task, claim), task, claim)
                for task in tasks
                for claim in task.claims
            ),
            key=lambda span: span[:2],
        )
        last: tuple[int, TaskOps, Op] | None = None
        for begun_ns, ended_ns, task, claim in spans:
            if ended_ns <= begun_ns:
                continue
            checked += 1
            if last is not None and begun_ns < last[0] and last[1] is not task:
                text = f"{task.id} was leased while {last[1].id} of its key {key} was"
                events = (*last[2].events, *claim.events)
                found.append(Violation(text=text, events=events, task=task.id))
            if last is None or ended_ns > last[0]:
                last = ended_ns, task, claim
    return judged("G28", found, checked=checked)


def in_order_of_arrival(history: History) -> Verdict:
    """G29: no task of a key is delivered before one that was there before it has ended."""
    found: list[Violation] = []
    checked = 0
    for key, tasks in _by_key(history).items():
        for task, first, ahead in _with_those_ahead(tasks):
            checked += 1
            if ahead is not None and first.ret_ns < _may_have_ended_ns(ahead):
                text = f"{task.id} was delivered before {ahead.id} of its key {key} had ended"
                events = (*_created(ahead), *first.events)
                found.append(Violation(text=text, events=events, task=task.id))
    return judged("G29", found, checked=checked)


def within_its_rate(history: History) -> Verdict:
    """G30: in no stretch of time are more tasks of a key claimed than its rate allows."""
    found: list[Violation] = []
    checked = 0
    for key, tasks in _by_key(history).items():
        claims = sorted(
            ((claim, task) for task in tasks for claim in task.claims),
            key=lambda pair: pair[0].ret_ns,
        )
        checked += len(claims)
        for first, _ in claims:
            within = [pair for pair in claims if pair[0].call_ns >= first.call_ns]
            for count, (last, task) in enumerate(within, 1):
                span_ns = last.ret_ns - first.call_ns + history.clock_ns
                if (count - BURST) * SECOND > PER_SECOND * span_ns:
                    text = f"{count} tasks of key {key} were claimed in {span_ns / SECOND:.2f} s"
                    events = (*first.events, *last.events)
                    found.append(Violation(text=text, events=events, task=task.id))
                    break
    return judged("G30", found, checked=checked)


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
