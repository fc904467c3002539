"""Worker: its reports of handlers' outcomes, and its reactions to a broker in trouble."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from msgspec import Raw

from codeq_cluster.client import (
    Ended,
    Ending,
    Fail,
    HandlerUnfit,
    Refused,
    Reject,
    Retry,
    Task,
    Unreachable,
    Worker,
)
from codeq_cluster.errors import ConfigInvalid

_LOST = {"error": "lease-lost", "code": "lease-lost", "retryable": False}
_BUSY = {"error": "overloaded", "code": "overloaded", "retryable": True}


class _Peer:
    """A server with the workers' routes, which hands tasks out and records requests.

    Attributes:
        tasks: Handed out, one per claim; after them, claims wait until the client leaves.
        refusals: By verb, the answers it gives before it behaves.
        heard: Each verb and body about a task, in order.
    """

    def __init__(self, *tasks: dict[str, object]) -> None:
        self.tasks = list(tasks)
        self.refusals: dict[str, list[tuple[int, dict[str, object]]]] = {}
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.claims: list[dict[str, Any]] = []
        self.idle = asyncio.Event()

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post("/v1/codeq/tasks/claim/batch", self._claim)
        app.router.add_post("/v1/codeq/tasks/{id}/{verb}", self._about)
        async with TestServer(app, handler_cancellation=True) as server:
            yield str(server.make_url(""))

    async def _claim(self, request: web.Request) -> web.Response:
        self.claims.append(await request.json())
        if refusal := self._refusal("claim"):
            return refusal
        if self.tasks:
            return web.json_response({"tasks": [self.tasks.pop(0)]})
        self.idle.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def _about(self, request: web.Request) -> web.Response:
        verb = request.match_info["verb"]
        self.heard.append((verb, json.loads(await request.text())))
        return self._refusal(verb) or web.json_response({"status": "requeued"})

    def _refusal(self, verb: str) -> web.Response | None:
        left = self.refusals.get(verb)
        if not left:
            return None
        status, body = left.pop(0)
        return web.json_response(body, status=status)


def _task(task_id: str = "t1", payload: str = '{"n": 1}') -> dict[str, object]:
    return {
        "id": task_id,
        "command": "greet",
        "payload": payload,
        "attempts": 1,
        "maxAttempts": 5,
        "leaseToken": 77,
        "status": "IN_PROGRESS",
        "createdAt": "2026-01-31T12:00:00Z",
        "updatedAt": "2026-01-31T12:00:00Z",
    }


def _worker(url: str, handler: Any, **settings: Any) -> Worker:
    """Return a worker with one handler."""
    worker = Worker([url], token="t", discover=False, **settings)
    worker.task("greet")(handler)
    return worker


async def _one(peer: _Peer, handler: Any, **settings: Any) -> Ended:
    """Run a worker for one task and return how it ended."""
    endings: list[Ended] = []
    async with peer.served() as url:
        await _worker(url, handler, ended=endings.append, **settings).serve(tasks_max=1)
    (ended,) = endings
    return ended


async def test_what_a_handler_returns_is_the_result() -> None:
    """It is sent with the lease token, and the claim named the worker's commands."""
    peer = _Peer(_task())

    async def handler(task: Task) -> object:
        return {"twice": task.payload["n"] * 2}

    ended = await _one(peer, handler)

    assert ended.ending is Ending.COMPLETED
    assert [
        ("result", {"status": "COMPLETED", "result": {"twice": 2}, "leaseToken": 77})
    ] == peer.heard
    assert (["greet"], 1) == (peer.claims[0]["commands"], peer.claims[0]["count"])


async def test_a_claim_names_commands_as_they_were_registered() -> None:
    """Tokens compare their case, although the task may come in another one."""
    peer = _Peer(_task())

    async def handler(_: Task) -> None:
        return None

    async with peer.served() as url:
        worker = Worker([url], token="t", discover=False)
        worker.task("Greet", "other")(handler)
        await worker.serve(tasks_max=1)

    assert ["Greet", "other"] == peer.claims[0]["commands"]
    assert ["result"] == [verb for verb, _ in peer.heard]


@pytest.mark.parametrize(
    ("result", "sent"), [(None, {}), (Raw(b" null "), {}), (Raw(b"[1]"), [1]), ("x", "x")]
)
async def test_a_result_is_never_null(result: object, sent: object) -> None:
    """The broker would treat null as no result; JSON text is sent unchanged."""
    peer = _Peer(_task())

    async def handler(_: Task) -> object:
        return result

    await _one(peer, handler)

    assert sent == peer.heard[0][1]["result"]


