"""Graphing: new tasks that depend on others, and what time does along their edges."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from codeq_cluster.core.changes import Change, Decision, ItemChange, TaskChange
from codeq_cluster.core.creating import create, made, refusal_of_new
from codeq_cluster.core.dependencies import (
    EDGES_MAX,
    WALKED_MAX,
    CreateDependent,
    CreateGraph,
    Dependencies,
    GraphKey,
    Node,
    Walk,
)
from codeq_cluster.core.depending import Dependents
from codeq_cluster.core.outcomes import GraphStands, Rejected, Rejection
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Task
from codeq_cluster.core.view import View


def create_dependent(view: View, operation: CreateDependent, rules: LifetimeRules) -> Decision:
    """Make a task that waits for others, or answer with the one that an earlier create made."""
    node = operation.node
    decision = create(view, node.create, rules)
    if not decision.changes:
        return decision
    refused = _refused_need(view, node, rules, besides=())
    if refused is not None:
        return Decision(refused)
    dependents = Dependents(view, rules, decision.changes)
    dependents.begin(node.create.id, node.needs)
    return Decision(decision.outcome, tuple(dependents.changes()))


def create_graph(view: View, operation: CreateGraph, rules: LifetimeRules) -> Decision:
    """Make the tasks of a graph, all or none; a repetition gets those that are there."""
    key = operation.key
    found = view.item(ItemKind.GRAPH_KEY, operation.tenant, key) if key else None
    if isinstance(found, GraphKey):
        if found.digest != operation.digest:
            return Decision(Rejected(Rejection.IDEMPOTENCY_CONFLICT))
        return Decision(GraphStands(_standing(view, found.tasks)))
    ids = [node.create.id for node in operation.nodes]
    if view.task(ids[0]) is not None:
        return Decision(GraphStands(_standing(view, ids)))
    for begun, node in enumerate(operation.nodes):
        refused = refusal_of_new(view, node.create, rules, begun=begun)
        refused = refused or _refused_need(view, node, rules, besides=ids)
        if refused is not None:
            return Decision(refused)
    changes: list[TaskChange] = []
    for node in operation.nodes:
        change = made(view, node.create, rules)
        assert change is not None, "a part of a graph is there"
        changes.append(change)
    dependents = Dependents(view, rules, changes)
    for node in operation.nodes:
        if node.needs:
            dependents.begin(node.create.id, node.needs)
    tasks = [dependents.task(task_id) for task_id in ids]
    all_: list[Change] = list(dependents.changes())
    if key:
        row = GraphKey(
            tenant=operation.tenant,
            id=key,
            digest=operation.digest,
            tasks=tuple(ids),
            expires_ms=view.now_ms + rules.key_retention_ms,
        )
        all_.append(ItemChange(before=None, after=row))
    return Decision(GraphStands(tuple(filter(None, tasks)), made=True), tuple(all_))


def elapsed(
    view: View,
    item: Walk | Dependencies,
    rules: LifetimeRules,
    changes: Iterable[Change],
    *,
    most: int,
) -> Iterator[Change]:
    """Yield a decision's changes with the next step of a walk, or with a dependent's questions.

    Args:
        view: The shard's state.
        item: Whose instant has come; the decision changes its task in no other way.
        rules: With the number of shards.
        changes: What the decision changes so far.
        most: How many dependents a step may tell.
    """
    dependents = Dependents(view, rules, changes)
    if isinstance(item, Walk):
        dependents.walk_on(item, min(most, WALKED_MAX))
    else:
        dependents.ask_again(item)
    yield from dependents.changes()


def _refused_need(
    view: View, node: Node, rules: LifetimeRules, *, besides: Collection[str]
) -> Rejected | None:
    """Return why a task cannot wait for one of this shard; the others were asked before."""
    home = shard_of(node.create.id, rules.shards)
    for need in node.needs:
        if need.parent in besides or shard_of(need.parent, rules.shards) != home:
            continue
        parent = view.task(need.parent)
        if parent is None or parent.tenant != node.create.tenant:
            return Rejected(Rejection.UNKNOWN_DEPENDENCY, need.name)
        if parent.more is not None and parent.more.dependents >= EDGES_MAX:
            return Rejected(Rejection.TOO_MANY, "dependents")
    return None


def _standing(view: View, ids: Iterable[str]) -> tuple[Task, ...]:
    return tuple(task for each in ids if (task := view.task(each)) is not None)


RULES: dict[type, Callable[[View, Any, LifetimeRules], Decision]] = {
    CreateDependent: create_dependent,
    CreateGraph: create_graph,
}
