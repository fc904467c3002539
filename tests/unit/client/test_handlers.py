"""Handlers: their arguments and exceptions, on a real broker."""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from msgspec import Raw

from codeq_cluster.client import (
    Ended,
    Ending,
    Fail,
    MsgspecCodec,
    Reject,
    Retry,
    State,
    Task,
    Worker,
)
from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.testing.broker import LocalBroker
from tests.harness.http import HttpClient
from tests.harness.waiting import until


@dataclass
class Resize:
    """A typed payload."""

    width: int


@dataclass
class Crop:
    """Another type with the same JSON."""

    width: int


class RateLimited(Exception):
    """Raised by a handler whose service is overloaded."""


class TooFast(RateLimited):
    """A subclass of it."""


class _GaveUp(BaseException):
    """Raised by a library whose time is over."""


class _Callable:
    """A callable object as a handler."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    async def __call__(self, task: Task[Resize]) -> int:
        self.seen.append(task.payload)
        return task.payload.width


async def _handled(
    broker: LocalBroker, command: str, handler: Any, payload: object = 1, **options: Any
) -> tuple[Any, Ended]:
    """Let a handler process one task; return the task and how the delivery ended."""
    command = f"{command}.{uuid4()}"  # That of another case may be ready again.
    endings: list[Ended] = []
    worker = broker.worker(ended=endings.append)
    worker.task(command, **options)(handler)
    async with broker.client() as client:
        made = await client.create(command, payload)
        await worker.serve(tasks_max=1)
        return await client.task(made.id), endings[0]


async def test_a_payload_is_read_as_the_type_the_handler_names(broker: LocalBroker) -> None:
    """The handler also sees which delivery it has."""
    seen: list[Task[Resize]] = []

    async def handler(task: Task[Resize]) -> Resize:
        seen.append(task)
        return task.payload

    record, ended = await _handled(broker, "typed-payload", handler, Resize(640))
    [task] = seen

    assert ended.ending is Ending.COMPLETED
    assert (Resize(640), record.command, record.id) == (task.payload, task.command, task.id)
    assert (1, 5, False) == (task.attempt, task.attempts_max, task.cancelled)
    assert task.lease_token > 0


async def test_a_payload_without_a_type_is_plain(broker: LocalBroker) -> None:
    """A handler without a type gets dicts, lists, strings and numbers."""
    seen: list[object] = []

    async def bare(task) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        seen.append(task.payload)

    async def unsaid(task: Task) -> None:  # type: ignore[type-arg]
        seen.append(task.payload)

    async def anything(task: Any) -> None:
        seen.append(task.payload)

    for handler in (bare, unsaid, anything):
        await _handled(broker, "plain-payload", handler, {"n": [1, "2"]})

    assert [{"n": [1, "2"]}] * 3 == seen


async def test_a_handler_may_be_anything_that_can_be_called(broker: LocalBroker) -> None:
    """An object, a partial function and a method all work."""
    whole = _Callable()

    async def scaled(factor: int, task: Task[Resize]) -> int:
        return factor * task.payload.width

    for handler in (whole, functools.partial(scaled, 2), whole.__call__):
        _, ended = await _handled(broker, "callable", handler, Resize(3))
        assert ended.ending is Ending.COMPLETED

    assert [Resize(3)] * 2 == whole.seen


async def test_a_payload_of_another_form_is_tried_again(broker: LocalBroker) -> None:
    """A worker of another release may be able to read it; the handler is not called."""

    async def handler(task: Task[Resize]) -> None:
        raise AssertionError(task)

    record, ended = await _handled(broker, "other-form", handler, {"width": "wide"})

    assert ended.ending is Ending.RETURNED
    assert ended.note.startswith("the payload cannot be read: Expected `int`, got `str`")
    assert ended.note == record.history[0].error


async def test_a_function_runs_in_a_thread_and_keeps_the_context(broker: LocalBroker) -> None:
    """The event loop goes on meanwhile."""
    here = threading.get_ident()
    seen: list[object] = []
    variable: ContextVar[str] = ContextVar("variable", default="")
    variable.set("kept")

    def handler(task: Task[int]) -> int:
        seen.extend((threading.get_ident() != here, variable.get()))
        return task.payload + 1

    _, ended = await _handled(broker, "threaded", handler, 41)

    assert ended.ending is Ending.COMPLETED
    assert [True, "kept"] == seen


@pytest.mark.parametrize("raised", [StopIteration("odd"), ValueError("odd")])
async def test_an_exception_in_a_thread_gives_the_task_back(
    broker: LocalBroker, raised: Exception
) -> None:
    """StopIteration, which a future refuses, is raised like any other exception."""

    def handler(_: Task[int]) -> None:
        raise raised

    _, ended = await _handled(broker, "raising-thread", handler)

    assert ended.ending is Ending.RETURNED
    assert "odd" in ended.note


@pytest.mark.parametrize(
    ("raised", "ending", "note", "delay"),
    [
        (Fail("no cat"), Ending.FAILED, "no cat", None),
        (Retry("later", after=timedelta(minutes=7)), Ending.RETURNED, "later", 420),
        (TooFast("slow down"), Ending.RETURNED, "TooFast: slow down", 60),
        (KeyError("cat"), Ending.FAILED, "there is no such picture: KeyError: 'cat'", None),
    ],
)
async def test_an_exception_has_the_meaning_of_its_nearest_type(
    broker: LocalBroker, raised: Exception, ending: Ending, note: str, delay: int | None
) -> None:
    """The nearest type in the exception's class hierarchy decides."""

    async def handler(_: Task[int]) -> None:
        raise raised

    errors = {RateLimited: Retry(after=60), LookupError: Fail("there is no such picture")}
    record, ended = await _handled(broker, "by-type", handler, errors=errors)

    assert (ending, note) == (ended.ending, ended.note)
    if delay is None:
        assert note == record.error
    else:
        waits = record.ready_at - record.history[0].ended_at
        assert timedelta(seconds=delay) == waits


