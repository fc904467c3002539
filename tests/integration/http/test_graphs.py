"""Graphs: tasks that wait for others, on one node and on three."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from codeq_cluster.core.dependencies import graph_key, graph_shard
from codeq_cluster.core.sharding import shard_of
from tests.integration.http.client import Answer, Client, eventually
from tests.integration.http.nodes import three_nodes
from tests.integration.http.world import World, created

pytestmark = pytest.mark.asyncio(loop_scope="session")

ACME = "admin-of-acme"
WORKER = "worker-of-acme"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Run a node for this file alone."""
    async with created(tmp_path_factory.mktemp("graphs")) as world:
        yield world


@pytest.fixture
def name(world: World) -> str:
    """Return the name of a queue that no other test uses."""
    return f"graph-{next(world.numbers)}"


async def _post(world: World, path: str, body: object = None) -> Answer:
    return await world.client.post(path, {} if body is None else body, token=ACME)


async def _get(world: World, path: str) -> dict[str, Any]:
    answer = await world.client.get(path, token=ACME)
    assert 200 == answer.status, answer.body
    return answer.json


async def _graph(world: World, *tasks: dict[str, Any], **said: object) -> list[str]:
    answer = await _post(world, "tasks/graph", {"tasks": tasks, **said})
    assert 202 == answer.status, answer.body
    return [str(each["id"]) for each in answer.json["tasks"]]


def _node(name: str, ref: str, *after: object, **said: object) -> dict[str, Any]:
    node = {"ref": ref, "command": f"{name}.{ref}", "payload": {"of": ref}, "maxAttempts": 1}
    return node | ({"dependsOn": list(after)} if after else {}) | said


async def _claim(world: World, command: str, *, wait_s: int = 0) -> dict[str, Any] | None:
    body = {"commands": [command], "waitSeconds": wait_s}
    answer = await world.client.post("tasks/claim", body, token=WORKER)
    return answer.json if answer.status == 200 else None


async def _end(world: World, task_id: str, *, done: bool = True) -> None:
    body: dict[str, object] = {"status": "COMPLETED", "result": {"of": task_id}}
    if not done:
        body = {"status": "FAILED", "error": "broken"}
    answer = await world.client.post(f"tasks/{task_id}/result", body, token=WORKER)
    assert 200 == answer.status, answer.body


async def _work(world: World, command: str, *, done: bool = True) -> dict[str, Any]:
    task = await _claim(world, command, wait_s=5)
    assert task is not None
    await _end(world, task["id"], done=done)
    return task


async def _state(world: World, task_id: str, wanted: str) -> dict[str, Any]:
    return await eventually(
        lambda: _get(world, f"tasks/{task_id}"),
        lambda task: wanted in (task["status"], task["lastKnownLocation"]),
    )


async def test_a_task_runs_after_those_it_waits_for_and_gets_their_results(
    world: World, name: str
) -> None:
    """Its claim has both inputs by ref, and it was HELD before, with a cause."""
    fetch, parse, report = await _graph(
        world,
        _node(name, "report", "fetch", {"ref": "parse", "runIf": "ended"}),
        _node(name, "parse", "fetch"),
        _node(name, "fetch"),
    )
    report, fetch = fetch, report
    why = await _get(world, f"tasks/{report}/explain")
    assert "waiting-for" == why["reason"]
    assert fetch in why["message"]
    assert "HELD_SET" == (await _get(world, f"tasks/{report}"))["lastKnownLocation"]
    assert await _claim(world, f"{name}.parse") is None
    await _work(world, f"{name}.fetch")
    inputs = (await _work(world, f"{name}.parse", done=False))["inputs"]
    assert {"fetch": {"taskId": fetch, "status": "COMPLETED", "result": {"of": fetch}}} == inputs
    last = await _work(world, f"{name}.report")

    scraped = (await world.client.get("/metrics")).body.decode()

    assert report == last["id"]
    assert 'codeq_dependent_ended_total{outcome="met"} 0.0' not in scraped
    assert {"taskId": parse, "status": "FAILED", "error": "broken"} == last["inputs"]["parse"]
    shown = (await _get(world, f"tasks/{fetch}/graph"))["tasks"]
    assert [fetch, report, parse] == sorted(
        (each["id"] for each in shown), key=[fetch, report, parse].index
    )
    by_id = {each["id"]: each for each in shown}
    assert ["met", "met"] == [each["verdict"] for each in by_id[report]["dependsOn"]]


