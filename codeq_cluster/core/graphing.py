"""Graphing: new tasks that depend on others, and what time does along their edges."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from codeq_cluster.core.changes import Change, Decision, ItemChange
from codeq_cluster.core.creating import create, made, on_its_way, refusal_of_new
from codeq_cluster.core.dependencies import (
    EDGES_MAX,
    WALKED_BYTES_MAX,
    WALKED_MAX,
    CreateDependent,
    CreateGraph,
    Dependencies,
    GraphKey,
    Node,
    Walk,
)
from codeq_cluster.core.depending import Dependents
from codeq_cluster.core.limit import pin_said
from codeq_cluster.core.outcomes import GraphStands, Rejected, Rejection
from codeq_cluster.core.placing import is_misplaced
from codeq_cluster.core.relays import Relay, RelayedTask
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.sending import NODE_PLACE, Cause, sent
from codeq_cluster.core.sharding import shard_of, with_shard
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import More, Task
from codeq_cluster.core.view import View


def create_dependent(view: View, operation: CreateDependent, rules: LifetimeRules) -> Decision:
    """Make a task that waits for others, or answer with the one that an earlier create made."""
    node = operation.node
    decision = create(view, node.create, rules)
    if not decision.changes:
        return decision
    shard = shard_of(node.create.id, rules.shards)
    refused = _refused_need(view, node, shard, rules, besides=())
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
        return Decision(_standing(view, operation, found.tasks, rules))
    ids = tuple(node.create.id for node in operation.nodes)
    here = [node for node in operation.nodes if _is_of(operation.shard, node.create.id, rules)]
    assert here or key, "nothing would tell a retry"
    if here and view.task(here[0].create.id) is not None:
        return Decision(_standing(view, operation, ids, rules))
    misplaced = {
        node.create.command.lower(): None
        for node in operation.nodes
        if is_misplaced(node.create, rules.shards, view.pins)
    }
    if misplaced:
        said = (pin_said(each, view.pins[operation.tenant, each]) for each in misplaced)
        return Decision(Rejected(Rejection.MISPLACED, ",".join(said)))
    queues: set[str] = set()
    besides = set(ids)
    for begun, node in enumerate(operation.nodes):
        refused = refusal_of_new(view, node.create, rules, begun=begun, queues=queues)
        refused = refused or _refused_need(view, node, operation.shard, rules, besides=besides)
        if refused is not None:
            return Decision(refused)
    away = [node for node in operation.nodes if node not in here]
    dependents = _begun(view, operation.shard, here, away, rules)
    sent_on = {each.create.id: _on_its_way(view, _effect(each)) for each in away}
    tasks = [sent_on.get(task_id) or dependents.task(task_id) for task_id in ids]
    all_: list[Change] = list(dependents.changes())
    if key:
        row = GraphKey(
            tenant=operation.tenant,
            id=key,
            digest=operation.digest,
            tasks=ids,
            expires_ms=view.now_ms + rules.key_retention_ms,
        )
        all_.append(ItemChange(before=None, after=row))
    return Decision(GraphStands(tuple(filter(None, tasks)), made=True), tuple(all_))


def _begun(
    view: View, shard: int, here: Sequence[Node], away: Sequence[Node], rules: LifetimeRules
) -> Dependents:
    """Return the new tasks of this shard, and those on their way to others, with their edges."""
    changes: list[Change] = []
    for node in here:
        change = made(view, node.create, rules)
        assert change is not None, "a part of a graph is there"
        changes.append(change)
    # Before all questions after them, which go the same way.
    changes += sent(view, [_sent_as(node, shard, rules) for node in away])
    dependents = Dependents(view, rules, changes, told_bytes_max=WALKED_BYTES_MAX)
    for node in here:
        if node.needs:
            dependents.begin(node.create.id, node.needs)
    for node in away:
        cause = _local(node.create.id, shard, rules)
        dependents.ask_for(node, shard=shard, cause=cause)
    return dependents


def elapsed(
    view: View,
    items: Iterable[Walk | Dependencies],
    rules: LifetimeRules,
    changes: Iterable[Change],
    *,
    most: int,
) -> Iterator[Change]:
    """Yield a decision's changes with the next steps of walks and with dependents' questions.

    Args:
        items: Whose instants have come; the decision changes their tasks in no other way. Those for
            which the step has no room stay due.
        rules: With the number of shards.
        changes: What the decision changes so far.
        most: How many dependents the step may tell.
    """
    dependents = Dependents(view, rules, changes)
    left, bytes_left = min(most, WALKED_MAX), WALKED_BYTES_MAX
    for number, item in enumerate(items):
        alone = isinstance(item, Walk) and _waits(view, item.id)
        if left <= 0 or bytes_left <= 0 or (alone and number):
            break
        if isinstance(item, Walk):
            told, size = dependents.walk_on(item, left, bytes_left)
        else:
            told, size = dependents.ask_again(item), 0
        left, bytes_left = left - max(1, told), bytes_left - size
        if alone:
            break
    yield from dependents.changes()


def _waits(view: View, task_id: str) -> bool:
    """Return whether a task waits again whose dependents are told that it was revived.

    It may end in the same step as a parent of its own is walked, and then they are told of that.
    """
    task = view.task(task_id)
    return task is not None and task.waits_for_others


def _refused_need(
    view: View, node: Node, shard: int, rules: LifetimeRules, *, besides: Collection[str]
) -> Rejected | None:
    """Return why a task cannot wait for one of this shard; the others were asked before."""
    for need in node.needs:
        if need.parent in besides or not _is_of(shard, need.parent, rules):
            continue
        parent = view.task(need.parent)
        if parent is None or parent.tenant != node.create.tenant:
            return Rejected(Rejection.UNKNOWN_DEPENDENCY, need.name)
        if parent.more is not None and parent.more.dependents >= EDGES_MAX:
            return Rejected(Rejection.TOO_MANY, "dependents")
    return None


def _is_of(shard: int, task_id: str, rules: LifetimeRules) -> bool:
    return shard_of(task_id, rules.shards) == shard


def _standing(
    view: View, operation: CreateGraph, ids: tuple[str, ...], rules: LifetimeRules
) -> GraphStands:
    """Return the tasks of a graph that are here or on their way, and where the others are."""
    tasks: list[Task] = []
    elsewhere = False
    for task_id in ids:
        task = view.task(task_id)
        if task is None and not _is_of(operation.shard, task_id, rules):
            name = _relay_name(_local(task_id, operation.shard, rules))
            relay = view.item(ItemKind.RELAY, operation.tenant, name)
            if isinstance(relay, Relay) and not relay.taken_ms:
                assert isinstance(relay.effect, RelayedTask)
                task = _on_its_way(view, relay.effect)
            else:
                elsewhere = True
        if task is not None:
            tasks.append(task)
    return GraphStands(tuple(tasks), ids=ids if elsewhere else ())


def _sent_as(node: Node, shard: int, rules: LifetimeRules) -> Cause:
    local = _local(node.create.id, shard, rules)
    effect = _effect(node)
    return Cause(_relay_name(local), local, effect.home(rules.shards), effect)


def _effect(node: Node) -> RelayedTask:
    return RelayedTask(node.create, More(), node.needs)


def _relay_name(local: str) -> str:
    return f"{local}.0.{NODE_PLACE}"


def _local(task_id: str, shard: int, rules: LifetimeRules) -> str:
    """Return an id of this shard that stands for a task of another one."""
    return with_shard(task_id, shards=rules.shards, wanted=shard)


def _on_its_way(view: View, effect: RelayedTask) -> Task:
    task, _ = on_its_way(effect, now_ms=view.now_ms)
    return task


RULES: dict[type, Callable[[View, Any, LifetimeRules], Decision]] = {
    CreateDependent: create_dependent,
    CreateGraph: create_graph,
}