class Unsayable(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise LookupError("no such text")


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (Retry("429", after="Wed, 21 Oct 2026 07:28:00 GMT"), "Retry: .* cannot be read: .*Wed"),  # type: ignore[arg-type]
        (Retry("429", after=None), "Retry: .* cannot be read: TypeError"),  # type: ignore[arg-type]
        (Retry("429", after=inf), "Retry: .* cannot be read: ValueError"),
        (Retry("429", after=1e300), "429"),
        (Unsayable(), "Unsayable: .* cannot be read: LookupError: no such text"),
        (TooFast(Unsayable()), "TooFast: .* cannot be read: LookupError"),
    ],
)
async def test_what_cannot_be_read_of_an_exception_gives_the_task_back(
    broker: LocalBroker, raised: Exception, reason: str
) -> None:
    """The worker goes on, and the reason says what could not be read."""

    async def handler(_: Task[int]) -> None:
        raise raised

    errors = {RateLimited: Retry(after=60)}
    record, ended = await _handled(broker, "unreadable", handler, errors=errors)

    assert Ending.RETURNED is ended.ending
    assert re.match(reason, record.history[0].error)


@pytest.mark.parametrize(
    ("kind", "state", "error"),
    [
        (Fail, State.FAILED, "?.pdf"),
        (Reject, State.DEAD, "?.pdf"),
        (OSError, State.DELAYED, "OSError: ?.pdf"),
    ],
)
async def test_a_text_that_json_does_not_take_is_sent_all_the_same(
    broker: LocalBroker,
    caplog: pytest.LogCaptureFixture,
    kind: type[Exception],
    state: State,
    error: str,
) -> None:
    """The name of a file may be half a character, and is in the errors about it."""
    # The processes of a test run do not send each other such a text, which their logs would have.
    caplog.set_level(logging.CRITICAL + 1, logger="codeq_cluster")

    def handler(_: Task[int]) -> None:
        raise kind("\udcff.pdf")

    record, _ = await _handled(broker, "half-a-character", handler)

    assert (state, error) == (record.state, record.error or record.history[0].error)


