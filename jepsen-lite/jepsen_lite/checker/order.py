"""Order: first in, first out (G12), and higher priorities before lower ones (G13)."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence

from jepsen_lite.checker.verdict import Verdict, Violation, judged
from jepsen_lite.operations import History, Op, TaskOps


def first_in_first_out(history: History) -> Verdict:
    """G12: within a shard, command and priority, first deliveries follow the order of creates.

    Tasks with a delay or a key, and tasks whose first delivery no client had, are left out.
    """
    lanes: dict[tuple[str, int, int], list[TaskOps]] = defaultdict(list)
    for task in _plain(history):
        first = _first(task)
        lanes[task.args.command, first.out.shard, task.args.priority].append(task)
    found = []
    for lane in lanes.values():
        others = _Spans([(task.created_call_ns, _first(task), task) for task in lane])
        for task in lane:
            ahead = others.inside(task.created_ret_ns, _first(task).call_ns)
            if ahead is not None:
                found.append(_overtaken(task, ahead[1]))
    checked = sum(len(lane) for lane in lanes.values())
    return judged("G12", found, checked=checked)


def higher_first(history: History) -> Verdict:
    """G13: no task is delivered while its shard holds one of a higher priority throughout."""
    claims: dict[tuple[str, int], dict[int, list[tuple[int, Op, TaskOps]]]]
    claims = defaultdict(lambda: defaultdict(list))
    for task in history.tasks.values():
        for claim in task.claims if task.creates else ():
            lane = claims[task.args.command, claim.out.shard]
            lane[task.args.priority].append((claim.call_ns, claim, task))
    lanes = {
        queue: {priority: _Spans(each) for priority, each in by_priority.items()}
        for queue, by_priority in claims.items()
    }
    found = []
    checked = 0
    for task in _plain(history):
        if task.cancels:
            continue
        first = _first(task)
        for priority, lower in lanes[task.args.command, first.out.shard].items():
            if priority >= task.args.priority:
                continue
            checked += 1
            ahead = lower.inside(task.created_ret_ns, first.call_ns)
            if ahead is not None:
                found.append(_passed(task, *ahead))
                break
    return judged("G13", found, checked=checked)


def _plain(history: History) -> Iterator[TaskOps]:
    """Yield acknowledged tasks without a delay or a key whose first delivery a client had.

    If a claim's caller is gone, or a stopping node refused it, the task returns to the end of the
    queue and the attempt does not count. The token of the next delivery shows that it was not the
    first.
    """
    for task in history.tasks.values():
        first = task.first_claim
        at_once = task.acknowledged is not None and not (task.args.delay_ms or task.args.key)
        if at_once and first is not None and first.out.token == 1:
            yield task


def _first(task: TaskOps) -> Op:
    first = task.first_claim
    assert first is not None
    return first


def _overtaken(task: TaskOps, ahead: TaskOps) -> Violation:
    return Violation(
        text=f"{ahead.id} overtook {task.id}, which was created before it",
        events=(
            *_created(task),
            *_created(ahead),
            *_first(ahead).events,
            *_first(task).events,
        ),
        task=task.id,
    )


def _passed(task: TaskOps, claim: Op, lower: TaskOps) -> Violation:
    return Violation(
        text=f"{lower.id} of priority {lower.args.priority} was delivered while {task.id}"
        f" of priority {task.args.priority} waited",
        events=(*_created(task), *claim.events, *_first(task).events),
        task=task.id,
    )


def _created(task: TaskOps) -> tuple[int, ...]:
    acknowledged = task.acknowledged
    return acknowledged.events if acknowledged else ()


class _Spans:
    """Deliveries by the earliest instant of each, to find one that lies within a span."""

    def __init__(self, deliveries: Sequence[tuple[int, Op, TaskOps]]) -> None:
        ranked = sorted(deliveries, key=lambda each: each[0])
        self._after_ns = [after_ns for after_ns, _, _ in ranked]
        # The i-th is the earliest end among the i-th delivery and all that began later.
        self._earliest: list[tuple[Op, TaskOps]] = []
        for _, claim, task in reversed(ranked):
            if self._earliest and self._earliest[-1][0].ret_ns <= claim.ret_ns:
                self._earliest.append(self._earliest[-1])
            else:
                self._earliest.append((claim, task))
        self._earliest.reverse()

    def inside(self, begun_ns: int, ended_ns: int) -> tuple[Op, TaskOps] | None:
        """Return a delivery that began after the first instant and had ended by the second."""
        later = bisect.bisect_right(self._after_ns, begun_ns)
        if later == len(self._earliest):
            return None
        found = self._earliest[later]
        return found if found[0].ret_ns < ended_ns else None
