"""Clients: each outcome of an operation is recorded correctly; only a definite refusal fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from jepsen_lite.asking import Process
from jepsen_lite.client import Client, Tokens
from jepsen_lite.history import Args, F, Recorder, Type
from jepsen_lite.outcome import item_may_succeed_later, may_succeed_later, outcome

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

TOKENS = Tokens(producer="p", admin="a", operator="o", workers={"w": "w"})


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (200, {}, Type.OK),
        (202, {}, Type.OK),
        (204, {}, Type.OK),
        (400, {}, Type.FAIL),
        (409, {}, Type.FAIL),
        (429, {}, Type.FAIL),
        (507, {}, Type.FAIL),
        (503, {"X-Outcome": "not-applied"}, Type.FAIL),
        (503, {}, Type.INFO),
        (500, {}, Type.INFO),
        (502, {"X-Outcome": "not-applied"}, Type.INFO),
        (504, {}, Type.INFO),
        (302, {}, Type.INFO),
    ],
)
def test_only_a_definite_refusal_is_a_fail(
    status: int, headers: dict[str, str], expected: Type
) -> None:
    """An operation that may have been carried out stays open."""
    assert expected is outcome(status, headers)


@pytest.mark.parametrize(
    ("status", "retryable", "expected"),
    [(0, False, True), (503, False, True), (429, True, True), (409, False, False)],
)
def test_a_request_is_repeated_where_the_sdk_would(
    status: int, retryable: bool, expected: bool
) -> None:
    """A final refusal is not retried."""
    assert expected is may_succeed_later(status, retryable=retryable)


@asynccontextmanager
async def broker(handler: Handler) -> AsyncIterator[str]:
    """Serve one handler for every route, and yield the base URL."""
    application = web.Application()
    application.router.add_route("*", "/{tail:.*}", handler)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    _, port = runner.addresses[0]
    yield f"http://127.0.0.1:{port}"
    await runner.cleanup()


async def create(url: str, path: Path, *, deadline_ms: int = 1000) -> tuple[Recorder, Process]:
    """Create one task at `url` and return what was recorded."""
    process = Process("p", 1)
    with Recorder(path) as recorder:
        async with Client({"n1": url}, recorder, TOKENS, deadline_ms=deadline_ms) as client:
            await client.invoke(process, F.CREATE, Args(command="work", content="{}"))
    return recorder, process


async def test_an_answer_is_recorded_with_its_contents(tmp_path: Path) -> None:
    """The task's id and shard come from the body, and the process keeps its name."""

    async def accept(request: web.Request) -> web.Response:
        assert {"command": "work", "payload": {}} == await request.json()
        return web.json_response({"id": "t", "shard": 1}, status=202)

    async with broker(accept) as url:
        recorder, process = await create(url, tmp_path / "h")

    invoked, answered = recorder.events
    assert (Type.INVOKE, Type.OK) == (invoked.type, answered.type)
    assert ("t", 1, 202) == (answered.out.task, answered.out.shard, answered.out.http)
    assert "p" == process.p


async def test_creates_that_are_sent_together_have_answers_of_their_own(tmp_path: Path) -> None:
    """The batch route gets them in one request; each item's code decides its recorded outcome."""
    results = [
        {"task": {"id": "t", "shard": 1}},
        {"error": "no leader for shard", "code": "no-leader"},
        {"error": "idempotency conflict", "code": "idempotency-conflict"},
        {"error": "outcome unknown", "code": "outcome-unknown"},
    ]

    async def accept(request: web.Request) -> web.Response:
        assert "/v1/codeq/tasks/batch" == request.path
        assert [0, 1, 2, 3] == [each["payload"] for each in (await request.json())["tasks"]]
        return web.json_response({"results": results})

    async with broker(accept) as url:
        with Recorder(tmp_path / "h") as recorder:
            async with Client(
                {"n1": url}, recorder, TOKENS, deadline_ms=1000, gathers=True
            ) as client:
                await asyncio.gather(
                    *(
                        client.invoke(
                            Process(f"p{number}", 1),
                            F.CREATE,
                            Args(command="work", content=str(number)),
                        )
                        for number in range(len(results))
                    )
                )

    answered = {each.p: each for each in recorder.events if each.type is not Type.INVOKE}
    expected = [Type.OK, Type.FAIL, Type.FAIL, Type.INFO]
    assert expected == [answered[f"p{number}"].type for number in range(len(results))]
    assert ("t", 1, 202) == (
        answered["p0"].out.task,
        answered["p0"].out.shard,
        answered["p0"].out.http,
    )