async def test_a_failure_cancels_what_must_not_run_and_lets_its_compensation_run(
    world: World, name: str
) -> None:
    """The cascade goes on to the dependents of what was cancelled."""
    _, second, third, undo, kept = await _graph(
        world,
        _node(name, "first"),
        _node(name, "second", "first"),
        _node(name, "third", "second"),
        _node(name, "undo", {"ref": "first", "runIf": "failed"}),
        _node(name, "kept", {"ref": "first", "else": "dead-letter"}),
    )
    await _work(world, f"{name}.first", done=False)
    task = await _work(world, f"{name}.undo")

    assert undo == task["id"]
    assert "DEPENDENCY_FAILED: first" == (await _state(world, second, "FAILED"))["error"]
    assert "DEPENDENCY_FAILED: second" == (await _state(world, third, "FAILED"))["error"]
    await _state(world, kept, "DLQ_SET")
    assert "did not run" in (await _get(world, f"tasks/{third}/explain"))["message"]


async def test_a_dead_letter_holds_what_waits_for_it_until_it_is_requeued(
    world: World, name: str
) -> None:
    """Explain names the dead letter; one that is deleted applies `else`."""
    first, second = await _graph(world, _node(name, "a"), _node(name, "b", "a"))
    task = await _claim(world, f"{name}.a")
    assert task is not None
    nacked = await world.client.post(f"tasks/{task['id']}/nack", {}, token=WORKER)
    assert 200 == nacked.status, nacked.body
    why = await eventually(
        lambda: _get(world, f"tasks/{second}/explain"), lambda why: "dead letter" in why["message"]
    )
    assert first in why["message"]
    requeued = await _post(world, f"admin/queues/{name}.a/dlq/{first}/requeue")
    assert 200 == requeued.status, requeued.body
    await _work(world, f"{name}.a")
    done = await _work(world, f"{name}.b")

    assert "COMPLETED" == done["inputs"]["a"]["status"]


async def test_a_task_waits_for_tasks_of_any_shard_that_have_ended_or_not(
    world: World, name: str
) -> None:
    """A parent that has ended lets it go at once; a key repeats the create."""
    made = [
        (await _post(world, "tasks", {"command": name, "payload": number})).json["id"]
        for number in range(6)
    ]
    await _work(world, name)
    body = {"command": f"{name}.last", "payload": 1, "dependsOn": made, "idempotencyKey": name}
    last = await _post(world, "tasks", body)
    again = await _post(world, "tasks", body)
    assert (202, 202) == (last.status, again.status), last.body
    assert last.json["id"] == again.json["id"]
    assert await _claim(world, f"{name}.last") is None
    for _ in made[1:]:
        await _work(world, name)
    task = await _work(world, f"{name}.last")

    assert set(made) == set(task["inputs"])
    late = await _post(world, "tasks", {"command": name, "payload": 1, "dependsOn": made})
    assert "PENDING_LIST" == late.json["lastKnownLocation"]


async def test_a_graph_of_tasks_with_keys_goes_on_over_their_shards(
    world: World, name: str
) -> None:
    """Six keys are on both shards; each step waits for the one before, whoever has it."""
    nodes = [_node(name, f"n{place}", *[f"n{place - 1}"][:place], key=name) for place in range(6)]
    made = await _graph(world, *nodes, idempotencyKey=name)
    assert {0, 1} == {shard_of(each, 2) for each in made}
    done = [(await _work(world, f"{name}.n{place}"))["id"] for place in range(6)]

    assert made == done
    assert made == await _graph(world, *nodes, idempotencyKey=name)


async def test_many_tasks_of_a_graph_may_wait_for_one_large_result(world: World, name: str) -> None:
    """The result of a task of another shard comes to all of them, some of them later."""
    parent = (await _post(world, "tasks", {"command": name, "payload": 1})).json["id"]
    assert await _claim(world, name) is not None
    text = "x" * 60_000
    body = {"status": "COMPLETED", "result": {"text": text}}
    assert 200 == (await world.client.post(f"tasks/{parent}/result", body, token=WORKER)).status
    keys = (f"{name}-{number}" for number in range(100))
    key = next(
        each for each in keys if graph_shard("acme", graph_key(each), 2) != shard_of(parent, 2)
    )
    command = f"{name}.after"
    nodes = [{"command": command, "payload": 1, "dependsOn": [parent]} for _ in range(60)]
    made = await _graph(world, *nodes, idempotencyKey=key)
    for each in made:
        await _state(world, each, "PENDING_LIST")
    handed = [await _claim(world, command) for _ in made]

    inputs = [each["inputs"] for each in handed if each is not None]
    assert [{"text": text}] * 60 == [each[parent]["result"] for each in inputs]


async def test_a_repeated_graph_of_a_key_makes_no_other(world: World, name: str) -> None:
    """Another graph under the key is a conflict."""
    nodes = (_node(name, "a"), _node(name, "b", "a"))
    first = await _graph(world, *nodes, idempotencyKey=name)

    assert first == await _graph(world, *nodes, idempotencyKey=name)
    other = await _post(world, "tasks/graph", {"tasks": [_node(name, "a")], "idempotencyKey": name})
    assert (409, "idempotency-conflict") == (other.status, other.json["code"])