@pytest.mark.parametrize(
    ("raised", "is_async"),
    [
        (SystemExit, True),
        (SystemExit, False),
        (_GaveUp, True),
        (_GaveUp, False),
        (KeyboardInterrupt, False),  # In a coroutine it is the user's own, of the whole program.
    ],
)
async def test_a_handler_that_exits_gives_its_task_back(
    broker: LocalBroker, raised: type[BaseException], *, is_async: bool
) -> None:
    """A library that gives up does not end the worker, which would leave the task leased."""

    def handler(_: Task[int]) -> None:
        raise raised("no such device")

    async def as_coroutine(task: Task[int]) -> None:
        handler(task)

    _, ended = await _handled(broker, "exiting", as_coroutine if is_async else handler)

    assert Ending.RETURNED is ended.ending
    assert f"RuntimeError: the handler raised {raised('no such device')!r}" == ended.note


async def test_each_command_has_its_handler_and_the_rest_may_have_one(tmp_path: Path) -> None:
    """`*` takes the commands without their own handler."""
    seen: list[tuple[str, str]] = []
    with LocalBroker(tmp_path) as broker:
        await _work_off_three(broker, seen)

    assert [("named", "one-of"), ("named", "two-of"), ("rest", "three-of")] == sorted(seen)


async def _work_off_three(broker: LocalBroker, seen: list[tuple[str, str]]) -> None:
    worker = broker.worker()

    @worker.task("one-of", "two-of")
    async def named(task: Task[int]) -> None:
        seen.append(("named", task.command))

    @worker.task("*")
    async def rest(task: Task[int]) -> None:
        seen.append(("rest", task.command))

    async with broker.client() as client:
        for command in ("one-of", "two-of", "three-of"):
            await client.create(command, 1)
    await worker.serve(tasks_max=3)


async def test_a_handler_gets_what_a_producer_spells_in_another_case(broker: LocalBroker) -> None:
    """Queues ignore case, so this is the queue of the handler, and takes no second one."""
    seen: list[str] = []
    worker = broker.worker()

    @worker.task("Spelled-Apart")
    async def handler(task: Task[int]) -> None:
        seen.append(task.command)

    with pytest.raises(ConfigInvalid, match="it has a handler"):
        worker.task("spelled-apart")
    async with broker.client() as client:
        made = await client.create("spelled-apart", 1)
        await worker.serve(tasks_max=1)
        record = await client.task(made.id)

    assert ["spelled-apart"] == seen
    assert State.DONE is record.state


async def test_a_codec_of_one_s_own_reads_and_writes(broker: LocalBroker) -> None:
    """Payloads need not be read by msgspec."""

    class Upper(MsgspecCodec):
        def encode(self, value: object) -> bytes:
            return super().encode(str(value).upper())

        def decoder(self, wanted: type[Any]) -> Callable[[bytes], Any]:
            decode = super().decoder(wanted)
            return lambda text: decode(text).lower()

    async with broker.client(codec=Upper()) as client:
        worker = broker.worker(codec=Upper())

        @worker.task("codec")
        async def handler(task: Task[str]) -> str:
            return task.payload + "!"

        made = await client.create("codec", "hello")
        await worker.serve(tasks_max=1)
        ended = await client.wait(made.id)

    assert ('"HELLO"', b'"HELLO!"', "hello!") == (made.payload, ended.text, ended.value)


def _takes_nothing() -> None:
    raise AssertionError


def _takes_two(task: Task[int], more: int) -> None:
    raise AssertionError((task, more))


def _takes_a_number(task: int) -> None:
    raise AssertionError(task)


def _takes_either(task: Task[Resize | Crop]) -> None:
    raise AssertionError(task)


def _local() -> Any:
    @dataclass
    class Local:
        n: int

    def handler(task: Task[Local]) -> None:
        raise AssertionError(task)

    return handler


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (_takes_nothing, "takes 0 arguments; must take one Task"),
        (_takes_two, "takes 2 arguments"),
        (_takes_a_number, "must take Task or Task"),
        (_takes_either, "its payload: Type unions may not"),
        (_local(), "must be defined at the top of a module"),
    ],
)
def test_a_handler_that_could_never_be_called_is_refused(handler: Any, text: str) -> None:
    """The refusal comes at registration, not with the first task."""
    with pytest.raises(ConfigInvalid, match=text):
        Worker(["http://localhost"], token="t").task("c")(handler)


