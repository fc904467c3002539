"""Ended tasks: only retention and operators change a task that has ended."""

from __future__ import annotations

import pytest

from codeq_cluster.core.decide import decide
from codeq_cluster.core.holds import Nack
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import (
    Abandon,
    Advance,
    Cancel,
    Claim,
    Heartbeat,
    Operation,
    Submit,
)
from codeq_cluster.core.outcomes import Advanced, Claimed, Outcome, Rejected, Rejection
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.task import State, Task
from tests.fakes.dict_view import DictView

DAY_MS = 24 * 3_600_000
YEAR_MS = 365 * DAY_MS
RULES = LifetimeRules()

CREATE = Create(id="t", tenant="acme", command="render", payload='{"n": 1}', max_attempts=1)
CLAIM = Claim(
    request="c", tenant="acme", worker="ann", commands=("render",), count=1, lease_ms=60_000
)
COMPLETE = Submit(
    request="s", id="t", tenant="acme", worker="ann", status="COMPLETED", body='{"n": 2}'
)
FAIL = Submit(request="s", id="t", tenant="acme", worker="ann", status="FAILED", error="broken")
NACK = Nack(request="n", id="t", tenant="acme", worker="ann", reason="busy")

ENDS: dict[State, Operation] = {State.DONE: COMPLETE, State.FAILED: FAIL, State.DEAD: NACK}


def _ask(view: DictView, operation: Operation) -> Outcome:
    decision = decide(view, operation, RULES)
    view.advance(decision.changes)
    return decision.outcome


def _wait(view: DictView, span_ms: int) -> None:
    view.now_ms += span_ms
    _ask(view, Advance(count=100))


def _task(view: DictView) -> Task:
    task = view.task("t")
    assert task is not None
    return task


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("token", [0, 1])
def test_a_worker_that_comes_late_changes_nothing(end: State, token: int) -> None:
    """The holder of the last lease changes nothing either, with or without its token."""
    view = DictView(now_ms=1_000_000)
    for operation in (CREATE, CLAIM, ENDS[end]):
        _ask(view, operation)
    ended, result = _task(view), view.result("t")
    assert ended.state is end
    held = {"id": "t", "tenant": "acme", "worker": "ann", "token": token}
    late: tuple[Operation, ...] = (
        Heartbeat(**held, extend_ms=60_000),  # type: ignore[arg-type]
        Abandon(**held, request="late-1"),  # type: ignore[arg-type]
        Nack(**held, request="late-2", delay_ms=5),  # type: ignore[arg-type]
        Submit(**held, request="late-3", status="COMPLETED", body='"other"'),  # type: ignore[arg-type]
    )
    outcomes = [_ask(view, operation) for operation in late]
    cancelled = _ask(view, Cancel(request="late-4", id="t", tenant="acme"))

    assert [Rejected(Rejection.NOT_IN_PROGRESS)] * 4 == outcomes
    assert Rejected(Rejection.ALREADY_TERMINAL) == cancelled
    assert (ended, result) == (_task(view), view.result("t"))


@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_a_lease_that_is_over_means_nothing(end: State) -> None:
    """The task ended before its lease; when the lease's instant comes, nothing happens."""
    view = DictView(now_ms=1_000_000)
    for operation in (CREATE, CLAIM, ENDS[end]):
        _ask(view, operation)
    ended = _task(view)
    view.now_ms += CLAIM.lease_ms

    assert Advanced(0) == _ask(view, Advance(count=100))
    assert ended == _task(view)


def test_work_that_waits_for_a_year_is_still_there() -> None:
    """Retention counts only from the end, for delayed tasks and for ready ones without a worker."""
    view = DictView(now_ms=1_000_000)
    _ask(view, Create(id="t", tenant="acme", command="render", payload="{}", delay_ms=YEAR_MS))
    _wait(view, YEAR_MS - 1)
    assert _task(view).state is State.DELAYED
    _wait(view, 1)
    assert _task(view).state is State.READY
    _wait(view, YEAR_MS)

    claimed = _ask(view, CLAIM)

    assert Claimed((_task(view),)) == claimed
    assert "{}" == view.payload("t")


def test_work_that_takes_a_month_is_still_there() -> None:
    """A worker that sends heartbeats keeps its task, and its result is accepted."""
    view = DictView(now_ms=1_000_000)
    _ask(view, CREATE)
    _ask(view, CLAIM)
    for _ in range(60):
        _ask(view, Heartbeat(id="t", tenant="acme", worker="ann", extend_ms=DAY_MS // 2 + 1))
        _wait(view, DAY_MS // 2)
    _ask(view, COMPLETE)

    assert _task(view).state is State.DONE
    assert 1 == _task(view).attempts


def test_a_dead_letter_is_whole_until_its_retention_ends() -> None:
    """Payload and result stay with it and go with it."""
    view = DictView(now_ms=1_000_000)
    for operation in (CREATE, CLAIM, NACK):
        _ask(view, operation)
    _wait(view, RULES.dlq_retention_ms - 1)
    result = view.result("t")

    assert RULES.dlq_retention_ms > RULES.retention_ms
    assert '{"n": 1}' == view.payload("t")
    assert result is not None
    assert ("FAILED", "busy") == (result.status, result.error)
    _wait(view, 1)
    assert view.task("t") is None
    assert view.result("t") is None
