"""Client: the calls of producers and readers on a real broker, alike in both interfaces."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import inf, nan
from traceback import format_exception
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from aiohttp import web

from codeq_cluster.client import (
    Client,
    Leases,
    NewTask,
    NotCreated,
    NotFinished,
    Operator,
    Refused,
    State,
    Status,
    SyncClient,
    SyncOperator,
    TaskFailed,
    TaskRecord,
    Unique,
)
from codeq_cluster.testing.broker import LocalBroker
from tests.unit.client.servers import serve

_TASK = TaskRecord(
    id="x",
    command="c",
    payload="1",
    status=Status.PENDING,
    created_at=datetime(2026, 1, 31, tzinfo=UTC),
    updated_at=datetime(2026, 1, 31, tzinfo=UTC),
)


class _InThreads:
    """The synchronous interface as an async one: each call waits in a thread."""

    def __init__(self, face: Any) -> None:
        self._face = face

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: asyncio.to_thread(getattr(self._face, name), *given, **named)


@pytest_asyncio.fixture(params=["async", "sync"])
async def client(broker: LocalBroker, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """Yield a client with either interface."""
    if request.param == "async":
        async with broker.client() as opened:
            yield opened
    else:
        with broker.sync_client() as opened:
            yield _InThreads(opened)


@pytest_asyncio.fixture
async def leases(broker: LocalBroker) -> AsyncIterator[Leases]:
    """Yield the requests of workers."""
    async with Leases([broker.url], token=broker.token) as opened:
        yield opened


@dataclass
class _Resize:
    """A typed payload and result."""

    width: int
    at: datetime


async def _completed(leases: Leases, command: str, result: bytes) -> TaskRecord:
    [task] = await leases.claim([command], lease_s=60, wait_s=20)
    await leases.complete(task, result)
    return task


@pytest.mark.parametrize("face", [(Client, SyncClient), (Operator, SyncOperator)])
def test_no_call_is_missing_from_the_sync_face(face: tuple[type, type]) -> None:
    """Every public coroutine method of one class is a method of the other."""
    one, other = face
    calls = {
        name
        for name, member in inspect.getmembers(one, inspect.iscoroutinefunction)
        if not name.startswith("_")
    }

    assert calls
    assert set() == {name for name in calls if not callable(getattr(other, name, None))}


async def test_a_task_in_place_of_its_fields_is_refused_with_a_hint(client: Any) -> None:
    """`create_many` takes tasks, so somebody will give one to `create`."""
    with pytest.raises(
        TypeError, match=r"^create\(\) takes the fields of NewTask, not a NewTask: "
    ):
        await client.create(NewTask("resize", {}))


async def test_a_task_is_created_with_every_argument(client: Any) -> None:
    """Each argument sets its field of the API."""
    made = await client.create(
        "asked", {"n": 1}, priority=7, max_attempts=3, delay=timedelta(hours=1), ttl=86_400
    )
    read = await client.task(made.id)

    assert made == read
    assert ("asked", '{"n":1}', 7) == (made.command, made.payload, made.priority)
    assert (3, Status.PENDING, State.DELAYED) == (made.max_attempts, made.status, made.state)
    assert timedelta(hours=1) == made.ready_at - made.created_at
    assert timedelta(days=1) == made.expires_at - made.created_at


async def test_an_instant_needs_its_time_zone(client: Any) -> None:
    """An instant without a time zone would be ambiguous."""
    at = datetime(2036, 1, 31, 12, tzinfo=UTC)
    made = await client.create("at", 1, run_at=at)

    assert (at, at) == (made.run_at, made.ready_at)
    with pytest.raises(ValueError, match="its time zone"):
        await client.create("at", 1, run_at=at.replace(tzinfo=None))


async def test_a_payload_travels_as_it_was_written(client: Any) -> None:
    """Digits that a float would lose, and the order of keys, arrive unchanged."""
    text = '{"b": 12345678901234567890.123456789, "a": null}'
    made = await client.create("raw", msgspec.Raw(text.encode()))

    assert text == made.payload


async def test_typed_values_travel_both_ways(client: Any, leases: Leases) -> None:
    """A dataclass is sent as a payload, and a result is read as one."""
    sent = _Resize(640, datetime(2026, 1, 31, tzinfo=UTC))
    made = await client.create("typed", sent)
    await _completed(leases, "typed", made.payload.encode())
    ended = await client.wait(made.id)

    assert ended.ok
    assert {"width": 640, "at": "2026-01-31T00:00:00Z"} == ended.value
    assert sent == ended.read(_Resize)
    with pytest.raises(msgspec.ValidationError):
        ended.read(int)


async def test_each_create_has_a_key_of_its_own(client: Any) -> None:
    """Two calls create two tasks; with the caller's own key they create one."""
    fresh = {(await client.create("keyed", 1)).id for _ in range(2)}
    same = {(await client.create("keyed", 1, idempotency_key="mine")).id for _ in range(2)}
    with pytest.raises(Refused, match="idempotency conflict") as caught:
        await client.create("keyed", 2, idempotency_key="mine")

    assert (2, 1) == (len(fresh), len(same))
    assert "idempotency-conflict" == caught.value.code


