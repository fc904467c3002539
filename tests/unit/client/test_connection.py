"""Connection: how it reads every kind of answer, and the order in which it asks nodes."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from aiohttp import web

from codeq_cluster.client import (
    Client,
    Connection,
    ConnectionGone,
    Leases,
    Operator,
    Probe,
    Refused,
    Unreachable,
)
from codeq_cluster.errors import ConfigInvalid
from tests.harness.waiting import until
from tests.unit.client.servers import serve

_TASK = {
    "id": "x",
    "command": "c",
    "payload": "1",
    "status": "PENDING",
    "createdAt": "2026-01-31T12:00:00Z",
    "updatedAt": "2026-01-31T12:00:00Z",
}


def _busy(**headers: str) -> web.Response:
    body = {"error": "overloaded", "code": "overloaded", "retryable": True}
    return web.json_response(
        body, status=503, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )


async def test_an_error_keeps_its_status_text_and_code() -> None:
    """A caller can tell what to retry, and an id is quoted as one segment of the path."""
    paths: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        paths.append(request.raw_path)
        body = {"error": "no leader for shard", "code": "no-leader", "retryable": True}
        return web.json_response(body, status=503, headers={"X-Outcome": "not-applied"})

    async with (
        serve(handler) as url,
        Client([url], token="t", deadline_s=0, discover=False) as client,
    ):
        with pytest.raises(Refused, match="no leader for shard") as caught:
            await client.task("a/b")

    assert (503, "no-leader") == (caught.value.status, caught.value.code)
    assert (True, True) == (caught.value.retryable, caught.value.nothing_done)
    assert ["/v1/codeq/tasks/a%2Fb"] == paths


async def test_a_number_that_no_float_holds_is_read_as_its_text() -> None:
    """A schedule's payload may have one; a list with it must still be read."""
    page = '{"schedules":[{"id":"s","task":{"payload":{"a":1e400,"b":-1e400,"c":1.5,"d":2}}}]}'

    async def handler(_request: web.Request) -> web.Response:
        return web.json_response(text=page)

    async with serve(handler) as url, Operator([url], token="t", discover=False) as operator:
        [row] = (await operator.schedules()).rows

    assert {"a": "1e400", "b": "-1e400", "c": 1.5, "d": 2} == row["task"]["payload"]


async def test_a_number_of_more_digits_than_python_reads_is_read_as_its_text() -> None:
    """One schedule with it must not keep a tenant from its list."""
    number = "9" * 5000
    page = '{"schedules":[{"id":"s","task":{"payload":{"a":%s,"b":-%s,"c":1e400,"d":2}}}]}'

    async def handler(_request: web.Request) -> web.Response:
        return web.json_response(text=page % (number, number))

    async with serve(handler) as url, Operator([url], token="t", discover=False) as operator:
        [row] = (await operator.schedules()).rows

    assert {"a": number, "b": f"-{number}", "c": "1e400", "d": 2} == row["task"]["payload"]


async def test_a_closed_connection_sends_nothing_more() -> None:
    """A wait under way ends, and no connection is opened again, until it is entered again."""
    asked = asyncio.Event()
    answers = asyncio.Event()

    async def handler(_request: web.Request) -> web.Response:
        asked.set()
        await answers.wait()
        return web.json_response(_TASK)

    async with serve(handler) as url:
        client = Client([url], token="t", discover=False)
        waiting = asyncio.create_task(client.wait("x"))
        await asked.wait()
        asked.clear()
        await client.close()
        with pytest.raises(ConnectionGone):
            await waiting
        with pytest.raises(ConnectionGone):
            await client.task("x")
        assert not asked.is_set()

        answers.set()
        async with client:
            assert "x" == (await client.task("x")).id


async def test_the_error_says_why_a_node_is_not_ready() -> None:
    """The error names what is missing."""

    async def handler(_: web.Request) -> web.Response:
        body = {"error": "not ready", "code": "not-ready", "missing": ["shard 1", "shard 2"]}
        return web.json_response(body, status=503)

    async with serve(handler) as url, Probe(url, token="t", timeout_s=5) as probe:
        with pytest.raises(Refused, match="not ready: shard 1, shard 2"):
            await probe.ready()


@pytest.mark.parametrize("status", [200, 404])
async def test_a_server_that_is_not_a_broker_is_reported(status: int) -> None:
    """A page of another server does not count as an answer."""

    async def handler(_: web.Request) -> web.Response:
        return web.Response(text="<html>", content_type="text/html", status=status)

    async with serve(handler) as url, Probe(url, token="t", timeout_s=5) as probe:
        with pytest.raises(Refused, match="is this a codeq-cluster"):
            await probe.healthy()


async def test_an_answer_in_another_form_is_refused() -> None:
    """The error says what is wrong with the answer."""

    async def handler(_: web.Request) -> web.Response:
        return web.json_response({"id": 1})

    async with serve(handler) as url, Client([url], token="t", discover=False) as client:
        with pytest.raises(Refused, match=r"unknown form.*\$\.id"):
            await client.task("x")


