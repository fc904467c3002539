"""Delays: no task is delivered before it is due (the safety half of G11)."""

from __future__ import annotations

from jepsen_lite.checker.verdict import Verdict, Violation, judged
from jepsen_lite.history import F
from jepsen_lite.operations import MS, History, Op


def not_before_due(history: History) -> Verdict:
    """G11: no delivery before the delay of a create or a nack has passed."""
    found = []
    checked = 0
    for task in history.tasks.values():
        waits = []
        first = task.claims[0] if task.claims else None
        if first is not None and task.creates and task.args.delay_ms:
            waits.append((task.created_call_ns, task.args.delay_ms, first, task.creates[0]))
        for op in task.releases:
            after = next((c for c in task.claims if c.out.token > op.args.token), None)
            # A nack that ended the task delays nothing: an operator may requeue it at once.
            delays = op.ok and op.f is F.NACK and op.args.delay_ms and not op.out.dead
            if delays and op.args.token and after:
                waits.append((op.call_ns, op.args.delay_ms, after, op))
        for begun_ns, delay_ms, claim, cause in waits:
            checked += 1
            due_ns = begun_ns + delay_ms * MS - history.clock_ns
            if claim.ret_ns < due_ns:
                found.append(_early(task.id, due_ns, claim, cause))
    return judged("G11", found, checked=checked)


def _early(task_id: str, due_ns: int, claim: Op, cause: Op) -> Violation:
    early_ms = (due_ns - claim.ret_ns) // MS
    return Violation(
        text=f"{task_id} was delivered at least {early_ms} ms before it was due",
        events=(*cause.events, *claim.events),
        task=task_id,
    )