async def test_a_worker_that_cannot_work_is_refused() -> None:
    """Each error says what is allowed."""
    worker = Worker(["http://localhost"], token="t")
    with pytest.raises(ConfigInvalid, match="register one"):
        await worker.serve()
    with pytest.raises(ConfigInvalid, match="no command is named"):
        worker.task()
    worker.task("c")(lambda task: task)
    with pytest.raises(ConfigInvalid, match="it has a handler"):
        worker.task("d", "c")
    for wrong in ({"concurrency": 0}, {"lease_s": 2}, {"wait_s": -1}, {"silent_s_max": 5}):
        with pytest.raises(ConfigInvalid, match="must be"):
            Worker(["http://localhost"], token="t", **wrong)  # type: ignore[arg-type]


async def test_a_thread_whose_lease_is_lost_keeps_its_place_until_it_returns(
    broker: LocalBroker,
) -> None:
    """Its task's `cancelled` is true; no other task takes its slot meanwhile."""
    entered, go_on = threading.Event(), threading.Event()
    endings: asyncio.Queue[Ended] = asyncio.Queue()
    seen: list[tuple[str, bool]] = []
    worker = broker.worker(lease_s=3, ended=endings.put_nowait)

    @worker.task("stuck")
    def handler(task: Task[str]) -> None:
        entered.set()
        go_on.wait(30)
        seen.append((task.payload, task.cancelled))

    async with broker.client() as client, asyncio.TaskGroup() as group:
        first = await client.create("stuck", "first")
        serving = group.create_task(worker.serve(tasks_max=2))
        await asyncio.to_thread(entered.wait, 30)
        await client.cancel(first.id)
        lost = await endings.get()
        await client.create("stuck", "second")
        explained = await client.explain(first.id)
        running_meanwhile = worker.running
        go_on.set()
        await serving

    assert (Ending.LOST, first.id) == (lost.ending, lost.task.id)
    assert "cancelled" == explained.reason
    assert 1 == running_meanwhile
    assert [("first", True), ("second", False)] == seen


async def test_health_fails_while_no_claim_is_answered(broker: LocalBroker) -> None:
    """A supervisor sees a silent broker; a worker that waits for work is healthy."""
    worker = broker.worker(health_port=0, wait_s=1, silent_s_max=2)
    worker.task("healthy")(_Callable())

    async def answer(port: int) -> tuple[int, Any]:
        async with HttpClient() as http:
            found = await http.send("GET", f"http://127.0.0.1:{port}", "/healthz")
        return found.status, found.json

    async with asyncio.TaskGroup() as group:
        group.create_task(worker.serve())

        async def is_claiming() -> bool:
            return worker.health.silent_s > 0

        await until(is_claiming, what="a claim")
        well = await answer(worker.health.port)
        worker.stop()
    lonely = Worker(["http://127.0.0.1:1"], token="t", health_port=0, wait_s=0, silent_s_max=1)
    lonely.task("c")(_Callable())
    async with asyncio.TaskGroup() as group:
        group.create_task(lonely.serve())

        async def fails() -> tuple[int, Any] | None:
            found = await answer(lonely.health.port) if lonely.health.silent_s > 1 else (200, None)
            return found if found[0] != 200 else None

        ill = await until(fails, what="an ill worker")
        lonely.stop()

    assert (200, "ok") == (well[0], well[1]["status"])
    assert (503, "no claim is answered") == (ill[0], ill[1]["status"])


async def test_a_result_may_be_json_already(broker: LocalBroker) -> None:
    """It is sent digit for digit."""

    async def handler(task: Task[Raw]) -> Raw:
        return task.payload

    text = b'{"n": 12345678901234567890.5}'
    async with broker.client() as client:
        made = await client.create("raw-result", Raw(text))
        worker = broker.worker()
        worker.task("raw-result")(handler)
        await worker.serve(tasks_max=1)
        ended = await client.wait(made.id)

    assert text == ended.text
