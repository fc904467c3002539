"""Timeouts: a handler that runs too long, as a coroutine and in a thread, on a real broker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from codeq_cluster.client import Ended, Ending, HandlersStuck, HandlerTimeout, NewTask, Task
from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.testing.broker import LocalBroker

_LIMIT_S = 0.05


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Return an event that blocked handlers wait for; it comes at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


class _Handlers:
    """Handlers that go on until they are asked to end."""

    def __init__(self) -> None:
        self.asked = 0

    async def coroutine(self, _: Task[int]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.asked += 1

    def thread(self, task: Task[int]) -> str:
        while not task.cancelled:
            pass
        self.asked += 1
        return "too late"

    async def stubborn(self, task: Task[int]) -> None:
        with suppress(asyncio.CancelledError):
            await self.coroutine(task)
        await asyncio.Event().wait()


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_handler_out_of_time_ends_and_its_attempt_counts(
    broker: LocalBroker, kind: str
) -> None:
    """The handler is asked to end, and the task is delivered again with that reason."""
    handlers = _Handlers()
    endings: list[Ended] = []
    worker = broker.worker(ended=endings.append)
    worker.task(f"late-{kind}", timeout=timedelta(seconds=_LIMIT_S))(getattr(handlers, kind))
    async with broker.client() as client:
        made = await client.create(f"late-{kind}", 1)
        await worker.serve(tasks_max=1)
        task = await client.task(made.id)
    reason = "HANDLER_TIMEOUT: it ran longer than 0.05 s, the handler's limit"

    assert 1 == handlers.asked
    assert (Ending.RETURNED, reason) == (endings[0].ending, endings[0].note)
    assert isinstance(endings[0].error, HandlerTimeout)
    assert [("NACKED", reason)] == [(each.outcome, each.error) for each in task.history]
    assert 1 == task.attempts


async def test_the_last_attempt_out_of_time_is_a_dead_letter(broker: LocalBroker) -> None:
    """The reason of the death is the time limit, here the worker's."""
    worker = broker.worker(timeout=_LIMIT_S)
    worker.task("last")(_Handlers().coroutine)
    async with broker.client() as client:
        made = await client.create("last", 1, max_attempts=1)
        await worker.serve(tasks_max=1)
        result = await client.wait(made.id, timeout_s=0)

    assert "HANDLER_TIMEOUT: it ran longer than 0.05 s, the worker's limit" == result.error


async def test_a_task_s_limit_counts_when_it_is_the_smaller(broker: LocalBroker) -> None:
    """A producer can shorten a handler's time, and cannot make it longer."""
    endings: list[Ended] = []
    worker = broker.worker(ended=endings.append, concurrency=2)
    worker.task("shortened")(_Handlers().coroutine)
    worker.task("not-longer", timeout=_LIMIT_S)(_Handlers().coroutine)
    async with broker.client() as client:
        await client.create_many(
            [
                NewTask("shortened", 1, timeout=timedelta(seconds=1)),
                NewTask("not-longer", 1, timeout=60, backoff="fixed", backoff_base=90),
            ]
        )
        await worker.serve(tasks_max=2)
        after = await client.task(endings[0].task.id)

    assert [
        ("not-longer", "HANDLER_TIMEOUT: it ran longer than 0.05 s, the handler's limit"),
        ("shortened", "HANDLER_TIMEOUT: it ran longer than 1 s, the task's limit"),
    ] == [(each.task.command, each.note) for each in endings]
    assert (60, "fixed", 90) == (
        after.timeout_seconds,
        after.backoff_policy,
        after.backoff_base_seconds,
    )
    assert after.ready_at is not None
    assert 90 == (after.ready_at - after.history[0].ended_at).total_seconds()


async def test_a_blocked_thread_gives_up_its_slot(
    broker: LocalBroker, released: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    """The next task is handled meanwhile; the log says where the thread is and that it goes on."""
    endings: list[Ended] = []
    # Long enough for its thread to be there when the limit passes, on a machine with other work.
    worker = broker.worker(ended=endings.append, timeout=1, overtime_s=0)

    @worker.task("blocked")
    def blocked_here(task: Task[str]) -> str:
        if task.payload == "first":
            released.wait(60)
        return "done"

    async with broker.client() as client:
        await client.create("blocked", "first")
        await client.create("blocked", "second")
        await worker.serve(tasks_max=2)

    assert [Ending.RETURNED, Ending.COMPLETED] == [each.ending for each in endings]
    assert "released.wait(60)" in caplog.text
    assert "codeq_cluster/client/threads.py" not in caplog.text, "only the author's own frames"
    assert "its handler still runs after its time limit; 1 of at most 1 such" in caplog.text


def _thread(released: threading.Event) -> Callable[[Task[int]], Any]:
    return lambda _: released.wait(60)


def _coroutine(released: threading.Event) -> Callable[[Task[int]], Any]:
    async def handler(_: Task[int]) -> None:
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.to_thread(released.wait, 60)

    return handler


@pytest.mark.parametrize("stuck", [_thread, _coroutine])
async def test_a_worker_full_of_handlers_that_cannot_be_ended_ends(
    broker: LocalBroker,
    released: threading.Event,
    stuck: Callable[[threading.Event], Callable[[Task[int]], Any]],
) -> None:
    """Its supervisor starts it again; every attempt was reported before."""
    worker = broker.worker(timeout=_LIMIT_S, overtime_s=0)
    worker.task(stuck.__name__)(stuck(released))
    async with broker.client() as client:
        made = [await client.create(stuck.__name__, 1, max_attempts=1) for _ in range(2)]
        with pytest.raises(HandlersStuck, match="as do 1 others"):
            await worker.serve()
        tasks = [await client.task(each.id) for each in made]
    released.set()  # The event loop of a test does not end before its coroutines.

    assert all(each.error.startswith("HANDLER_TIMEOUT") for each in tasks)


async def test_a_thread_whose_lease_is_lost_keeps_its_slot_only_for_its_time(
    broker: LocalBroker, released: threading.Event
) -> None:
    """A worker must not be full of threads whose tasks others have long finished."""
    entered = threading.Event()
    worker = broker.worker(lease_s=3, timeout=1.5, overtime_s=0)

    @worker.task("lost")
    def handler(task: Task[str]) -> None:
        if task.payload == "first":
            entered.set()
            released.wait(60)

    async with broker.client() as client, asyncio.TaskGroup() as group:
        first = await client.create("lost", "first")
        serving = group.create_task(worker.serve(tasks_max=2))
        await asyncio.to_thread(entered.wait, 30)
        await client.cancel(first.id)
        second = await client.create("lost", "second")
        result = await client.wait(second.id, timeout_s=30)
        await serving

    assert result.ok


@pytest.mark.parametrize("timeout", [0, -1, timedelta(days=367), float("nan")])
def test_a_time_limit_out_of_bounds_is_refused(broker: LocalBroker, timeout: Any) -> None:
    """A limit of 0 would end every handler, and none is not offered."""
    with pytest.raises(ConfigInvalid, match=r"timeout=.*must be above 0 s"):
        broker.worker(timeout=timeout)
    with pytest.raises(ConfigInvalid, match=r"timeout=.*must be above 0 s"):
        broker.worker().task("c", timeout=timeout)
