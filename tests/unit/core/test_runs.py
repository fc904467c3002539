"""Runs: which neighbouring operations may be decided from one view."""

from __future__ import annotations

from itertools import chain

from codeq_cluster.core.budget import Budget
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import Cancel, Heartbeat, Operation, Submit
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.runs import CHARS_MAX, runs

RULES = LifetimeRules()


def _create(task_id: str, *, key: str = "", tenant: str = "", payload: str = "{}") -> Create:
    return Create(id=task_id, tenant=tenant, command="c", payload=payload, idempotency_key=key)


def _submit(task_id: str, *, body: str = "{}") -> Submit:
    return Submit(request=task_id, id=task_id, tenant="", worker="w", status="COMPLETED", body=body)


def _lengths(*operations: Operation, rules: LifetimeRules = RULES) -> list[int]:
    found = list(runs(operations, rules))

    assert list(operations) == list(chain.from_iterable(found))
    return [len(run) for run in found]


def _beat(task_id: str) -> Heartbeat:
    return Heartbeat(id=task_id, tenant="", worker="w", extend_ms=1, token=1)


def test_creates_submits_or_heartbeats_of_different_tasks_are_one_run() -> None:
    """None of them reads what another one changes."""
    assert [3] == _lengths(_create("a"), _create("b"), _create("c", key="k"))
    assert [2] == _lengths(_submit("a"), _submit("b"))
    assert [3] == _lengths(_beat("a"), _beat("b"), _beat("c"))
    assert [] == _lengths()


def test_creates_and_submits_are_runs_apart() -> None:
    """A create answers with the task that has its key, which a submit may just have ended."""
    assert [1, 1, 2] == _lengths(_create("a"), _submit("b"), _create("c", key="k"), _create("d"))


def test_a_second_operation_on_a_task_begins_a_run() -> None:
    """A retried create finds its task, and a second result is refused."""
    assert [2, 1] == _lengths(_create("a"), _create("b"), _create("a"))
    assert [1, 2] == _lengths(_submit("a"), _submit("a"), _submit("b"))
    assert [1, 2] == _lengths(_beat("a"), _beat("a"), _beat("b"))


def test_a_second_create_with_a_key_begins_a_run() -> None:
    """It must find the first one's task; another tenant's key of that name is another key."""
    assert [1, 1] == _lengths(_create("a", key="k"), _create("b", key="k"))
    assert [2] == _lengths(_create("a", key="k"), _create("b", key="k", tenant="t"))


def test_other_operations_are_runs_of_their_own() -> None:
    """A cancel may end a task that is just being created."""
    cancel = Cancel(request="r", id="b", tenant="")

    assert [1, 1, 2, 1] == _lengths(_beat("x"), cancel, _create("a"), _create("b"), cancel)


def test_creates_of_a_tenant_with_a_budget_are_decided_one_by_one() -> None:
    """Each one must see what the one before it uses; other tenants' need not."""
    creates = [_create("a", tenant="t"), _create("b", tenant="t"), _create("c"), _create("d")]
    for budget in (Budget(waiting_max=2), Budget(bytes_max=9)):
        assert [1, 1, 2] == _lengths(*creates, rules=LifetimeRules(budgets={"t": budget}))
    leases = LifetimeRules(budgets={"t": Budget(leased_max=1)})

    assert [4] == _lengths(*creates, rules=leases)


def test_a_run_is_bounded() -> None:
    """A single operation may be larger than a run."""
    text = "x" * (CHARS_MAX // 2)

    assert [2, 1] == _lengths(*(_create(each, payload=text) for each in "abc"))
    assert [2, 1] == _lengths(*(_submit(each, body=text) for each in "abc"))
    assert [1, 1] == _lengths(_create("a", payload=3 * text), _create("b"))
