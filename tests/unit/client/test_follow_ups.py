"""Follow-ups: what a handler wants done after its task, and that it is done once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from msgspec import Raw

from codeq_cluster.client import (
    Done,
    Ended,
    Ending,
    Fail,
    Leases,
    NewTask,
    Refused,
    State,
    Task,
    Worker,
)
from codeq_cluster.client.connection import BASE
from codeq_cluster.client.handling import Retry
from codeq_cluster.testing.broker import LocalBroker
from tests.unit.client.servers import serve

_UNSENDABLE = NewTask("never", object())
_NOT_SENT = "its follow-ups cannot be sent: "
_LEASE_S = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """Run a broker of four shards, so that a key's shard is seldom its parent's."""
    settings = {"persistenceConfig": {"numShards": 4}}
    with LocalBroker(tmp_path_factory.mktemp("broker"), settings=settings) as running:
        yield running


async def _ready(broker: LocalBroker, command: str) -> int:
    async with broker.operator() as operator:
        return int((await operator.queue(command))["ready"])


async def _ended(broker: LocalBroker, command: str, returned: object) -> tuple[str, Ended]:
    """Create a task and let a handler return, or raise, this for it; return its id too."""
    endings: list[Ended] = []
    worker = broker.worker(ended=endings.append)

    @worker.task(command)
    async def handler(_: Task[int]) -> object:
        if isinstance(returned, Exception):
            raise returned
        return returned

    async with broker.client() as client:
        made = await client.create(command, 1)
        await worker.serve(tasks_max=1)
    [ended] = endings
    return made.id, ended


@pytest.mark.parametrize(
    ("done", "value"),
    [
        (Done(), {}),
        (Done({"width": 640}), {"width": 640}),
        (Done(Raw(b"[1]"), [NewTask("told", 1), NewTask("told", 2)]), [1]),
        (Done(next=[NewTask("told", 3)]), {}),
    ],
)
async def test_a_handler_may_say_what_comes_next(
    broker: LocalBroker, done: Done, value: object
) -> None:
    """The result is what it would be without it, and names each task that it has made."""
    task_id, ended = await _ended(broker, "say-next", done)
    async with broker.client() as client:
        result = await client.wait(task_id)
        made = [await client.task(each.id) for each in result.record.next]

    assert ended.ending is Ending.COMPLETED
    assert value == result.value
    assert [str(task.payload) for task in done.next] == [task.payload for task in made]
    assert {(task_id, task_id)} >= {(task.parent_id, task.root_id) for task in made}


async def test_a_failure_may_have_follow_ups_too(broker: LocalBroker) -> None:
    """The task fails for good, and the task that undoes it is there."""
    undo = [NewTask("undo", {"of": 7}, priority=5, idempotency_key="undo-7")]
    task_id, ended = await _ended(broker, "fail-next", Fail("no stock", next=undo))
    undoing = broker.worker()
    undone: list[Task[Any]] = []

    @undoing.task("undo")
    async def handler(task: Task[dict[str, int]]) -> None:
        undone.append(task)

    await undoing.serve(tasks_max=1)
    async with broker.client() as client:
        result = await client.wait(task_id)
    [task] = undone

    assert (Ending.FAILED, "no stock") == (ended.ending, ended.note)
    assert (False, "no stock") == (result.ok, result.error)
    assert ["undo-7"] == [each.idempotency_key for each in result.record.next]
    assert ({"of": 7}, 5, task_id) == (task.payload, task.record.priority, task.record.parent_id)


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        (Done(1, [_UNSENDABLE]), _NOT_SENT),
        (Done(object(), [NewTask("never", 1)]), "the result is no JSON: "),
        (Done(1, [NewTask("never", 1, idempotency_key="")]), f"{_NOT_SENT}idempotency_key: "),
        (Fail("odd", next=[_UNSENDABLE]), _NOT_SENT),
        (Done(1, [NewTask("no such name", 1)]), "the result was refused: "),
        (
            Fail("odd", next=[NewTask("never", 1, webhook="ftp://here/")]),
            "the result was refused: ",
        ),
    ],
)
async def test_a_follow_up_that_cannot_be_made_gives_the_task_back(
    broker: LocalBroker, returned: object, reason: str
) -> None:
    """Its result without its follow-ups would be half of what the handler said."""
    task_id, ended = await _ended(broker, "give-back", returned)
    async with broker.client() as client:
        task = await client.task(task_id)
        await client.cancel(task_id)

    assert ended.ending is Ending.RETURNED
    assert task.state in {State.DELAYED, State.READY}  # Its back-off may be over already.
    assert ended.note.startswith(reason)
    assert ended.note.endswith("; it failed: odd") is (
        isinstance(returned, Fail) and reason == _NOT_SENT
    )
    assert ended.error is not None
    assert ended.note == task.history[0].error
    assert 0 == await _ready(broker, "never")


async def test_a_token_that_may_not_make_a_follow_up_gives_the_task_back(tmp_path: Path) -> None:
    """The task says why; the worker goes on with those that have none."""
    worker = {
        "kind": "static",
        "tokens": [
            {
                "token": "narrow",
                "scopes": ["codeq:claim", "codeq:nack", "codeq:result"],
                "eventTypes": ["*"],
            }
        ],
    }
    endings: list[Ended] = []
    with LocalBroker(tmp_path, settings={"auth": {"worker": [worker]}}) as broker:
        narrow = Worker([broker.url], token="narrow", ended=endings.append)

        @narrow.task("narrow")
        async def handler(task: Task[int]) -> Done:
            return Done(next=[NewTask("narrow", 0)] * task.payload)

        async with broker.client() as client:
            for follow_ups in (1, 0):
                await client.create("narrow", follow_ups)
        await narrow.serve(tasks_max=2)

    assert [Ending.RETURNED, Ending.COMPLETED] == [ended.ending for ended in endings]
    assert endings[0].note.startswith("the result was refused: missing scope codeq:enqueue")


async def test_a_chain_whose_answers_are_lost_has_each_step_once(broker: LocalBroker) -> None:
    """Each report is sent again and finds the result that it made; no step comes twice."""
    lost: set[str] = set()
    ran: list[tuple[str, int]] = []

    async def losing(request: web.Request) -> web.Response:
        """Pass everything on, but lose the first answer to each result."""
        async with session.request(
            request.method,
            broker.url + request.path_qs,
            data=await request.read(),
            headers={"Authorization": request.headers["Authorization"]},
        ) as answer:
            body = await answer.read()
        if request.path.endswith("/result") and request.path not in lost:
            assert 200 == answer.status
            lost.add(request.path)
            assert request.transport is not None
            request.transport.abort()
        return web.Response(status=answer.status, body=body, content_type="application/json")

    async with ClientSession() as session, serve(losing) as url:
        worker = Worker([url], token=broker.token, discover=False)
        _chain(worker, ran)
        async with broker.client() as client:
            first = await client.create("fetch", 1)
            await worker.serve(tasks_max=3)
            steps = await _steps(broker, first.id)

    assert [("fetch", 1), ("parse", 2), ("report", 3)] == ran
    assert {f"{BASE}/tasks/{step}/result" for step in steps} == lost
    assert [0, 0, 0] == [await _ready(broker, name) for name in ("fetch", "parse", "report")]


async def test_a_step_that_is_delivered_twice_is_followed_once(broker: LocalBroker) -> None:
    """The late worker's result is refused while another one works, and with it what follows."""
    begun, again, refused = asyncio.Event(), asyncio.Event(), asyncio.Event()
    endings: list[Ended] = []

    def ended(delivery: Ended) -> None:
        endings.append(delivery)
        refused.set()

    async def overtaken() -> None:
        again.set()
        await refused.wait()

    slow = broker.worker(lease_s=_LEASE_S, ended=ended)

    @slow.task("fetch")
    async def late(task: Task[int]) -> Done:
        begun.set()
        await again.wait()
        return Done("late", [NewTask("parse", -task.payload)])

    ran: list[tuple[str, int]] = []
    worker = broker.worker()
    _chain(worker, ran, overtaken)
    async with broker.client() as client:
        first = await client.create("fetch", 1)
        async with asyncio.TaskGroup() as group:
            group.create_task(slow.serve(tasks_max=1))
            await begun.wait()
            await asyncio.to_thread(broker.advance, seconds=_LEASE_S + 1)
            await worker.serve(tasks_max=3)
        await _steps(broker, first.id)
        task = await client.task(first.id)

    assert [Ending.LOST] == [ended.ending for ended in endings]
    assert (State.DONE, 2) == (task.state, task.attempts)
    assert [("fetch", 1), ("parse", 2), ("report", 3)] == ran
    assert [0, 0, 0] == [await _ready(broker, name) for name in ("fetch", "parse", "report")]


