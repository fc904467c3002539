"""Graces: a cancel with a grace is heard, leaves time, and ends its task for good (G36)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from jepsen_lite.checker.leases import NOT_OURS
from jepsen_lite.checker.verdict import Verdict, Violation, judged, unknown
from jepsen_lite.history import F, Part
from jepsen_lite.operations import MS, History, Op

CANCELLED = "CANCELLED"
_OF_A_LEASE = (F.BEAT, F.RETURN, F.HAND_IN)


def heard_and_ended(history: History) -> Verdict:
    """G36: each later heartbeat hears of a cancel, nothing is accepted after the end it brings."""
    last = [op for op in history.by_f[F.LAST] if op.ok and op.args.final]
    if not last:
        return unknown("G36", "nobody listed the tasks with a grace at the end")
    ends = {part.task: part for part in last[-1].out.parts}
    said: dict[str, list[Op]] = defaultdict(list)
    for f in (F.ACCEPT, *_OF_A_LEASE):
        for op in history.by_f[f]:
            said[op.args.task or op.out.task].append(op)
    asked: dict[str, list[Op]] = defaultdict(list)
    for op in history.by_f[F.STOP]:
        said[op.args.task].append(op)
        if op.ok:
            asked[op.args.task].append(op)
    found: list[Violation] = []
    checked = 0
    for task, stops in asked.items():
        first = min(stops, key=lambda op: op.ret_ns)
        later = [op for op in said[task] if op.ok and op.call_ns > first.ret_ns]
        checked += 1 + len(later)
        found += _told(task, first, later)
        found += _over(task, later)
        found += _within(history, task, said[task])
        found += _ended(task, first, said[task], ends.get(task), later)
    return judged("G36", found, checked=checked)


def _told(task: str, stop: Op, later: Sequence[Op]) -> Iterator[Violation]:
    """Yield deliveries after a cancel, heartbeats that did not tell of it, and deadlines that move.

    A second cancel may hurry, and gives no more time.
    """
    beats = [op for op in later if op.f is F.BEAT]
    for op in later:
        if op.f is F.ACCEPT:
            text = f"{task} was handed out after its cancel was answered"
            yield Violation(text=text, events=(*stop.events, *op.events), task=task)
    for op in beats:
        if not op.out.until_ms:
            text = f"a heartbeat of {task} did not tell of its cancel"
            yield Violation(text=text, events=(*stop.events, *op.events), task=task)
        for before in beats:
            if before.ret_ns < op.call_ns and 0 < before.out.until_ms < op.out.until_ms:
                text = f"the deadline of {task} has moved from {before.out.until_ms}"
                text += f" to {op.out.until_ms}"
                yield Violation(text=text, events=(*before.events, *op.events), task=task)


def _over(task: str, later: Sequence[Op]) -> Iterator[Violation]:
    """Yield what was accepted after a task had been given back, which ended it."""
    back = [op for op in later if op.f is F.RETURN]
    if not back:
        return
    end = min(back, key=lambda op: op.ret_ns)
    for op in later:
        if op.f in _OF_A_LEASE and op.call_ns > end.ret_ns:
            text = f"{op.f} of {task} was accepted after it was given back, cancelled"
            yield Violation(text=text, events=(*end.events, *op.events), task=task)


def _within(history: History, task: str, said: Sequence[Op]) -> Iterator[Violation]:
    """Yield results that were refused although neither the lease nor the grace was over."""
    stops = [op for op in said if op.f is F.STOP and op.possible]
    for result in said:
        if result.f is not F.HAND_IN or result.possible or result.out.code not in NOT_OURS:
            continue
        of_lease = [op for op in said if op.possible and op.args.token == result.args.token]
        held = [op for op in said if op.f is F.ACCEPT and op.out.token == result.args.token]
        beats = [op for op in of_lease if op.f is F.BEAT]
        ends = [op for op in of_lease if op.f in (F.RETURN, F.HAND_IN)]
        if not held or any(op.call_ns < result.ret_ns for op in ends):
            continue
        # Of concurrent heartbeats, the one with the shortest extension may take effect last.
        lease_ms = min(op.args.lease_ms for op in (*held, *beats))
        kept_ns = max(op.call_ns for op in (*held, *(beat for beat in beats if beat.ok)))
        over_ns = [kept_ns + lease_ms * MS, *(op.call_ns + op.args.delay_ms * MS for op in stops)]
        if result.ret_ns + history.clock_ns < min(over_ns):
            text = f"the result of {task} was refused within its lease and its grace"
            yield Violation(text=text, events=(*held[0].events, *result.events), task=task)


def _ended(
    task: str, stop: Op, said: Sequence[Op], part: Part | None, later: Sequence[Op]
) -> Iterator[Violation]:
    """Yield a task that has not ended as its worker's last word says."""
    results = [op for op in said if op.f is F.HAND_IN and op.possible]
    completed = any(op.ok for op in results)
    given_back = any(op.f is F.RETURN for op in later)
    how = "is not there" if part is None else f"is {part.status} {part.error}".rstrip()
    is_cancelled = part is not None and not part.dead and part.error == CANCELLED
    is_completed = part is not None and part.status == "COMPLETED"
    if completed:
        right = is_completed
    elif given_back or not results:
        right = is_cancelled
    else:
        right = is_cancelled or is_completed
    if not right:
        text = f"{task} was cancelled, and {how} at the end"
        events = (*stop.events, *(n for op in results if op.ok for n in op.events))
        yield Violation(text=text, events=events, task=task)
