"""Graphs: tasks of which some wait for others, as a program describes them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from msgspec import Raw, Struct
from msgspec.json import Decoder

from codeq_cluster.client.codecs import JSON, Codec
from codeq_cluster.client.connection import BASE, Connection, part
from codeq_cluster.client.producing import NewTask, body_of, fresh_key
from codeq_cluster.client.records import TaskRecord


class Graph:
    """Tasks in the order in which they run; `a >> b` lets the first of b wait for the last of a.

    Attributes:
        nodes: Each task, with the places of those that it waits for.
    """

    def __init__(self, nodes: Iterable[tuple[NewTask, tuple[int, ...]]]) -> None:
        """Make a graph of tasks and places; `chain` and `fan` are what most programs want."""
        self.nodes = tuple(nodes)

    def __rshift__(self, other: Step) -> Graph:
        return self._with(other, self._last)

    def __rrshift__(self, other: Step) -> Graph:
        return _graph(other) >> self

    def __or__(self, other: Step) -> Graph:
        return self._with(other, ())

    @property
    def refs(self) -> tuple[str, ...]:
        """The name of each task: its command, with a number if the graph has it before.

        A number whose name is a command of the graph is left out, so that each name is one task's.
        """
        commands = {task.command for task, _ in self.nodes}
        numbers = {command: itertools.count(2) for command in commands}
        found = dict[str, None]()  # A set in its order.
        for task, _ in self.nodes:
            command = task.command
            ref = command
            while ref in found or (ref != command and ref in commands):
                ref = f"{command}-{next(numbers[command])}"
            found[ref] = None
        assert len(found) == len(self.nodes), found
        return tuple(found)

    @property
    def _last(self) -> tuple[int, ...]:
        waited_for = {place for _, after in self.nodes for place in after}
        return tuple(place for place in range(len(self.nodes)) if place not in waited_for)

    def _with(self, other: Step, last: tuple[int, ...]) -> Graph:
        begin = len(self.nodes)
        more = (
            (task, tuple(begin + place for place in after) or last)
            for task, after in _graph(other).nodes
        )
        return Graph((*self.nodes, *more))


Step: TypeAlias = str | NewTask | Graph


def chain(*steps: Step) -> Graph:
    """Return tasks that run one after the other; a text is a command with an empty payload."""
    if not steps:
        raise ValueError("chain() needs at least one step")
    first, *others = map(_graph, steps)
    for each in others:
        first >>= each
    return first


def fan(command: str, payloads: Iterable[object]) -> Graph:
    """Return one task for each payload; they run side by side."""
    return Graph((NewTask(command, payload), ()) for payload in payloads)


def _graph(step: Step) -> Graph:
    if isinstance(step, Graph):
        return step
    return Graph([(NewTask(step, {}) if isinstance(step, str) else step, ())])


class DependencyRecord(
    Struct,
    frozen=True,
    kw_only=True,
    rename={"run_if": "runIf", "on_dead": "onDead", "otherwise": "else"},
):
    """A task that another waits for.

    Attributes:
        name: What its result is called in the other's `inputs`: a ref or the id.
        status: How it has ended, as far as the other knows; empty if it has not.
        verdict: waits, met or impossible.
    """

    id: str
    name: str
    run_if: str
    otherwise: str
    on_dead: str
    status: str
    verdict: str


class NodeRecord(Struct, frozen=True, kw_only=True, rename="camel"):
    """A task of a graph, with what it waits for."""

    id: str
    command: str
    status: str
    last_known_location: str
    error: str
    depends_on: tuple[DependencyRecord, ...] = ()


class _Made(Struct):
    tasks: tuple[TaskRecord, ...]


class _Near(Struct):
    tasks: tuple[NodeRecord, ...]


class Graphs(Connection):
    """The routes of graphs; a call with an idempotency key may be repeated."""

    _codec: Codec = JSON

    async def graph(
        self, graph: Graph | Mapping[str, NewTask], *, idempotency_key: str | None = None
    ) -> dict[str, TaskRecord]:
        """Create the tasks of a graph, all or none, and return them by ref.

        `await client.graph(chain("fetch", "parse") >> fan("index", docs) >> "report")`

        Args:
            graph: Built of `chain` and `fan`; or tasks by ref, whose `depends_on` names refs.
            idempotency_key: A repeated call with the same key makes no other; None draws one.
        """
        nodes = dict(_nodes(graph))
        tasks = [self._node(ref, *each) for ref, each in nodes.items()]
        body = {"tasks": tasks, "idempotencyKey": idempotency_key or fresh_key()}
        made = await self._changed("POST", f"{BASE}/tasks/graph", body, of=_Made)
        return dict(zip(nodes, made.tasks, strict=False))

    async def neighbours(self, task_id: str) -> tuple[NodeRecord, ...]:
        """Return a task and those that its graph leads to, the nearest first; at most 200."""
        path = f"{BASE}/tasks/{part(task_id)}/graph"
        return (await self._read(path, _Near)).tasks

    def _node(self, ref: str, task: NewTask, after: tuple[str, ...]) -> dict[str, object]:
        if after:
            task = replace(task, depends_on=(*(task.depends_on or ()), *after))
        return {"ref": ref, **_fields(body_of(task, self._codec, keyless=True))}


_fields = Decoder(dict[str, Raw]).decode


def _nodes(
    graph: Graph | Mapping[str, NewTask],
) -> Iterator[tuple[str, tuple[NewTask, tuple[str, ...]]]]:
    if not isinstance(graph, Graph):
        yield from ((ref, (task, ())) for ref, task in graph.items())
        return
    refs = graph.refs
    for ref, (task, after) in zip(refs, graph.nodes, strict=True):
        yield ref, (task, tuple(refs[place] for place in after))
