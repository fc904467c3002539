"""Many creates in one decision: groups and graphs are bound as creates are."""

from __future__ import annotations

import pytest

from codeq_cluster.core.budget import Budget
from codeq_cluster.core.decide import decide
from codeq_cluster.core.dependencies import CreateGraph, Node
from codeq_cluster.core.groups import CreateGroup, Group
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.outcomes import GraphStands, GroupStands, Rejected, Rejection
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.stored_item import ItemKind
from tests.fakes.dict_view import DictView

THEN = Create(command="report", payload='"xxxxxxx"')
TOO_MANY = Rejected(Rejection.TOO_MANY, "2")


def group(*queues: str, then: Create | None = None) -> CreateGroup:
    tasks = tuple(Create(command=queue, payload="1") for queue in queues)
    return CreateGroup(tenant="acme", id="g", digest="", tasks=tasks, then=then, seal=True)


def graph(*queues: str) -> CreateGraph:
    nodes = tuple(
        Node(Create(id=f"t{number}", tenant="acme", command=queue, payload="1"))
        for number, queue in enumerate(queues)
    )
    return CreateGraph(tenant="acme", shard=0, nodes=nodes)


@pytest.mark.parametrize("asked", [group("a", "b", "c"), graph("a", "b", "c")])
def test_the_queues_that_one_decision_begins_count_together(
    asked: CreateGroup | CreateGraph,
) -> None:
    """None of them is in the view yet."""
    rules = LifetimeRules(queues_max=2)

    assert TOO_MANY == decide(DictView(now_ms=1), asked, rules).outcome


@pytest.mark.parametrize("asked", [group("a", "B", "b", "A"), graph("a", "B", "b", "A")])
def test_a_queue_that_one_decision_begins_counts_once(asked: CreateGroup | CreateGraph) -> None:
    """Its name is the same in any letters."""
    outcome = decide(DictView(now_ms=1), asked, LifetimeRules(queues_max=2)).outcome

    assert isinstance(outcome, GroupStands | GraphStands)


@pytest.mark.parametrize(
    ("rules", "limit"),
    [
        (LifetimeRules(budget=Budget(waiting_max=2)), "readyTasks"),
        (LifetimeRules(budget=Budget(bytes_max=8)), "storedBytes"),
    ],
)
def test_a_completion_task_needs_room_in_the_budget(rules: LifetimeRules, limit: str) -> None:
    """It counts beside the members, before the group begins: later nothing refuses it."""
    view = DictView(now_ms=1)
    refused = decide(view, group("a", "a", then=THEN), rules).outcome

    assert Rejected(Rejection.BUDGET_EXCEEDED, limit) == refused
    assert isinstance(decide(view, group("a", "a"), rules).outcome, GroupStands)


def test_the_queue_of_a_completion_task_counts() -> None:
    """The queues of the members are begun then."""
    rules = LifetimeRules(queues_max=2)

    assert TOO_MANY == decide(DictView(now_ms=1), group("a", "b", then=THEN), rules).outcome


def test_an_ended_group_does_not_keep_the_payload_of_its_completion_task() -> None:
    """The task has it; the group shows the command."""
    view = DictView(now_ms=1)
    view.advance(decide(view, group(then=THEN), LifetimeRules()).changes)
    ended = view.items[ItemKind.GROUP, "acme", "g"]
    [task] = view.tasks.values()

    assert isinstance(ended, Group)
    assert ended.then is not None
    assert (THEN.command, "null", "") == (ended.then.command, ended.then.payload, ended.fault)
    assert THEN.payload == view.payload(task.id)
