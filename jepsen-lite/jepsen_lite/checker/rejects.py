"""Rejects: a rejected task is a dead letter at once (G41), and a log has its lines (G40)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import inf

from jepsen_lite.checker.verdict import Verdict, Violation, judged, unknown
from jepsen_lite.history import F, Part
from jepsen_lite.operations import History, Op
from jepsen_lite.rejects import LINES_MAX, REJECT_COMMAND

_OF_A_LEASE = (F.BEAT, F.HAND_IN, F.REJECT)


def lines_are_kept(history: History) -> Verdict:
    """G40: a task's log has each answered line, in their order, and no other one."""
    beats: dict[str, list[Op]] = defaultdict(list)
    for op in history.by_f[F.BEAT]:
        if op.args.content:
            beats[op.args.task].append(op)
    found: list[Violation] = []
    checked = 0
    for look in history.by_f[F.LOG]:
        if look.ok and look.args.final:
            said = beats[look.args.task]
            checked += len(said)
            found += _lines(look, said)
    return judged("G40", found, checked=checked)


def dead_at_once(history: History) -> Verdict:
    """G41: a rejected task is a dead letter, once, and is handed out only after a requeue."""
    last = [
        op
        for op in history.by_f[F.LAST]
        if op.ok and op.args.final and op.args.command == REJECT_COMMAND
    ]
    if not last:
        return unknown("G41", "nobody listed the tasks that may be rejected at the end")
    parts: dict[str, list[Part]] = defaultdict(list)
    for part in last[-1].out.parts:
        parts[part.task].append(part)
    of_task: dict[str, list[Op]] = defaultdict(list)
    for op in history.by_f[F.ACCEPT]:
        of_task[op.out.task].append(op)
    for f in (F.REVIVE, *_OF_A_LEASE):
        for op in history.by_f[f]:
            if op.args.task in of_task:  # Those with unique keys are rejected, too.
                of_task[op.args.task].append(op)
    found: list[Violation] = []
    for task, ops in of_task.items():
        found += _over(task, ops)
        found += _at_rest(task, ops, parts[task], last[-1])
    checked = sum(op.ok for op in history.by_f[F.REJECT])
    return judged("G41", found, checked=checked)


def _lines(look: Op, said: Sequence[Op]) -> Iterator[Violation]:
    """Yield lines that are lost, in the wrong order, refused or of nobody.

    A heartbeat that a node repeats may have its line twice.
    """
    task, lines = look.args.task, look.out.lines
    known = {op.args.content for op in said if op.possible}
    for line in set(lines) - known:
        text = f"the log of {task} has {line!r}, which nobody may have written"
        yield Violation(text=text, events=look.events, task=task)
    if len(lines) == LINES_MAX:
        return  # Earlier ones may be gone.
    first = {line: n for n, line in reversed([*enumerate(lines)])}
    latest = {line: n for n, line in enumerate(lines)}
    answered = [op for op in said if op.ok]
    for op in answered:
        if op.args.content not in first:
            text = f"the log of {task} has lost {op.args.content!r}"
            yield Violation(text=text, events=(*op.events, *look.events), task=task)
            continue
        for later in answered:
            after = latest.get(later.args.content, len(lines))
            if op.ret_ns < later.call_ns and first[op.args.content] > after:
                text = f"the log of {task} has {later.args.content!r} before an earlier line"
                yield Violation(text=text, events=(*op.events, *later.events), task=task)


def _over(task: str, ops: Sequence[Op]) -> Iterator[Violation]:
    """Yield what was accepted or handed out after a reject was answered."""
    for reject in ops:
        if reject.f is not F.REJECT or not reject.ok:
            continue
        for op in ops:
            if not op.ok or op.call_ns < reject.ret_ns:
                continue
            if op.f in _OF_A_LEASE and op.args.token == reject.args.token:
                text = f"{op.f} of {task} was accepted after it was rejected"
                yield Violation(text=text, events=(*reject.events, *op.events), task=task)
            if op.f is F.ACCEPT and not _revived(ops, reject, before_ns=op.ret_ns):
                text = f"{task} was handed out after it was rejected, and nobody requeued it"
                yield Violation(text=text, events=(*reject.events, *op.events), task=task)


def _revived(ops: Sequence[Op], reject: Op, *, before_ns: float) -> bool:
    """Return whether a task may have been requeued after a reject and before an instant."""
    return any(
        op.f is F.REVIVE and op.possible and op.ret_ns > reject.call_ns and op.call_ns < before_ns
        for op in ops
    )


def _at_rest(task: str, ops: Sequence[Op], there: Sequence[Part], look: Op) -> Iterator[Violation]:
    """Yield a task that is not what its last reject says, or that is there twice."""
    rejects = [op for op in ops if op.f is F.REJECT and op.possible]
    if len(there) > 1:
        text = f"{task} is there {len(there)} times"
        yield Violation(text=text, events=look.events, task=task)
    if any(each.dead for each in there) and not rejects:
        text = f"{task} is a dead letter, and nobody rejected it"
        yield Violation(text=text, events=look.events, task=task)
    last = max((op for op in rejects if op.ok), key=lambda op: op.ret_ns, default=None)
    if last is None or _revived(ops, last, before_ns=inf):
        return
    if not any(each.dead and each.error == last.args.content for each in there):
        how = ", ".join(f"{each.status} {each.error}".rstrip() for each in there) or "not there"
        text = f"{task} was rejected, and is {how} at the end"
        yield Violation(text=text, events=(*last.events, *look.events), task=task)
