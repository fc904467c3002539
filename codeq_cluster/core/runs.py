"""Runs: neighbouring operations that are decided from one view.

Each decision costs its queue's counters, which are read, added up and written. A batch route sends
a hundred creates or results at once, or a thousand heartbeats. Where none reads what another one
changes, the view need not advance between them, and the counters of a queue are added up once for
all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from codeq_cluster.core.checkpoint import Report
from codeq_cluster.core.new_task import Create, CreateTagged
from codeq_cluster.core.operations import Heartbeat, Operation, Submit
from codeq_cluster.core.rules import LifetimeRules

# A run's rows are one entry at least, and an entry should not be larger than a megabyte.
CHARS_MAX = 2**18

_Touched = set[str | tuple[str, str]]


def runs(operations: Sequence[Operation], rules: LifetimeRules) -> Iterator[Sequence[Operation]]:
    """Yield the operations in order, in runs that are as long as possible.

    A create reads its task, the task that has its idempotency key and, under a budget, what the
    tenant uses. A submit reads its task, and the delivery and the sweeps that are named after it.
    A heartbeat reads its task, its checkpoint and its log.
    So creates are independent if their tasks and keys differ and no budget binds their tenants, and
    submits and heartbeats if their tasks differ; submits of tasks with keys are parted when they
    are decided.
    A create after a submit may have the key of the submit's task.
    Any other operation is a run of its own.
    """
    run: list[Operation] = []
    touched: _Touched = set()
    chars = 0
    for operation in operations:
        touches = _touches(operation, rules)
        size = _chars(operation)
        if run and not (
            type(operation) is type(run[0])
            and touches
            and touched
            and touched.isdisjoint(touches)
            and chars + size <= CHARS_MAX
        ):
            yield run
            run, touched, chars = [], set(), 0
        run.append(operation)
        touched |= touches
        chars += size
    if run:
        yield run


def _touches(operation: Operation, rules: LifetimeRules) -> _Touched:
    """Return the task and the key that an operation reads and changes; nothing if it reads more."""
    match operation:
        case CreateTagged():
            return _touches(operation.create, rules)
        case Submit() | Heartbeat() | Report():
            return {operation.id}
        case Create() if not rules.budget_of(operation.tenant).binds_creates:
            key = operation.idempotency_key
            return {operation.id, (operation.tenant, key)} if key else {operation.id}
        case _:
            return set()


def _chars(operation: Operation) -> int:
    match operation:
        case CreateTagged():
            return _chars(operation.create)
        case Submit():
            return len(operation.body)
        case Report():
            return len(operation.checkpoint) + sum(map(len, operation.log))
        case Create():
            return len(operation.payload)
        case _:
            return 0