@pytest.mark.parametrize(
    ("tasks", "code", "words"),
    [
        ([("a", "b"), ("b", "a")], "cycle", "a, b"),
        ([("a", "a")], "cycle", "a, a"),
        ([("a", "not a ref")], "invalid-depends-on", "no task of the request"),
        ([("a", {"ref": "b"})], "invalid-depends-on", "no task of the request"),
        ([("a", {"id": "b", "ref": "b"})], "invalid-depends-on", "either id or ref"),
        ([("a", {"id": "b", "runIf": "never"})], "invalid-depends-on", "runIf"),
        ([("a", "gone")], "unknown-dependency", "gone"),
        ([("a",), ("a",)], "invalid-ref", "each once"),
        ([("a",), ("b", "a", "a")], "invalid-depends-on", "each once"),
    ],
)
async def test_a_graph_that_cannot_be_is_refused_whole(
    world: World, name: str, tasks: list[tuple[Any, ...]], code: str, words: str
) -> None:
    """The answer names what is wrong, and nothing is made."""
    nodes = [_node(name, *task) for task in tasks]
    answer = await _post(world, "tasks/graph", {"tasks": nodes})

    assert (404 if code == "unknown-dependency" else 400) == answer.status
    assert code == answer.json["code"]
    assert words in str(answer.json)


async def test_a_graph_and_what_is_shown_of_it_are_bounded(world: World, name: str) -> None:
    """At most 200 tasks with 1,000 edges are made at once, and 200 are shown."""
    wide = [_node(name, "root"), *(_node(name, f"n{place}", "root") for place in range(200))]
    dense = [_node(name, f"n{a}", *(f"n{b}" for b in range(a))) for a in range(46)]
    refused = [await _post(world, "tasks/graph", {"tasks": nodes}) for nodes in (wide, dense)]
    assert [(400, "out-of-range"), (400, "invalid-graph")] == [
        (each.status, each.json["code"]) for each in refused
    ]
    root, *_ = await _graph(world, *wide[:-1])
    late = await _post(world, "tasks", {"command": name, "payload": 1, "dependsOn": [root]})
    assert 202 == late.status, late.body

    assert 200 == len((await _get(world, f"tasks/{root}/graph"))["tasks"])


async def test_a_task_of_another_tenant_is_unknown(world: World, name: str) -> None:
    """Neither its id nor its graph tells of it."""
    task = (await _post(world, "tasks", {"command": name, "payload": 1})).json["id"]
    body = {"command": name, "payload": 1, "dependsOn": [task]}
    other = await world.client.post("tasks", body, token="admin-of-other")
    seen = await world.client.get(f"tasks/{task}/graph", token="admin-of-other")

    assert (404, "unknown-dependency") == (other.status, other.json["code"])
    assert 404 == seen.status


@pytest.mark.parametrize(
    ("path", "wrap"),
    [
        ("tasks/batch", lambda task: {"tasks": [task]}),
        ("groups", lambda task: {"tasks": [task]}),
        ("tasks", lambda task: task | {"group": "g"}),
        ("tasks/graph", lambda task: {"tasks": [task | {"idempotencyKey": "k"}]}),
    ],
)
async def test_what_cannot_wait_for_others_says_so(
    world: World, name: str, path: str, wrap: Any
) -> None:
    """Tasks of a batch and of a group; one key is that of the whole graph."""
    first = (await _post(world, "tasks", {"command": name, "payload": 1})).json["id"]
    await _post(world, "groups", {"id": "g"})
    answer = await _post(world, path, wrap({"command": name, "payload": 1, "dependsOn": [first]}))

    assert any(code in str(answer.json) for code in ("invalid-depends-on", "invalid-graph"))


async def test_a_graph_goes_on_over_shards_and_nodes(tmp_path: Path) -> None:
    """Parents on one shard, the dependent on another, each led by another node."""
    async with three_nodes(tmp_path) as nodes:
        client = nodes.clients["n1"]
        made: dict[int, str] = {}
        while len(made) < 2:
            task_id = await client.create("first")
            made.setdefault(shard_of(task_id, 2), task_id)
        body = {"command": "last", "payload": 1, "dependsOn": sorted(made.values())}
        last = await nodes.clients["n2"].post("tasks", body)
        assert 202 == last.status, last.body
        while (task := await _claimed(nodes.clients["n3"], "first")) is not None:
            result = {"status": "COMPLETED", "result": 1}
            ended = await nodes.clients["n3"].post(f"tasks/{task['id']}/result", result)
            assert 200 == ended.status, ended.body
        wanted = {"commands": ["last"], "waitSeconds": 20}
        answer = await nodes.clients["n2"].post("tasks/claim", wanted)

        assert last.json["id"] == answer.json["id"]
        assert set(made.values()) == set(answer.json["inputs"])


async def _claimed(client: Client, command: str) -> dict[str, Any] | None:
    answer = await client.post("tasks/claim", {"commands": [command]})
    return answer.json if answer.status == 200 else None