async def test_a_unique_key_says_what_became_of_the_create(client: Any) -> None:
    """Terms travel with it; a create without an idempotency key draws none that could run out."""
    name = f"unique-{type(client).__name__}"
    made = await client.create(name, 1, unique="u")
    again = await client.create(name, 2, unique=Unique("u", on="replace", debounce=60, max_wait=90))
    [many] = await client.create_many([NewTask(name, 3, unique=Unique("u", on="replace"))])
    with pytest.raises(Refused, match=f"held by task {made.id}") as caught:
        await client.create(name, 4, unique=Unique("u", on="reject"))

    assert ["created", "replaced", "replaced"] == [each.unique for each in (made, again, many)]
    assert {made.id} == {each.id for each in (made, again, many)}
    assert ("u", 2, "3") == (many.unique_key, many.revision, many.payload)
    assert timedelta(seconds=60) == again.ready_at - again.updated_at
    assert ("unique-conflict", made.id) == (caught.value.code, caught.value.task_id)


async def test_many_are_created_in_chunks_each_for_itself(client: Any) -> None:
    """Outcomes are in the tasks' order, and a refused task does not affect the others."""
    tasks = [NewTask("many" if n != 3 else "not a command", n) for n in range(7)]
    outcomes = await client.create_many(tasks, chunk=2)

    assert 3 == [type(each) for each in outcomes].index(NotCreated)
    assert list("012456") == [each.payload for each in outcomes if isinstance(each, TaskRecord)]
    assert ("invalid-command", 3) == (outcomes[3].code, outcomes[3].task.payload)
    assert not outcomes[3].retryable


async def test_chunks_are_no_larger_than_a_broker_takes(client: Any) -> None:
    """Payloads too large for one request are sent in several."""
    outcomes = await client.create_many(NewTask("large", "x" * 400_000) for _ in range(5))
    too_large = await client.create_many([NewTask("large", "x" * 2_000_000), NewTask("large", 1)])

    assert all(isinstance(each, TaskRecord) for each in outcomes)
    assert [NotCreated, TaskRecord] == [type(each) for each in too_large]
    assert "body-too-large" == too_large[0].code


async def test_a_task_not_created_can_be_created_again(client: Any) -> None:
    """It has its key, so no second task is created."""
    [first] = await client.create_many([NewTask("again", 1, idempotency_key="once")])
    [conflict] = await client.create_many([NewTask("again", 2, idempotency_key="once")])
    [again] = await client.create_many([NewTask("again", 1, idempotency_key="once")])

    assert "idempotency-conflict" == conflict.code
    assert NewTask("again", 2, idempotency_key="once") == conflict.task
    assert first.id == again.id


async def test_a_token_that_may_not_create_fails_the_whole_call(broker: LocalBroker) -> None:
    """No task was created, so the whole call is refused."""
    async with Client([broker.url], token="nobody's") as client:
        with pytest.raises(Refused, match="invalid token") as caught:
            await client.create_many([NewTask("c", 1)])

    assert 401 == caught.value.status


async def test_a_wait_is_over_when_the_task_ends(client: Any, leases: Leases) -> None:
    """The wait returns the result without polling for the task's end."""
    made = await client.create("waited", 1)
    async with asyncio.TaskGroup() as both:
        waiting = both.create_task(client.wait(made.id, timeout_s=inf))
        await _completed(leases, "waited", b'{"done":true}')

    ended = waiting.result()
    assert (made.id, State.DONE, {"done": True}) == (ended.task.id, ended.task.state, ended.value)


async def test_a_wait_that_is_over_before_the_task_says_so(client: Any) -> None:
    """The task goes on; the error is a timeout, without the broker's refusal above it."""
    made = await client.create("patient", 1)
    with pytest.raises(TimeoutError, match=f"{made.id} has not ended after 0.5 s") as over:
        await client.wait(made.id, timeout_s=0.5)
    with pytest.raises(NotFinished):
        await client.wait(made.id, timeout_s=0)

    with pytest.raises(ValueError, match="timeout_s: must be a number"):
        await client.wait(made.id, timeout_s=nan)
    with pytest.raises(ValueError, match="finite number of seconds"):
        await client.create("patient", 2, delay=inf)
    assert "result not found" not in "".join(format_exception(over.value))
    assert (await client.task(made.id)).state is State.READY


async def test_a_failed_task_has_no_value(client: Any, leases: Leases) -> None:
    """Reading its value raises the error."""
    made = await client.create("failing", 1)
    [task] = await leases.claim(["failing"], lease_s=60)
    await leases.fail(task, "no cat in the picture")
    ended = await client.wait(made.id)

    assert (
        False,
        "no cat in the picture",
        State.FAILED,
    ) == (ended.ok, ended.error, ended.task.state)
    with pytest.raises(TaskFailed, match="no cat in the picture") as caught:
        _ = ended.value
    assert ended == caught.value.result