async def test_a_node_without_a_connection_is_passed_over(closed_url: str) -> None:
    """Nothing was sent to it, so any request may go to the next node."""

    async def handler(_: web.Request) -> web.Response:
        return web.json_response(_TASK, status=202)

    async with serve(handler) as url:
        urls = [closed_url, url]
        async with Client(urls, token="t", deadline_s=0, discover=False) as client:
            assert "x" == (await client.create("c", 1)).id


async def test_no_node_at_all_is_unreachable(closed_url: str) -> None:
    """The error says so, and implies that nothing was done."""
    async with Client([closed_url], token="t", deadline_s=0, discover=False) as client:
        with pytest.raises(Unreachable, match=f"no node takes a connection: {closed_url}"):
            await client.create("c", 1)


async def test_a_request_is_repeated_until_its_deadline(closed_url: str) -> None:
    """One deadline bounds all repetitions."""
    begun = time.monotonic()
    async with Client([closed_url], token="t", deadline_s=0.5, discover=False) as client:
        with pytest.raises(Unreachable):
            await client.task("x")

    assert 0.1 < time.monotonic() - begun < 5


async def test_a_request_that_is_not_idempotent_is_not_repeated() -> None:
    """A cancel with a lost answer may have taken effect; the caller gets an unknown outcome."""
    calls = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        assert request.transport
        request.transport.close()
        return web.Response()

    async with serve(handler) as url, Client([url, f"{url}/"], token="t", discover=False) as client:
        with pytest.raises(Refused, match="outcome unknown") as caught:
            await client.cancel("x")

    assert ("outcome-unknown", 0, 1) == (caught.value.code, caught.value.status, calls)


async def test_a_delete_on_a_used_connection_that_breaks_is_sent_once() -> None:
    """The node has carried it out and died: another one would say that there is no such topic."""
    methods: list[str] = []

    async def dies(request: web.Request) -> web.Response:
        methods.append(request.method)
        if request.method == "DELETE":
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({})

    async def other(_: web.Request) -> web.Response:
        body = {"error": "topic not found", "code": "not-found"}
        return web.json_response(body, status=404)

    async with (
        serve(dies) as url,
        serve(other) as second,
        Operator([url, second], token="t", discover=False) as operator,
    ):
        await operator.topic("mail")
        with pytest.raises(Refused) as caught:
            await operator.delete_topic("mail")

    assert "outcome-unknown" == caught.value.code
    assert ["GET", "DELETE"] == methods


async def test_a_request_that_is_not_idempotent_is_repeated_if_nothing_was_done() -> None:
    """The broker's refusal says that nothing was done."""
    answers = [_busy(X_Outcome="not-applied"), web.json_response({"status": "cancelled"})]

    async def handler(_: web.Request) -> web.Response:
        return answers.pop(0)

    async with serve(handler) as url, Client([url], token="t", discover=False) as client:
        await client.cancel("x")

    assert [] == answers


async def test_a_create_is_repeated_with_the_same_key() -> None:
    """A lost answer costs a second request, but no second task is created."""
    keys: list[object] = []

    async def handler(request: web.Request) -> web.Response:
        keys.append((await request.json())["idempotencyKey"])
        if len(keys) == 1:
            assert request.transport
            request.transport.close()
        return web.json_response(_TASK, status=202)

    async with serve(handler) as url, Client([url], token="t", discover=False) as client:
        await client.create("c", 1)
        await client.create("c", 1)

    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize("as_date", [False, True])
async def test_a_broker_that_says_when_is_asked_then(as_date: bool) -> None:
    """`Retry-After` is obeyed, in seconds or as a date."""
    asked_at: list[float] = []

    async def handler(_: web.Request) -> web.Response:
        asked_at.append(time.monotonic())
        when = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
        return (
            _busy(Retry_After=when if as_date else "1")
            if len(asked_at) == 1
            else web.json_response(_TASK)
        )

    async with serve(handler) as url, Client([url], token="t", discover=False) as client:
        await client.task("x")

    assert 0.9 < asked_at[1] - asked_at[0] < 10


async def test_a_broker_that_says_too_late_is_not_waited_for() -> None:
    """A retry beyond the deadline fails at once."""

    async def handler(_: web.Request) -> web.Response:
        return _busy(Retry_After="9")

    begun = time.monotonic()
    async with (
        serve(handler) as url,
        Client([url], token="t", deadline_s=5, discover=False) as client,
    ):
        with pytest.raises(Refused) as caught:
            await client.task("x")

    assert 9 == caught.value.retry_after_s
    assert time.monotonic() - begun < 4


async def test_an_answer_that_takes_too_long_is_given_up() -> None:
    """Every call ends within its bound."""
    release = asyncio.Event()

    async def handler(_: web.Request) -> web.Response:
        await release.wait()
        return web.json_response({})

    async with serve(handler) as url:
        async with Client([url], token="t", timeout_s=0.05, discover=False) as client:
            with pytest.raises(Refused, match="TimeoutError"):
                await client.cancel("x")
        release.set()