@pytest.mark.parametrize(
    ("raised", "verb", "fields", "ending"),
    [
        (Fail("no cat"), "result", {"status": "FAILED", "error": "no cat"}, Ending.FAILED),
        (Retry("later", after=8.1), "nack", {"reason": "later", "delaySeconds": 9}, None),
        (
            Retry("429", after=2, hold="key"),
            "nack",
            {"reason": "429", "delaySeconds": 2, "hold": "key"},
            None,
        ),
        (Retry(hold="queue"), "nack", {"reason": "", "hold": "queue"}, None),
        (Reject("no such cat"), "reject", {"reason": "no such cat"}, Ending.DEAD),
        (ValueError("odd"), "nack", {"reason": "ValueError: odd"}, None),
    ],
)
async def test_a_handlers_exception_decides_the_end(
    caplog: pytest.LogCaptureFixture,
    raised: Exception,
    verb: str,
    fields: dict[str, object],
    ending: Ending | None,
) -> None:
    """`Fail` and `Reject` are final; any other exception retries the task, with the reason."""
    peer = _Peer(_task())

    async def handler(_: Task) -> object:
        raise raised

    ended = await _one(peer, handler)

    assert [(verb, {**fields, "leaseToken": 77})] == peer.heard
    assert ended.ending is (ending or Ending.RETURNED)
    # An unexpected exception is logged with its traceback.
    assert ("ValueError: odd" in caplog.text) is isinstance(raised, ValueError)


@pytest.mark.parametrize(
    ("raised", "verb"), [(Reject("no cat"), "reject"), (Retry("no cat", hold="key"), "nack")]
)
async def test_what_the_cluster_does_not_know_yet_is_a_retry_at_once(
    raised: Exception, verb: str
) -> None:
    """Formats of level 1 have no rejects and no holds; the task does not wait for its lease."""
    peer = _Peer(_task())
    early = {"error": "upgrade", "code": "upgrade-under-way", "retryable": True}
    peer.refusals[verb] = [(503, early)]

    async def handler(_: Task) -> object:
        raise raised

    ended = await _one(peer, handler)

    (first, _), (second, said) = peer.heard
    assert (verb, "nack") == (first, second)
    assert "hold" not in said
    assert said["reason"].startswith("no cat")
    assert Ending.RETURNED is ended.ending


@pytest.mark.parametrize("result", [object(), {1, object()}])
async def test_a_result_that_is_no_json_is_tried_again(result: object) -> None:
    """The reason says that the result is not JSON."""
    peer = _Peer(_task())

    async def handler(_: Task) -> object:
        return result

    await _one(peer, handler)

    assert "nack" == peer.heard[0][0]
    assert "no JSON" in peer.heard[0][1]["reason"]


@pytest.mark.parametrize("status", [409, 413, 422, 429])
async def test_a_result_the_broker_refuses_becomes_the_reason(status: int) -> None:
    """The result is not resent for ever, and the task need not wait for its lease's end."""
    peer = _Peer(_task())
    peer.refusals["result"] = [(status, {"error": "result exceeds 9 bytes"})]

    async def handler(_: Task) -> object:
        return "long"

    ended = await _one(peer, handler)

    assert ["result", "nack"] == [verb for verb, _ in peer.heard]
    assert (
        Ending.RETURNED,
        "the result was refused: result exceeds 9 bytes",
    ) == (ended.ending, ended.note)


async def test_a_report_is_repeated_while_it_may_succeed() -> None:
    """A busy broker gets the report again, and the task ends once."""
    peer = _Peer(_task())
    peer.refusals["result"] = [(503, _BUSY), (503, _BUSY)]

    async def handler(_: Task) -> object:
        return 1

    ended = await _one(peer, handler)

    assert ["result"] * 3 == [verb for verb, _ in peer.heard]
    assert ended.ending is Ending.COMPLETED


async def test_a_claim_is_repeated_while_it_may_succeed() -> None:
    """A worker survives a broker without a leader."""
    peer = _Peer(_task())
    peer.refusals["claim"] = [(503, _BUSY)]

    async def handler(_: Task) -> object:
        return 1

    ended = await _one(peer, handler)

    assert 2 == len(peer.claims)
    assert ended.ending is Ending.COMPLETED


