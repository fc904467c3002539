"""Bulk: a job acts once on each task of its selection that was there before it (G39)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from jepsen_lite.checker.verdict import Verdict, Violation, judged, unknown
from jepsen_lite.history import F, Part
from jepsen_lite.operations import History, Op


def exactly_the_selection(history: History) -> Verdict:
    """G39: at rest, exactly the tasks of a selection that were there before the job are cancelled.

    A create that was answered before the first request for the job counts as before it; one that
    was sent after the job's answer counts as after it; any other may be either. What the job says
    that it has selected and changed is what is there.
    """
    lists = {op.args.command: op for op in history.by_f[F.PARTS] if op.ok and op.args.final}
    finals = [op for op in history.by_f[F.SWEPT] if op.ok and op.args.final]
    if not finals:
        return unknown("G39", "nobody read the bulk jobs at the end")
    sown, asked = _by_field(history.by_f[F.SOW]), _by_field(history.by_f[F.SWEEP])
    found: list[Violation] = []
    checked = 0
    for final in finals:
        field = final.args.command
        listed = lists.get(field)
        if listed is None:
            continue
        checked += len(sown[field])
        for text in _wrong(final, asked[field], sown[field], listed.out.parts):
            events = (*final.events, *listed.events)
            found.append(Violation(text=f"the job of {field} {text}", events=events))
    return judged("G39", found, checked=checked)


def _wrong(final: Op, asked: list[Op], sown: list[Op], parts: tuple[Part, ...]) -> Iterator[str]:
    """Yield what is wrong with a job, or with the tasks of its field."""
    swept = final.out.swept
    if swept is None:
        yield "was answered, and is not there"
        return
    if swept.status != "DONE" or swept.parts != swept.shards:
        yield f"is {swept.status} on {swept.parts} of {swept.shards} shards at rest"
    by_content = {each.content: each for each in parts}
    for op in sown:
        task = by_content.get(op.args.content)
        if task is not None:
            yield from _misjudged(task, op, asked)
        elif op.ok:
            yield f"has lost {op.args.content}"
    touched = sum(map(_is_cancelled, parts))
    if (touched, touched) != (swept.selected, swept.changed):
        yield f"has {touched} tasks, selected {swept.selected}, and changed {swept.changed}"
    for content, number in Counter(each.content for each in parts).items():
        if number > 1:
            yield f"has {number} tasks of {content}"


def _misjudged(task: Part, sown: Op, asked: list[Op]) -> Iterator[str]:
    """Yield what a job has wrongly done to a task, or not done."""
    begun_ns = min(op.call_ns for op in asked if op.possible)
    answered_ns = min(op.ret_ns for op in asked if op.ok)
    is_meant = asked[0].args.tag in ("", sown.args.tag)
    if not _is_cancelled(task):
        if is_meant and sown.ok and sown.ret_ns < begun_ns:
            yield f"has passed over {task.task}, which was there before it"
    elif not is_meant:
        yield f"has cancelled {task.task}, which it is not about"
    elif sown.call_ns > answered_ns:
        yield f"has cancelled {task.task}, which was created after it"


def _is_cancelled(task: Part) -> bool:
    return task.error == "CANCELLED"


def _by_field(ops: list[Op]) -> dict[str, list[Op]]:
    found: dict[str, list[Op]] = defaultdict(list)
    for op in ops:
        found[op.args.command].append(op)
    return found
