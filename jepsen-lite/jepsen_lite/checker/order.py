"""Order: first in, first out (G12), and higher priorities before lower ones (G13)."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence

from jepsen_lite.checker.verdict import Verdict, Violation, judged
from jepsen_lite.operations import NEVER_NS, History, Op, TaskOps

_Queue = tuple[str, int]


def first_in_first_out(history: History) -> Verdict:
    """G12: of one shard, command and priority, first deliveries come in the order of creates.

    Tasks with a delay, and those whose first delivery no client certainly had, are left out.
    """
    lanes: dict[tuple[str, int, int], list[TaskOps]] = defaultdict(list)
    for task in _plain(history):
        first = task.first_claim
        if first is not None:
            lanes[task.args.command, first.out.shard, task.args.priority].append(task)
    found = [violation for lane in lanes.values() for violation in _overtaken(lane)]
    return judged("G12", found, checked=sum(len(lane) for lane in lanes.values()))


def higher_first(history: History) -> Verdict:
    """G13: no task is delivered while one of a higher priority waited all along in its shard."""
    waiting: dict[_Queue, dict[int, list[TaskOps]]] = defaultdict(lambda: defaultdict(list))
    for task in _plain(history):
        first = task.first_claim
        if first is not None and not task.cancels:
            waiting[task.args.command, first.out.shard][task.args.priority].append(task)
    lanes = {
        queue: {priority: _Waiting(tasks) for priority, tasks in by_priority.items()}
        for queue, by_priority in waiting.items()
    }
    found = []
    checked = 0
    for task in history.tasks.values():
        for claim in task.claims:
            above = lanes.get((task.args.command, claim.out.shard), {})
            for priority, higher in above.items():
                if priority <= task.args.priority or not task.creates:
                    continue
                checked += 1
                passed = higher.during(claim.call_ns, claim.ret_ns)
                if passed is not None:
                    found.append(_passed(task, claim, passed))
    return judged("G13", found, checked=checked)


def _plain(history: History) -> Iterator[TaskOps]:
    for task in history.tasks.values():
        if task.creates and not task.args.delay_ms and task.acknowledged is not None:
            yield task


def _overtaken(lane: Sequence[TaskOps]) -> Iterator[Violation]:
    """Yield tasks delivered before one that was certainly created earlier."""
    by_ret = _Waiting(lane)
    for task in lane:
        first = task.first_claim
        assert first is not None
        earlier = by_ret.during(task.created_call_ns, first.ret_ns)
        if earlier is not None:
            claim = earlier.first_claim
            assert claim is not None
            yield Violation(
                text=f"{task.id} overtook {earlier.id}, which was created before it",
                events=(*_created(earlier), *_created(task), *first.events, *claim.events),
                task=task.id,
            )


def _passed(task: TaskOps, claim: Op, higher: TaskOps) -> Violation:
    later = higher.first_claim
    assert later is not None
    return Violation(
        text=f"{task.id} of priority {task.args.priority} was delivered while {higher.id}"
        f" of priority {higher.args.priority} waited",
        events=(*_created(higher), *claim.events, *later.events),
        task=task.id,
    )


def _created(task: TaskOps) -> tuple[int, ...]:
    acknowledged = task.acknowledged
    return acknowledged.events if acknowledged else ()


class _Waiting:
    """Tasks by when they were certainly there, to find one that waited through a span."""

    def __init__(self, tasks: Sequence[TaskOps]) -> None:
        ranked = sorted(tasks, key=lambda task: task.created_ret_ns)
        self._there_ns = [task.created_ret_ns for task in ranked]
        self._latest: list[tuple[int, TaskOps]] = []
        for task in ranked:
            claim = task.first_claim
            call_ns = claim.call_ns if claim else NEVER_NS
            if self._latest and self._latest[-1][0] >= call_ns:
                self._latest.append(self._latest[-1])
            else:
                self._latest.append((call_ns, task))

    def during(self, begun_ns: int, ended_ns: int) -> TaskOps | None:
        """Return a task that was there before the span and was not asked for until after it."""
        there = bisect.bisect_left(self._there_ns, begun_ns)
        if not there:
            return None
        call_ns, task = self._latest[there - 1]
        return task if call_ns > ended_ns else None