async def test_a_report_after_the_lease_is_lost() -> None:
    """The worker reports the loss and goes on."""
    peer = _Peer(_task())
    peer.refusals["result"] = [(409, _LOST)]

    async def handler(_: Task) -> object:
        return 1

    ended = await _one(peer, handler)

    assert ended.ending is Ending.LOST


async def test_a_stop_lets_handlers_finish() -> None:
    """Nothing more is claimed, and running handlers complete."""
    peer = _Peer(_task())
    begun, go_on = asyncio.Event(), asyncio.Event()
    endings: list[Ended] = []

    async def handler(_: Task) -> object:
        begun.set()
        await go_on.wait()
        return 1

    async with peer.served() as url, asyncio.TaskGroup() as group:
        worker = _worker(url, handler, ended=endings.append)
        group.create_task(worker.serve())
        await begun.wait()
        worker.stop()
        go_on.set()

    assert [Ending.COMPLETED] == [ended.ending for ended in endings]
    assert 1 == len(peer.claims)


async def test_a_stop_gives_late_tasks_back() -> None:
    """A handler that runs beyond the bound is cancelled."""
    peer = _Peer(_task())
    begun = asyncio.Event()
    endings: list[Ended] = []

    async def handler(_: Task) -> object:
        begun.set()
        await asyncio.Event().wait()

    async with peer.served() as url, asyncio.TaskGroup() as group:
        worker = _worker(url, handler, ended=endings.append, grace_s=0.01)
        group.create_task(worker.serve())
        await begun.wait()
        worker.stop()

    assert [("abandon", {"leaseToken": 77})] == peer.heard
    assert [Ending.ABANDONED] == [ended.ending for ended in endings]


async def test_an_idle_worker_stops_at_once() -> None:
    """A waiting claim is withdrawn."""
    peer = _Peer()

    async def handler(_: Task) -> object:
        raise AssertionError

    async with peer.served() as url, asyncio.TaskGroup() as group:
        worker = _worker(url, handler)
        running = group.create_task(worker.serve())
        await peer.idle.wait()
        worker.stop()

    assert running.done()
    assert [] == peer.heard


async def test_a_cancelled_worker_gives_its_tasks_back() -> None:
    """The tasks need not wait for their leases to end."""
    peer = _Peer(_task("t1"), _task("t2"))
    begun = asyncio.Queue[str]()

    async def handler(task: Task) -> object:
        await begun.put(task.id)
        await asyncio.Event().wait()

    async with peer.served() as url, asyncio.TaskGroup() as group:
        running = group.create_task(_worker(url, handler, concurrency=2).serve())
        started = {await begun.get(), await begun.get()}
        running.cancel()

    assert {"t1", "t2"} == started
    assert [("abandon", {"leaseToken": 77})] * 2 == peer.heard


async def test_no_more_is_claimed_than_can_be_handled() -> None:
    """A claim asks for as many tasks as there are free slots."""
    peer = _Peer(_task("t1"))
    begun = asyncio.Event()

    async def handler(_: Task) -> object:
        begun.set()
        await asyncio.Event().wait()

    async with peer.served() as url, asyncio.TaskGroup() as group:
        worker = _worker(url, handler, concurrency=3, grace_s=0)
        group.create_task(worker.serve())
        await begun.wait()
        await peer.idle.wait()
        worker.stop()

    assert [3, 2] == [claim["count"] for claim in peer.claims]


async def test_a_token_that_may_not_claim_ends_the_worker() -> None:
    """A repetition would be refused too."""
    peer = _Peer(_task())
    peer.refusals["claim"] = [(403, {"error": "missing scope", "code": "forbidden"})]

    async def handler(_: Task) -> object:
        raise AssertionError

    async with peer.served() as url:
        with pytest.raises(Refused, match="missing scope"):
            await _worker(url, handler).serve()

    assert 1 == len(peer.claims)


async def test_a_worker_without_nodes_gives_up() -> None:
    """After the bound it ends with the reason, for its supervisor."""
    async with _Peer().served() as url:
        gone = url

    async def handler(_: Task) -> object:
        raise AssertionError

    with pytest.raises(Unreachable, match="no node takes a connection"):
        await _worker(gone, handler, give_up_s=0.3).serve()


