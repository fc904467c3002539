"""Keeping: a worker's requests about the leases that it holds, and what they do to its handlers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import pytest
from aiohttp import web
from msgspec import UNSET, structs

from codeq_cluster.client import CancelRecord, Ended, Ending, Fail, Reject, Retry, Task, Worker
from tests.unit.client.servers import serve

_LOST = {"error": "lease-lost", "code": "lease-lost"}
_BUSY = {"error": "no leader", "code": "no-leader"}
_ROUTE = "/tasks/batch/heartbeats"


class _Broker:
    """Hands tasks out, and answers heartbeats as the test says.

    Attributes:
        knows_batches: Whether it has the route; nodes of earlier releases do not.
        answers: By task, what the next heartbeats are answered, in turn; `{}` after them.
        heard: Each batch of heartbeats, as task ids with what is asked about each.
        waits: How long each of them asked to wait.
        single: The tasks that single heartbeats were about.
        known: Of each lease of a batch: whether the worker said that it knows of a cancel.
        said: What was said of tasks, in the order of the requests: task, field, value.
        calls: Each request about a task, in order; a batch is `batch`.
        idle: Set while a batch waits with nothing to say.
    """

    def __init__(self, *ids: str) -> None:
        self.left = list(ids)
        self.knows_batches = True
        self.answers: dict[str, list[dict[str, object]]] = {}
        self.heard: list[dict[str, object]] = []
        self.waits: list[int] = []
        self.single: list[str] = []
        self.known: list[bool] = []
        self.said: list[tuple[str, str, object]] = []
        self.calls: list[str] = []
        self.idle = asyncio.Event()
        self.told = asyncio.Event()
        self.left_behind: object = None
        self._news = asyncio.Event()

    def say(self, task_id: str, answer: dict[str, object]) -> None:
        """Answer the next heartbeat of a task so, also one that waits."""
        self.answers.setdefault(task_id, []).append(answer)
        self._news.set()

    @asynccontextmanager
    async def working(self, handler: Any, **settings: Any) -> AsyncIterator[list[Ended]]:
        """Let a worker take all tasks at once; yields how they ended, complete on leaving."""
        ended: list[Ended] = []
        count = len(self.left)
        async with serve(self._answer) as url, asyncio.TaskGroup() as group:
            worker = Worker(
                [url], token="t", discover=False, concurrency=count, ended=ended.append, **settings
            )
            worker.task("greet")(handler)
            group.create_task(worker.serve(tasks_max=count))
            yield ended

    async def _answer(self, request: web.Request) -> web.Response:
        if request.path.endswith(_ROUTE):
            return await self._beats(request) if self.knows_batches else web.Response(status=404)
        if request.path.endswith("/claim/batch"):
            tasks, self.left = [_task(each, self.left_behind) for each in self.left], []
            return web.json_response({"tasks": tasks})
        *_, task_id, verb = request.path.split("/")
        self.calls.append(verb)
        if verb == "heartbeat":
            self.single.append(task_id)
            self._hear(task_id, await request.json())
            answer = self._next(task_id)
            return web.json_response(answer, status=409 if answer else 200)
        return web.json_response({"status": "requeued"})

    async def _beats(self, request: web.Request) -> web.Response:
        body = await request.json()
        asked = {each["id"]: each.get("extendSeconds", "watch") for each in body["leases"]}
        for each in body["leases"]:
            self.known.append(each.get("knowsCancel", False))
            self._hear(each["id"], each)
        self.calls.append("batch")
        self.heard.append(asked)
        self.waits.append(body["waitSeconds"])
        if body["waitSeconds"] and not any(map(self.answers.get, asked)):
            self._news.clear()
            self.idle.set()
            async with asyncio.timeout(body["waitSeconds"]):
                await self._news.wait()
        return web.json_response({"leases": [self._next(each) for each in asked]})

    def _hear(self, task_id: str, fields: dict[str, object]) -> None:
        for name in ("progress", "checkpoint", "log"):
            if name in fields:
                self.said.append((task_id, name, fields[name]))
                self.told.set()

    def _next(self, task_id: str) -> dict[str, object]:
        answers = self.answers.get(task_id)
        return answers.pop(0) if answers else {}


def _task(task_id: str, left: object = None) -> dict[str, object]:
    return ({} if left is None else {"checkpoint": left}) | {
        "id": task_id,
        "command": "greet",
        "payload": "{}",
        "attempts": 1,
        "maxAttempts": 5,
        "leaseToken": 77,
        "status": "IN_PROGRESS",
        "createdAt": "2026-01-31T12:00:00Z",
        "updatedAt": "2026-01-31T12:00:00Z",
    }


async def _for_ever(_: Task) -> None:
    await asyncio.Event().wait()


async def test_a_new_lease_is_watched_at_once_and_its_loss_ends_the_handler() -> None:
    """Before the first beat nothing is renewed; the other handler works on."""
    broker = _Broker("a", "b")
    go_on = asyncio.Event()

    async def handler(task: Task) -> int:
        await (asyncio.Event() if task.id == "a" else go_on).wait()
        return 1

    async with broker.working(handler, lease_s=9) as ended:
        await broker.idle.wait()
        broker.say("a", _LOST)
        broker.idle.clear()
        await broker.idle.wait()
        go_on.set()

    assert {"a": Ending.LOST, "b": Ending.COMPLETED} == {e.task.id: e.ending for e in ended}
    assert [{"a": "watch", "b": "watch"}, {"b": "watch"}] == broker.heard[:2]
    assert all(broker.waits[:2])


async def test_each_beat_renews_all_leases_in_one_request() -> None:
    """A lease of 3 s has beats of 1 s, which leave no whole second to wait."""
    ids = [f"t{n}" for n in range(100)]
    broker = _Broker(*ids)
    for each in ids:
        broker.answers[each] = [{}, _LOST]
    async with broker.working(_for_ever, lease_s=3) as ended:
        pass

    # An answer that is late is asked for again, about all of them.
    assert len(broker.heard) >= 2
    assert all(each == dict.fromkeys(ids, 3) for each in broker.heard)
    assert [Ending.LOST] * 100 == [each.ending for each in ended]


async def test_more_leases_than_a_request_takes_have_more_requests() -> None:
    """A thousand leases are one request, the next is in a second one."""
    ids = [f"t{n}" for n in range(1001)]
    broker = _Broker(*ids)
    for each in ids:
        # Again, if the worker was too busy to wait for the first answer.
        broker.answers[each] = [_LOST] * 100
    async with broker.working(_for_ever, lease_s=12):
        pass

    assert 1000 == max(map(len, broker.heard))
    assert set(ids) == set().union(*broker.heard)


async def test_an_error_that_passes_leaves_the_lease_to_the_next_request() -> None:
    """Only what was not renewed is renewed again; the handler hears nothing."""
    broker = _Broker("a", "b")
    broker.answers = {"a": [_BUSY, {}, _LOST], "b": [{}, {}, _LOST]}
    async with broker.working(_for_ever, lease_s=3) as ended:
        pass

    assert {"a": 3, "b": 3} == broker.heard[0]
    assert {"a": 3, "b": "watch"} == broker.heard[1]
    assert [Ending.LOST] * 2 == [each.ending for each in ended]


async def test_a_node_of_an_earlier_release_gets_a_heartbeat_for_each_lease() -> None:
    """It has no route for all of them; a loss still ends the handler."""
    broker = _Broker("a", "b")
    broker.knows_batches = False
    broker.answers = {"a": [{}, _LOST], "b": [_LOST]}
    async with broker.working(_for_ever, lease_s=3) as ended:
        pass

    assert [] == broker.heard
    assert ["a", "a", "b"] == sorted(broker.single)
    assert [Ending.LOST] * 2 == [each.ending for each in ended]


async def test_a_lease_that_nobody_answers_for_ends_with_its_time() -> None:
    """Another worker may have the task by then, so the handler is ended."""
    broker = _Broker("a")
    broker.answers = {"a": [_BUSY] * 100}
    async with broker.working(_for_ever, lease_s=3) as ended:
        pass

    [end] = ended
    assert (Ending.LOST, True) == (end.ending, "without an answer" in end.note)


async def test_a_handler_in_a_thread_is_told_too() -> None:
    """Its task is lost, and its thread is let go when it ends."""
    broker = _Broker("a")
    broker.answers = {"a": [_LOST]}

    def handler(task: Task) -> None:
        while not task.cancelled:
            pass

    async with broker.working(handler, lease_s=3) as ended:
        pass

    assert [Ending.LOST] == [each.ending for each in ended]


async def test_a_handler_that_is_to_end_hears_why_and_may_end_in_time() -> None:
    """Its lease is kept meanwhile, and the next waits are told that the worker knows it."""
    broker = _Broker("a")
    heard: list[tuple[bool, CancelRecord | None]] = []

    async def handler(task: Task) -> int:
        heard.append((task.cancelled, task.cancel_asked))
        await broker.idle.wait()
        broker.say("a", {"cancel": {"reason": "why", "deadline": "2026-01-31T12:00:30Z"}})
        broker.idle.clear()
        await broker.idle.wait()
        heard.append((task.cancelled, task.cancel_asked))
        return 1

    async with broker.working(handler, lease_s=9) as ended:
        pass

    deadline = datetime(2026, 1, 31, 12, 0, 30, tzinfo=UTC)
    assert [(False, None), (True, CancelRecord(reason="why", deadline=deadline))] == heard
    assert [Ending.COMPLETED] == [each.ending for each in ended]
    assert [False, True] == broker.known[:2]


async def test_what_handlers_say_is_reported_soon_and_together() -> None:
    """The last word of each counts; a handler in a thread has its say too."""
    broker = _Broker("a", "b")
    go_on = threading.Event()

    def handler(task: Task) -> int:
        for n in range(1000):
            task.progress(n, 1000, "ü" * 600)
            task.save({"line": n})
        assert go_on.wait(20)
        return 1

    async with broker.working(handler, lease_s=60) as ended:
        while len([value for _, _, value in broker.said if value == {"line": 999}]) < 2:
            broker.told.clear()
            await broker.told.wait()
        go_on.set()

    last = {(task, name): value for task, name, value in broker.said}
    progress = {"done": 999, "total": 1000, "note": "ü" * 512}
    assert {
        ("a", "progress"): progress,
        ("a", "checkpoint"): {"line": 999},
        ("b", "progress"): progress,
        ("b", "checkpoint"): {"line": 999},
    } == last
    assert [Ending.COMPLETED] * 2 == [each.ending for each in ended]
    assert len(broker.said) < 100


async def test_what_a_handler_said_last_is_reported_before_its_task_is_given_back() -> None:
    """The next delivery must find it, so it may not come after the nack."""
    broker = _Broker("a")

    def handler(task: Task) -> None:
        task.save([1, 2])
        raise Retry("later")

    async with broker.working(handler, lease_s=60) as ended:
        pass

    assert [("a", "checkpoint", [1, 2])] == broker.said
    assert "nack" == broker.calls[-1]
    assert [Ending.RETURNED] == [each.ending for each in ended]


@pytest.mark.parametrize("raised", [None, Fail("broken"), Retry("later"), Reject("never")])
async def test_the_last_lines_of_a_log_come_before_the_end(raised: Exception | None) -> None:
    """However the task ends, and as few as there are; each report has at most its bound."""
    broker = _Broker("a")

    def handler(task: Task) -> int:
        for n in range(45):
            task.log(f"line {n}")
        if raised is not None:
            raise raised
        return 1

    async with broker.working(handler, lease_s=60):
        pass

    reports = [value for _, name, value in broker.said if name == "log"]
    assert all(isinstance(each, list) and len(each) <= 20 for each in reports)
    assert [f"line {n}" for n in range(45)] == [line for each in reports for line in each]  # type: ignore[attr-defined]
    ends = {Retry: "nack", Reject: "reject"}
    assert ends.get(type(raised), "result") == broker.calls[-1]  # type: ignore[arg-type]


async def test_a_silent_handler_costs_no_request_at_its_end() -> None:
    """Only its result is sent, as if there were no logs."""
    broker = _Broker("a")

    async with broker.working(lambda task: 1, lease_s=60):
        pass

    assert ["result"] == broker.calls


async def test_a_log_that_is_not_taken_costs_the_task_nothing() -> None:
    """What a node refuses is lost, and the result is sent all the same."""
    broker = _Broker("a")
    broker.answers = {"a": [{"error": "no", "code": "upgrade-under-way"}] * 9}

    def handler(task: Task) -> int:
        task.log("unheard")
        return 1

    async with broker.working(handler, lease_s=60) as ended:
        pass

    assert "result" == broker.calls[-1]
    assert [Ending.COMPLETED] == [each.ending for each in ended]


async def test_a_long_log_is_reported_while_the_handler_works() -> None:
    """In as many requests as it needs, each a second after the other."""
    broker = _Broker("a")
    go_on = asyncio.Event()

    async def handler(task: Task) -> int:
        task.log("\n".join(str(n) for n in range(30)))
        await go_on.wait()
        return 1

    async with broker.working(handler, lease_s=60):
        while len(broker.said) < 2:
            broker.told.clear()
            await broker.told.wait()
        go_on.set()

    assert [20, 10] == [len(value) for _, _, value in broker.said]  # type: ignore[arg-type]
    assert 2 == broker.calls.count("batch")


async def test_a_report_that_is_not_taken_for_now_is_made_again() -> None:
    """One that is refused for good is not; the handler hears of neither."""
    broker = _Broker("a", "b")
    broker.answers = {"a": [_BUSY], "b": [{"error": "no", "code": "upgrade-under-way"}]}
    go_on = asyncio.Event()

    async def handler(task: Task) -> int:
        task.progress(1)
        await go_on.wait()
        return 1

    async with broker.working(handler, lease_s=60) as ended:
        while [each for each, _, _ in broker.said].count("a") < 2:
            broker.told.clear()
            await broker.told.wait()
        go_on.set()

    assert ["a", "a", "b"] == sorted(each for each, _, _ in broker.said)
    assert [Ending.COMPLETED] * 2 == [each.ending for each in ended]


async def test_a_handler_gets_what_the_last_delivery_has_left() -> None:
    """As plain values; None if it has left nothing, and what cannot be left is an error."""
    broker = _Broker("a")
    broker.left_behind = {"line": 7}
    found: list[object] = []

    def handler(task: Task) -> None:
        found.append(task.checkpoint)
        found.append(
            replace(task, record=structs.replace(task.record, checkpoint=UNSET)).checkpoint
        )
        for left in (None, "x" * 65_535):
            with pytest.raises(ValueError, match="save"):
                task.save(left)
        for bad in (-1, 2**48):
            with pytest.raises(ValueError, match="negative"):
                task.progress(bad)
        for odd in (0.5, Fraction(1, 2)):
            with pytest.raises(TypeError):
                task.progress(odd)  # type: ignore[arg-type]

    async with broker.working(handler, lease_s=60) as ended:
        pass

    assert [{"line": 7}, None] == found
    assert [Ending.COMPLETED] == [each.ending for each in ended]
    assert [] == broker.said


class _Whole:
    """A whole number of another library's, such as NumPy's."""

    def __index__(self) -> int:
        return 7


async def test_what_a_handler_says_may_be_of_other_types() -> None:
    """A number that counts is one, and a line is what its value shows: the worker goes on."""
    broker = _Broker("a")
    go_on = asyncio.Event()

    async def handler(task: Task) -> int:
        task.progress(_Whole(), 9)  # type: ignore[arg-type]
        task.log(ValueError("odd"))  # type: ignore[arg-type]
        await go_on.wait()
        return 1

    async with broker.working(handler, lease_s=60) as ended:
        await broker.told.wait()
        go_on.set()

    said = {name: value for _, name, value in broker.said}
    assert {"progress": {"done": 7, "total": 9, "note": ""}, "log": ["odd"]} == said
    assert [Ending.COMPLETED] == [each.ending for each in ended]


async def test_an_ended_task_shows_the_last_progress() -> None:
    """Its end does not overtake what was said just before."""
    broker = _Broker("a")

    async def handler(task: Task) -> int:
        task.progress(1, 10)
        await broker.told.wait()  # The next report is a second later.
        task.progress(10, 10)
        return 1

    async with broker.working(handler, lease_s=60) as ended:
        pass

    assert ("a", "progress", {"done": 10, "total": 10, "note": ""}) in broker.said
    assert "result" == broker.calls[-1]
    assert [Ending.COMPLETED] == [each.ending for each in ended]