async def test_a_key_makes_a_follow_up_once_for_all_its_parents(broker: LocalBroker) -> None:
    """Each part of a fan-out names the same last task; the key's shard makes it once."""
    seen: list[Task[int]] = []
    worker = broker.worker(concurrency=4)

    @worker.task("part")
    async def part(task: Task[int]) -> Done:
        if task.attempt == 1:
            raise Retry("as if the process had died", after=1)
        return Done(task.payload, [NewTask("last", 1, idempotency_key="last-of-all")])

    @worker.task("last")
    async def last(task: Task[int]) -> None:
        seen.append(task)

    with broker.working(worker):
        async with broker.client() as client:
            made = [await client.create("part", n) for n in range(8)]
            await asyncio.to_thread(broker.advance, seconds=5)
            ended = [await client.wait(task.id) for task in made]
            key = {each.idempotency_key for result in ended for each in result.record.next}
            again = await client.create("last", 1, idempotency_key="last-of-all")
            await client.wait(again.id)

    assert {"last-of-all"} == key
    assert [again.id] == [task.id for task in seen]
    assert seen[0].record.parent_id in {task.id for task in made}


def _chain(
    worker: Worker,
    ran: list[tuple[str, int]],
    working: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Let a worker do three steps, each of which says the next."""
    following = {"fetch": "parse", "parse": "report"}

    @worker.task("fetch", "parse", "report")
    async def step(task: Task[int]) -> Done:
        ran.append((task.command, task.payload))
        if working is not None:
            await working()
        command = following.get(task.command)
        after = [NewTask(command, task.payload + 1)] if command else []
        return Done(task.payload, after)


async def _steps(broker: LocalBroker, first: str) -> list[str]:
    """Follow a chain by its results; return the ids of its tasks."""
    steps, parent = [first], ""
    async with broker.client() as client:
        for step in steps:
            result = await client.wait(step)
            assert (parent, first if parent else "") == (result.task.parent_id, result.task.root_id)
            steps += [each.id for each in result.record.next]
            parent = step
    return steps


async def test_a_node_of_a_release_without_follow_ups_is_not_believed(
    broker: LocalBroker,
) -> None:
    """Release 0.1.0 ignores what it does not know: its answer has no `next`."""

    async def passes_on(request: web.Request) -> web.Response:
        body = await request.json()
        body.pop("next", None)
        headers = {"Authorization": request.headers["Authorization"]}
        async with (
            ClientSession() as session,
            session.request(
                request.method, broker.url + request.path, json=body, headers=headers
            ) as answer,
        ):
            return web.Response(
                body=await answer.read(), status=answer.status, content_type="application/json"
            )

    async with (
        broker.client() as client,
        serve(passes_on) as url,
        Leases([url], token=broker.token) as leases,
    ):
        await client.create("old", 1)
        [task] = await leases.claim(["old"], lease_s=60)
        with pytest.raises(Refused, match="has ended without its follow-ups: a node of an earlier"):
            await leases.complete(task, b"{}", following=[b'{"command":"new","payload":1}'])
        ended = await client.task(task.id)

    assert State.DONE is ended.state