@pytest.mark.parametrize(
    ("code", "again"),
    [("no-leader", True), ("overloaded", True), ("invalid-body", False), ("internal", True)],
)
def test_an_item_is_sent_again_if_that_may_help(code: str, again: bool) -> None:
    """An item of a batch has no status of its own, so its code decides."""
    assert again is item_may_succeed_later(code)


async def test_a_refused_connection_is_a_fail(tmp_path: Path) -> None:
    """Nothing was sent, so nothing happened."""

    async def nobody(_request: web.Request) -> web.Response:
        raise AssertionError

    async with broker(nobody) as url:
        gone = url
    recorder, _ = await create(gone, tmp_path / "h")

    assert recorder.events[1].type is Type.FAIL


async def test_a_connection_that_breaks_is_unknown_and_ends_the_process(tmp_path: Path) -> None:
    """The request may have been carried out, so the process makes no more calls under its name."""

    async def hang_up(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with broker(hang_up) as url:
        recorder, process = await create(url, tmp_path / "h")

    assert recorder.events[1].type is Type.INFO
    assert "p.1" == process.p


async def test_an_answer_that_is_no_json_is_unknown(tmp_path: Path) -> None:
    """A proxy that answers for the broker does not know the outcome."""

    async def proxy(_request: web.Request) -> web.Response:
        return web.Response(text="<html>", status=202)

    async with broker(proxy) as url:
        recorder, _ = await create(url, tmp_path / "h")

    assert recorder.events[1].type is Type.INFO


async def test_a_call_that_times_out_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that does not answer may have carried the request out, or may do so later."""
    monkeypatch.setattr("jepsen_lite.client.GIVE_UP_S", 0.05)
    silence = asyncio.Event()

    async def wait(_request: web.Request) -> web.Response:
        await silence.wait()
        return web.Response()

    async with broker(wait) as url:
        recorder, process = await create(url, tmp_path / "h", deadline_ms=50)
        silence.set()

    assert (Type.INFO, "timeout") == (recorder.events[1].type, recorder.events[1].out.code)
    assert "p.1" == process.p


async def test_a_requeue_that_found_no_dead_letter_did_nothing(tmp_path: Path) -> None:
    """The answer is 200, but the operation is recorded as a refusal."""

    async def nothing(_request: web.Request) -> web.Response:
        return web.json_response({"requeued": 0})

    async with broker(nothing) as url:
        with Recorder(tmp_path / "h") as recorder:
            async with Client({"n1": url}, recorder, TOKENS, deadline_ms=1000) as client:
                answer = await client.invoke(Process("p", 1), F.REQUEUE, Args(task="t"))

    assert answer.type is Type.FAIL


async def test_a_read_of_two_requests_has_the_time_of_both(tmp_path: Path) -> None:
    """Without a result yet, the task is read too; it arrives just before the second deadline."""
    asked: list[str] = []

    async def look(request: web.Request) -> web.Response:
        asked.append(request.path)
        if request.path.endswith("/result"):
            return web.json_response({"error": "result not found"}, status=404)
        task = {"status": "PENDING", "lastKnownLocation": "PENDING_LIST", "attempts": 0}
        return web.json_response({"id": "t", "shard": 0, "payload": {}, **task})

    async with broker(look) as url:
        with Recorder(tmp_path / "h") as recorder:
            async with Client({"n1": url}, recorder, TOKENS, deadline_ms=1000) as client:
                for f in (F.READ, F.CANCEL):
                    await client.invoke(Process("p", 1), f, Args(task="t"))
    deadlines = [event.args.deadline_ms for event in recorder.events if event.type is Type.INVOKE]

    assert ["/tasks/t/result", "/tasks/t"] == [path.removeprefix("/v1/codeq") for path in asked[:2]]
    assert [2000, 1000] == deadlines