async def test_a_read_goes_on_to_the_next_node_when_one_does_not_answer() -> None:
    """A frozen node takes connections but does not answer; repeating a read is harmless."""
    release = asyncio.Event()

    async def silent(_: web.Request) -> web.Response:
        await release.wait()
        return web.json_response({})

    async def answers(_: web.Request) -> web.Response:
        return web.json_response(_TASK)

    async with serve(silent) as still, serve(answers) as next_one:
        # Each node has this long to answer, which the next node must keep on a busy machine too.
        options = {"token": "t", "deadline_s": 0, "discover": False}
        async with Client([still, next_one], timeout_s=2.0, **options) as client:
            assert "x" == (await client.task("x")).id
            asked = time.monotonic()
            assert "x" == (await client.task("x")).id
            assert time.monotonic() - asked < 2, "the node that answered is asked first"
        async with Client([still], timeout_s=0.05, **options) as client:
            with pytest.raises(Refused, match="did not come") as caught:
                await client.task("x")
        release.set()

    assert "no-answer" == caught.value.code
    assert "unknown" not in str(caught.value)


async def test_the_other_nodes_are_learned() -> None:
    """A node that the caller did not name is asked once the named one is gone."""
    others: list[str] = []

    async def first(request: web.Request) -> web.Response:
        if request.path.endswith("/raft/status"):
            peers = [{"id": "n2", "httpAddr": url} for url in others]
            return web.json_response({"groups": [{"peers": peers}]})
        return web.json_response(_TASK)

    async def second(_: web.Request) -> web.Response:
        return web.json_response(_TASK | {"id": "of the second"})

    async with serve(second) as other:
        others.append(other)
        async with serve(first) as named:
            client = Client([named], token="t")
            assert "x" == (await client.task("x")).id

            async def knows_it() -> bool:
                return other in client.nodes

            await until(knows_it, what="a second node")
        assert "of the second" == (await client.task("x")).id
        await client.close()


async def test_idle_connections_are_used_again() -> None:
    """Consecutive requests share a connection."""
    ports: set[object] = set()

    async def handler(request: web.Request) -> web.Response:
        assert request.transport
        ports.add(request.transport.get_extra_info("peername"))
        return web.json_response(_TASK)

    async with serve(handler) as url, Client([url], token="t", discover=False) as client:
        for _ in range(5):
            await client.task("x")

    assert 1 == len(ports)


@pytest.mark.parametrize(
    ("urls", "token", "text"),
    [
        ([], "t", "at least one base URL"),
        (["localhost:8080"], "t", "http://HOST:PORT"),
        (["http://localhost:99999"], "t", "http://HOST:PORT"),
        (["http://localhost:0"], "t", "http://HOST:PORT"),
        (["http://:8080"], "t", "http://HOST:PORT"),
        (["http://[::1"], "t", "http://HOST:PORT"),
        ("http://localhost:8080", "t", "must be a list of URLs, such as"),
        (["http://localhost:8080"], "of-a-file\n", "has 10 characters and is no JWT; it must have"),
    ],
)
def test_what_cannot_be_asked_with_is_refused(urls: Sequence[str], token: str, text: str) -> None:
    """The error says what is allowed, before anything is sent."""
    with pytest.raises(ConfigInvalid, match=text):
        Connection(urls, token=token)


async def test_documents_of_operators_are_as_they_are() -> None:
    """Fields of a newer broker are kept, and numbers keep every digit."""

    async def handler(request: web.Request) -> web.Response:
        if request.path.endswith("queues"):
            return web.json_response([{"command": "c", "ready": 2**70}])
        return web.json_response({"tasks": [{"id": "x", "newer": 1}], "cursor": "next"})

    async with serve(handler) as url, Operator([url], token="t", discover=False) as operator:
        queues = await operator.queues()
        page = await operator.tasks(command="c")

    assert [{"command": "c", "ready": 2**70}] == queues
    assert ([{"id": "x", "newer": 1}], "next") == (page.rows, page.cursor)


async def test_a_name_that_is_not_found_in_time_has_taken_no_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its server of names hangs: the next node is asked, without the wait of a claim before."""
    found, over = socket.getaddrinfo, threading.Event()

    def find(host: Any, *given: Any, **named: Any) -> Any:
        if host == "hangs.test":
            over.wait()
        return found(host, *given, **named)

    async def handler(request: web.Request) -> web.Response:
        return web.json_response({"tasks": [_TASK]})

    monkeypatch.setattr(socket, "getaddrinfo", find)
    options: Any = {"token": "t", "timeout_s": 0.2, "discover": False}
    try:
        async with (
            serve(handler) as url,
            Leases(["http://hangs.test:1", url], **options) as leases,
            Leases(["http://hangs.test:1"], deadline_s=0, **options) as nobody,
            asyncio.timeout(10),
        ):
            [task] = await leases.claim(["c"], lease_s=60, wait_s=20)
            with pytest.raises(Unreachable):
                await nobody.claim(["c"], lease_s=60, wait_s=20)
    finally:
        over.set()

    assert "x" == task.id