async def test_a_call_can_be_made_and_waited_for_at_once(client: Any, leases: Leases) -> None:
    """The call returns the result like a function whose work is done elsewhere."""
    async with asyncio.TaskGroup() as both:
        calling = both.create_task(client.create_and_wait("called", {"n": 1}, timeout_s=30))
        await _completed(leases, "called", b"2")

    assert 2 == calling.result().value


async def test_a_task_is_explained_and_cancelled(client: Any) -> None:
    """A cancelled task has ended, and a second cancel is refused."""
    made = await client.create("cancelled", 1)
    before = await client.explain(made.id)
    await client.cancel(made.id)
    ended = await client.wait(made.id, timeout_s=0)
    with pytest.raises(Refused) as caught:
        await client.cancel(made.id)

    assert ("no-claim", True) == (before.reason, before.waiting)
    assert (False, "CANCELLED") == (ended.ok, ended.error)
    assert "already-terminal" == caught.value.code


async def test_an_unknown_task_is_not_found(client: Any) -> None:
    """Waiting for it fails too, because the wait would never end."""
    nobody = "00000000-0000-0000-0000-000000000000"
    for asking in (client.task(nobody), client.wait(nobody)):
        with pytest.raises(Refused) as caught:
            await asking

        assert "not-found" == caught.value.code


async def test_a_payload_that_cannot_be_encoded_is_an_error_before_anything_is_sent(
    client: Any,
) -> None:
    """None of the other tasks is created either."""
    with pytest.raises(TypeError):
        await client.create_many([NewTask("c", 1), NewTask("c", object())])
    with pytest.raises(ValueError, match="idempotency_key"):
        await client.create("c", 1, idempotency_key="")


async def test_a_task_of_several_that_cannot_be_taken_now_is_sent_again() -> None:
    """Its shard has no leader for a moment; the other tasks are not created twice."""
    asked: list[list[str]] = []

    async def handler(request: Any) -> Any:
        keys = [task["idempotencyKey"] for task in (await request.json())["tasks"]]
        asked.append(keys)
        made = msgspec.to_builtins(_TASK)
        results = [{"task": made} for _ in keys]
        if len(asked) == 1:
            results[1] = {"error": "no leader for shard", "code": "no-leader"}
        return web.json_response({"results": results})

    async with serve(handler) as url, Client([url], token="t", discover=False) as client:
        outcomes = await client.create_many([NewTask("c", n) for n in range(3)])

    assert [_TASK] * 3 == outcomes
    assert [asked[0], [asked[0][1]]] == asked


@pytest.mark.parametrize("then", [(503, "no-leader"), (401, "unauthorized")])
async def test_those_of_several_that_are_created_stay_so(then: tuple[int, str]) -> None:
    """Whatever becomes of the request that sends the others again."""
    asked: list[int] = []
    status, code = then

    async def handler(request: Any) -> Any:
        tasks = (await request.json())["tasks"]
        asked.append(len(tasks))
        if len(asked) > 1:
            return web.json_response({"error": "not now", "code": code}, status=status)
        results = [{"task": msgspec.to_builtins(_TASK)} for _ in tasks]
        results[1] = {"error": "who knows", "code": "outcome-unknown", "retryable": True}
        return web.json_response({"results": results})

    options: Any = {"token": "t", "discover": False, "deadline_s": 1.0}
    async with serve(handler) as url, Client([url], **options) as client:
        outcomes = await client.create_many([NewTask("c", n) for n in range(3)])

    assert [3, 1] == asked[:2]
    assert [TaskRecord, NotCreated, TaskRecord] == [type(each) for each in outcomes]
    assert isinstance(outcomes[1], NotCreated)
    assert ("who knows", "outcome-unknown") == (outcomes[1].error, outcomes[1].code)


async def test_the_first_half_of_too_many_stays_created() -> None:
    """If the request with the second half is refused."""

    async def handler(request: Any) -> Any:
        tasks = (await request.json())["tasks"]
        if len(tasks) > 1:
            return web.json_response({"error": "many", "code": "batch-too-large"}, status=400)
        if tasks[0]["payload"] == 1:
            return web.json_response({"error": "too many", "code": "over"}, status=429)
        return web.json_response({"results": [{"task": msgspec.to_builtins(_TASK)}]})

    async with serve(handler) as url, Client([url], token="t", discover=False) as client:
        made, refused = await client.create_many([NewTask("c", n) for n in range(2)])

    assert _TASK == made
    assert isinstance(refused, NotCreated)
    assert ("too many", "over", False) == (refused.error, refused.code, refused.retryable)


async def test_one_of_several_that_is_refused_says_why() -> None:
    """Its error has the detail, as that of a single create."""

    async def handler(_request: Any) -> Any:
        item = {"error": "invalid 'tags'", "code": "invalid-tags", "detail": "no colon"}
        return web.json_response({"results": [item]})

    async with serve(handler) as url, Client([url], token="t", discover=False) as client:
        [refused] = await client.create_many([NewTask("c", 1, tags={"a:b": "c"})])

    assert isinstance(refused, NotCreated)
    assert "invalid 'tags': no colon" == refused.error
