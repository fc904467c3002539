"""Graph: the tasks that edges lead to from one task, and which of them the others wait for."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from codeq_cluster.broker.requests.graphs import Graphs, Neighbour
from codeq_cluster.broker.values import Caller
from codeq_cluster.core.dependencies import Verdict
from codeq_cluster.core.task import Task
from codeq_cluster.ui.sources import Sources
from codeq_cluster.ui.views.rows import STATES

_KEPT_S = 2  # It is a read for each task of the graph.


class EdgeView(Struct):
    """A task that another waits for, or has waited for; `verdict` is waits, met or impossible."""

    id: str
    verdict: str


class NodeView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A task of a graph.

    Attributes:
        name: What the others call it: its ref, if it has one.
        state: As in a row, or `deleted`.
        blocks: Others wait for it, and it waits for none itself.
        dead_queue: The queue that keeps it as a dead letter.
    """

    id: str
    name: str = ""
    command: str = ""
    state: str = "deleted"
    blocks: bool = False
    dead_queue: str = ""
    waits_for: list[EdgeView]


async def around(graphs: Graphs, sources: Sources, caller: Caller, task: Task) -> list[NodeView]:
    """Return the graph of a task, that task first; empty if no edge leads from or to it."""
    more = task.more
    if more is None or not (more.depends or more.dependents):
        return []

    async def look() -> list[NodeView]:
        return _nodes(await graphs.neighbours(caller, task.id) or [])

    return await sources.shared.of(caller.tenant, ("graph", task.id), _KEPT_S, look)


def _nodes(found: Sequence[Neighbour]) -> list[NodeView]:
    waits_for = {each.id: each.row.of if each.row is not None else () for each in found}
    edges = [edge for of in waits_for.values() for edge in of]
    names = {edge.parent: edge.name for edge in edges if edge.name != edge.parent}
    wanted = {edge.parent for edge in edges if edge.verdict is Verdict.WAITS}
    return [
        NodeView(
            id=each.id,
            name=names.get(each.id, ""),
            command=each.task.command if each.task is not None else "",
            state=STATES[each.task.state] if each.task is not None else "deleted",
            blocks=each.id in wanted and (each.task is None or not each.task.waits_for_others),
            dead_queue=each.task.dead_queue if each.task is not None else "",
            waits_for=[EdgeView(edge.parent, edge.verdict.value) for edge in waits_for[each.id]],
        )
        for each in found
    ]