async def test_an_unfit_handler_ends_the_worker_and_spares_the_queue() -> None:
    """The task is returned, and no further task is claimed only to die."""
    peer = _Peer(_task("t1"), _task("t2"))

    async def handler(_: Task) -> object:
        raise HandlerUnfit("no interpreter")

    async with peer.served() as url:
        with pytest.raises(HandlerUnfit, match="no interpreter"):
            await _worker(url, handler).serve()

    assert [("abandon", {"leaseToken": 77})] == peer.heard


async def test_a_claim_in_another_form_ends_the_worker() -> None:
    """The error says that the answer cannot be read."""
    peer = _Peer({"id": "t1"})

    async def handler(_: Task) -> object:
        raise AssertionError

    async with peer.served() as url:
        with pytest.raises(Refused, match="unknown form"):
            await _worker(url, handler).serve()


async def test_a_worker_may_run_beside_a_program_s_main_thread() -> None:
    """It gets no signals there, but works."""
    peer = _Peer(_task())
    endings: list[Ended] = []

    async def handler(_: Task[object]) -> object:
        return 1

    async with peer.served() as url:
        worker = _worker(url, handler, ended=endings.append)
        await asyncio.to_thread(worker.run, tasks_max=1)

    assert [Ending.COMPLETED] == [ended.ending for ended in endings]


async def test_a_worker_stopped_before_it_began_claims_nothing() -> None:
    """An early stop is not lost."""
    peer = _Peer(_task())

    async def handler(_: Task[object]) -> object:
        raise AssertionError

    async with peer.served() as url:
        worker = _worker(url, handler)
        worker.stop()
        await worker.serve()

    assert [] == peer.claims


async def test_a_delivery_is_logged_with_fields(caplog: pytest.LogCaptureFixture) -> None:
    """A structured log gets the same facts as the line has."""

    def handler(_: Task) -> None:
        raise ValueError("odd")

    with caplog.at_level("INFO", logger="codeq_cluster.client.delivery"):
        ended = await _one(_Peer(_task() | {"workerName": "resizer@host-1:7"}), handler)
    [record] = [each for each in caplog.records if each.name.endswith("delivery")]
    fields = record.__dict__

    assert ("t1", "greet", "returned") == tuple(fields[n] for n in ("task_id", "command", "ending"))
    assert (1, 5, "ValueError: odd") == tuple(
        fields[name] for name in ("attempt", "attempts_max", "reason")
    )
    assert ("resizer@host-1:7", round(ended.seconds, 3)) == (fields["worker"], fields["seconds"])
    assert str(ended) == record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


async def test_a_delivery_whose_report_is_lost_keeps_its_error() -> None:
    """The author of the handler needs the traceback although the broker did not take the nack."""
    peer = _Peer(_task())
    peer.refusals["nack"] = [(409, _LOST)]

    def handler(_: Task) -> None:
        raise ValueError("odd")

    ended = await _one(peer, handler)

    assert Ending.LOST is ended.ending
    assert isinstance(ended.error, ValueError)


def test_run_raises_an_error_itself(closed_url: str) -> None:
    """A program catches `Unreachable`, not a group that holds it."""
    worker = Worker([closed_url], token="t", give_up_s=0.01, discover=False)
    worker.task("greet")(lambda task: task)

    with pytest.raises(Unreachable):
        worker.run()
    with pytest.raises(ConfigInvalid, match="no handler"):
        Worker([closed_url], token="t").run()


async def test_an_error_of_the_program_s_own_callback_is_raised_itself() -> None:
    """A mistake in `ended` ends the worker with that mistake."""

    async def handler(_: Task) -> None:
        return None

    def broken(_: Ended) -> None:
        raise LookupError("a mistake")

    async with _Peer(_task()).served() as url:
        with pytest.raises(LookupError, match="a mistake"):
            await _worker(url, handler, ended=broken).serve()


async def test_a_worker_has_a_name_of_its_own() -> None:
    """Host and process tell it from others under the token, behind the name the program gives."""
    peer = _Peer(_task())
    await _one(peer, lambda _: None, name="resizer")
    plain = Worker(["http://localhost"], token="t").name

    assert f"resizer@{plain}" == peer.claims[0]["workerName"]
    assert plain.endswith(f":{os.getpid()}")
    with pytest.raises(ConfigInvalid, match="name='a b': must be"):
        Worker(["http://localhost"], token="t", name="a b")
