"""Graphs of the client: how they are built, and what their records have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import fields as fields_of

from codeq_cluster.api.routes.graphs import DependencyView, NodeView
from codeq_cluster.api.routes.task_views import InputView
from codeq_cluster.client import (
    After,
    Client,
    DependencyRecord,
    InputRecord,
    NewTask,
    NodeRecord,
    SyncClient,
    Task,
    chain,
    fan,
)
from codeq_cluster.testing.broker import LocalBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """Run a broker for this file alone."""
    with LocalBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


def test_records_have_every_field_of_the_api() -> None:
    """A reader of a graph misses nothing."""
    views = ((NodeRecord, NodeView), (DependencyRecord, DependencyView), (InputRecord, InputView))
    for record, view in views:
        assert {each.encode_name for each in fields_of(view)} == {
            each.encode_name for each in fields_of(record)
        }


def test_each_step_waits_for_the_whole_step_before() -> None:
    """A fan has one task for each payload, and a repeated command gets a number."""
    graph = chain("fetch", "parse") >> fan("index", [1, 2]) >> "report"

    assert ("fetch", "parse", "index", "index-2", "report") == graph.refs
    assert [(), (0,), (1,), (1,), (2, 3)] == [after for _, after in graph.nodes]
    assert [{}, {}, 1, 2, {}] == [task.payload for task, _ in graph.nodes]


async def test_a_number_never_makes_the_name_of_another_command(broker: LocalBroker) -> None:
    """Wherever that one stands; no task of the graph is lost."""
    graph = "index-2" >> (fan("index", [1, 2, 3]) | NewTask("index-4", 4))
    async with broker.client() as client:
        made = await client.graph(graph)

    assert ("index-2", "index", "index-3", "index-5", "index-4") == graph.refs
    assert ["{}", "1", "2", "3", "4"] == [made[ref].payload for ref in graph.refs]


def test_two_graphs_stand_side_by_side() -> None:
    """What follows them waits for the ends of both."""
    graph = "begin" >> (chain("a", "b") | NewTask("c", 1)) >> "end"

    assert [(), (0,), (1,), (0,), (2, 3)] == [after for _, after in graph.nodes]


def test_a_chain_of_nothing_is_refused() -> None:
    """The error says what is missing."""
    with pytest.raises(ValueError, match="at least one step"):
        chain()


async def test_a_worker_sees_what_its_task_has_waited_for(broker: LocalBroker) -> None:
    """By ref in a graph, and by id in a task that was created later."""
    seen: dict[str, object] = {}
    worker = broker.worker()

    @worker.task("fetch", "index", "report", "late")
    async def handler(task: Task[object]) -> object:
        seen[task.command] = {name: bytes(each.result) for name, each in task.inputs.items()}
        return task.payload or task.command

    async with broker.client() as client:
        made = await client.graph(chain("fetch") >> fan("index", [7, 8]) >> "report")
        fetch = made["fetch"].id
        late = NewTask("late", 0, depends_on=[fetch, After(id=made["report"].id, run_if="ended")])
        await client.create(late.command, late.payload, depends_on=late.depends_on)
        near = await client.neighbours(fetch)
        await worker.serve(tasks_max=5)

    assert {"index": b"7", "index-2": b"8"} == seen["report"]
    assert {fetch: b'"fetch"', made["report"].id: b'"report"'} == seen["late"]
    assert {fetch, *(each.id for each in made.values())} <= {each.id for each in near}


def test_a_graph_by_refs_is_created_once_under_its_key(broker: LocalBroker) -> None:
    """The same from a program without an event loop."""
    tasks = {"a": NewTask("once", 1), "b": NewTask("once", 2, depends_on=[After(ref="a")])}
    with broker.sync_client() as client:
        first = client.graph(tasks, idempotency_key="k")
        again = client.graph(tasks, idempotency_key="k")

    assert {"a", "b"} == set(first)
    assert [each.id for each in first.values()] == [each.id for each in again.values()]
    assert SyncClient.graph.__doc__ == Client.graph.__doc__
