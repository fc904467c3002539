"""Sender: the outcome of a POST, whatever the target does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
import uvloop
from aiohttp import web

from codeq_cluster import __version__
from codeq_cluster.settings import WebhookSettings
from codeq_cluster.webhooks.answer_bound import ANSWER_BYTES_MAX
from codeq_cluster.webhooks.circuit_breaker import CircuitBreaker
from codeq_cluster.webhooks.http_client import Sent
from codeq_cluster.webhooks.signing import key_id, signature, tenant_key
from tests.integration.webhooks.target import Listener, listening, sending

BODY = b'{"taskId":"t1"}'
SECRET, PREVIOUS = "the-secret-of-now-0123", "the-secret-of-before-0"


async def test_a_body_arrives_unchanged_and_signed() -> None:
    """It has its delivery id and trace, and no headers that the library would add."""
    settings = WebhookSettings(allow_private=True, hmac_secret=SECRET)
    async with listening() as target, sending(settings) as sender:
        sent = await sender.post(
            f"{target.url}/done?x=1",
            BODY,
            tenant="acme",
            delivery="d1",
            trace_parent="00-a-b-01",
            trace_state="k=v",
        )

    [heard] = target.heard
    key = tenant_key(SECRET, "acme", 1)
    signed = signature(key, unix_s=int(heard.headers["X-CodeQ-Timestamp"]), body=BODY)
    assert Sent(ok=True, status=200) == sent
    assert ("/done", BODY) == (heard.path, heard.body)
    assert {
        "Host": f"127.0.0.1:{target.port}",
        "User-Agent": f"codeq-cluster/{__version__}",
        "Content-Type": "application/json",
        "Content-Length": str(len(BODY)),
        "Accept": "*/*",
        "Accept-Encoding": "identity",
        "X-CodeQ-Delivery": "d1",
        "X-CodeQ-Timestamp": heard.headers["X-CodeQ-Timestamp"],
        "X-CodeQ-Signature": signed,
        "X-CodeQ-Signatures": f"{key_id(key)}={signed}",
        "traceparent": "00-a-b-01",
        "tracestate": "k=v",
    } == heard.headers


async def test_both_secrets_verify_while_there_are_two() -> None:
    """A receiver that knows a key of either secret accepts the body as genuine."""
    settings = WebhookSettings(
        allow_private=True, hmac_secret=SECRET, hmac_previous_secret=PREVIOUS
    )
    async with listening() as target, sending(settings) as sender:
        await sender.post(target.url, BODY, tenant="acme", delivery="d1")

    headers = target.heard[0].headers
    unix_s = int(headers["X-CodeQ-Timestamp"])
    new, old = (
        signature(tenant_key(secret, "acme", 1), unix_s=unix_s, body=BODY)
        for secret in (SECRET, PREVIOUS)
    )
    assert new == headers["X-CodeQ-Signature"]
    assert [new, old] == [
        each.partition("=")[2] for each in headers["X-CodeQ-Signatures"].split(", ")
    ]


async def test_without_a_secret_nothing_is_signed() -> None:
    """A trace that is not valid in a header is left out, too."""
    async with listening() as target, sending() as sender:
        await sender.post(
            target.url,
            BODY,
            tenant="acme",
            delivery="d1",
            trace_parent="00-a-b-01",
            trace_state="k=\udce9\n",
        )
        await sender.post(
            target.url, BODY, tenant="acme", delivery="d2", trace_parent="x\r\nX-Evil: 1"
        )

    sent = [{name.lower() for name in heard.headers} for heard in target.heard]
    assert "x-codeq-signature" not in sent[0] | sent[1]
    assert "x-evil" not in sent[1]
    assert [True, False] == ["traceparent" in names for names in sent]
    assert "tracestate" not in sent[0]


async def test_a_body_of_megabytes_arrives() -> None:
    """The largest result with the largest error fits one delivery."""
    body = b"x" * 3 * 2**20
    async with listening() as target, sending() as sender:
        sent = await sender.post(target.url, body, tenant="acme", delivery="d1")

    assert sent.ok
    assert body == target.heard[0].body


async def test_connections_serve_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests in turn share a connection, as long as their answers are read to the end."""
    monkeypatch.setattr("codeq_cluster.webhooks.http_client._ANSWER_TIMEOUT_S", 60.0)
    monkeypatch.setattr("codeq_cluster.webhooks.http_client._IDLE_S", 60.0)
    async with listening() as target, sending() as sender:
        for delivery in ("d1", "d2", "d3"):
            await sender.post(target.url, BODY, tenant="acme", delivery=delivery)

    assert 1 == len({heard.peer for heard in target.heard})


async def test_a_connection_serves_again_though_its_answer_came_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rest of an answer is read before the next request is sent."""
    monkeypatch.setattr("codeq_cluster.webhooks.http_client._ANSWER_TIMEOUT_S", 60.0)
    monkeypatch.setattr("codeq_cluster.webhooks.http_client._IDLE_S", 60.0)
    release = asyncio.Event()

    async def late(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Length": "9"})
        await answer.prepare(request)
        await release.wait()
        await answer.write(b"thank you")
        return answer

    async with listening(late) as target, listening() as other, sending() as sender:
        first = asyncio.create_task(sender.post(target.url, BODY, tenant="acme", delivery="d1"))
        await target.arrived(1)
        # After another request and its answer, the head of the first answer has arrived.
        await sender.post(other.url, BODY, tenant="acme", delivery="d2")
        release.set()
        sent = [await first, await sender.post(target.url, BODY, tenant="acme", delivery="d3")]

    assert [True, True] == [each.ok for each in sent]
    assert 1 == len({heard.peer for heard in target.heard})


@pytest.mark.parametrize("status", [400, 404, 410, 429, 500, 503])
async def test_anything_but_2xx_is_a_failure(status: int) -> None:
    """The error contains the answer's status."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status)

    async with listening(answer) as target, sending() as sender:
        sent = await sender.post(target.url, BODY, tenant="acme", delivery="d1")

    assert Sent(status=status, error=f"status {status}") == sent


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_a_failure_and_is_not_followed(status: int) -> None:
    """Its destination gets no request."""
    async with listening() as inside:

        async def redirect(request: web.Request) -> web.StreamResponse:
            return web.Response(status=status, headers={"Location": f"{inside.url}/admin"})

        async with listening(redirect) as target, sending() as sender:
            sent = await sender.post(target.url, BODY, tenant="acme", delivery="d1")

    assert Sent(status=status, error=f"status {status}: redirects are not followed") == sent
    assert 1 == len(target.heard)
    assert [] == inside.heard


@pytest.mark.parametrize(
    ("header", "at_least_s", "at_most_s"),
    [
        ("7", 7.0, 7.0),
        ("999999999999999999999", 3600.0, 3600.0),
        (timedelta(seconds=1800), 1700.0, 1800.0),
        (timedelta(days=-1), 0.0, 0.0),
        ("soon", 0.0, 0.0),
        ("-5", 0.0, 0.0),
        ("\u0663", 0.0, 0.0),
        ("Mon, 01 Jan 2024 00:00:00 +9999999999999", 0.0, 0.0),
        ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
    # Fixed ids: pytest's workers must list the same tests.
    ids=[
        "seconds",
        "for ever",
        "later",
        "earlier",
        "a word",
        "negative",
        "another digit",
        "a zone beyond all",
        "a year beyond all",
        "none",
    ],
)
async def test_a_target_can_ask_for_patience(
    header: str | timedelta, at_least_s: float, at_most_s: float
) -> None:
    """The target gives seconds or a date, up to an hour."""
    if isinstance(header, timedelta):
        # The date is relative to the test's run, not to the collection.
        header = format_datetime(datetime.now(UTC) + header, usegmt=True)

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=503, headers={"Retry-After": header})

    async with listening(answer) as target, sending() as sender:
        sent = await sender.post(target.url, BODY, tenant="acme", delivery="d1")

    assert 503 == sent.status
    assert at_least_s <= sent.retry_after_s <= at_most_s


async def test_a_target_that_does_not_answer_in_time_is_given_up() -> None:
    """The target sees the connection close."""
    gone = asyncio.Event()

    async def never(request: web.Request) -> web.StreamResponse:
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()
        return web.Response()

    # Long enough for the request to arrive, on a busy machine too.
    settings = WebhookSettings(allow_private=True, hmac_secret=SECRET, timeout_seconds=2)
    async with listening(never) as target, sending(settings) as sender:
        sent = await sender.post(target.url, BODY, tenant="acme", delivery="d1")
        await gone.wait()

        assert Sent(error="no answer within 2 s") == sent
        assert 4 == sender.room(sender.route("acme", target.url))


async def test_a_refused_connection_is_a_failure() -> None:
    """The error says so."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with sending() as sender:
        sent = await sender.post(f"http://127.0.0.1:{port}/", BODY, tenant="acme", delivery="d1")

    assert (False, 0) == (sent.ok, sent.status)
    assert "no connection" in sent.error


@pytest.mark.parametrize(
    "said",
    [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, b"HTTP/1.1 999999 \r\n\r\n"],
)
async def test_an_answer_that_is_not_http_is_a_failure(said: bytes) -> None:
    """Any other bytes, or none, are a failure."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(BODY)
        writer.write(said)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, sending() as sender:
        sent = await sender.post(f"http://127.0.0.1:{port}/", BODY, tenant="acme", delivery="d1")

    assert (False, 0) == (sent.ok, sent.status)
    assert sent.error.startswith("no answer: ")
    assert len(sent.error) < 320


async def test_an_endless_answer_is_cut_off_and_its_status_counts() -> None:
    """A bounded part of the body is read, and the rest is never fetched."""
    gone = asyncio.Event()
    written = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal written
        answer = web.StreamResponse()
        await answer.prepare(request)
        try:
            while written < 2**30:
                await answer.write(b"x" * ANSWER_BYTES_MAX)
                written += ANSWER_BYTES_MAX
        finally:
            gone.set()
        return answer

    async with listening(endless) as target, sending() as sender:
        sent = await sender.post(target.url, BODY, tenant="acme", delivery="d1")
        await gone.wait()

    assert Sent(ok=True, status=200) == sent
    assert written < 2**30


async def test_interim_answers_without_end_are_cut_off() -> None:
    """Their bytes are counted before they are parsed: parsing them would stop the node."""
    gone = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(BODY)
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"HTTP/1.1 103 E\r\n\r\n" * 1_000)
                await writer.drain()
        writer.close()
        gone.set()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, sending() as sender:
        sent = await sender.post(f"http://127.0.0.1:{port}/", BODY, tenant="acme", delivery="d1")
        await gone.wait()

    assert Sent(error="no answer: the first 16 KiB hold no final status") == sent


async def test_every_request_of_a_connection_may_have_a_whole_answer() -> None:
    """The bytes are counted for each request, and a short answer keeps the connection."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"x" * (ANSWER_BYTES_MAX - 1_000))

    async with listening(answer) as target, sending() as sender:
        sent = [
            await sender.post(target.url, BODY, tenant="acme", delivery=delivery)
            for delivery in ("d1", "d2", "d3")
        ]

    assert [Sent(ok=True, status=200)] * 3 == sent
    assert 1 == len({heard.peer for heard in target.heard})


async def test_an_answer_that_trickles_is_not_waited_for() -> None:
    """Since the status is known, the connection is closed instead."""
    gone = asyncio.Event()

    async def trickle(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Length": "1000"})
        await answer.prepare(request)
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()
        return answer

    async with listening(trickle) as target, sending() as sender:
        sent = await sender.post(target.url, BODY, tenant="acme", delivery="d1")
        await gone.wait()

    assert Sent(ok=True, status=200) == sent


async def test_a_slow_host_is_held_to_its_places_and_others_go_on() -> None:
    """A request without a place is deferred at once and not sent."""
    release = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return web.Response()

    async with listening(slow) as target, listening() as other, sending() as sender:
        async with asyncio.TaskGroup() as posts:
            posting = [
                posts.create_task(sender.post(target.url, BODY, tenant="acme", delivery=f"d{n}"))
                for n in range(4)
            ]
            await target.arrived(4)
            full = await sender.post(target.url, BODY, tenant="acme", delivery="d4")
            room = (
                sender.room(sender.route("acme", target.url)),
                sender.room(sender.route("acme", other.url)),
            )
            elsewhere = await sender.post(other.url, BODY, tenant="acme", delivery="d5")
            heard = len(target.heard)
            release.set()
        again = await sender.post(target.url, BODY, tenant="acme", delivery="d4")

    assert full.deferred
    assert full.retry_after_s > 0
    assert (4, (0, 4)) == (heard, room)
    assert elsewhere.ok
    assert all(post.result().ok for post in posting)
    assert again.ok


async def test_a_tenant_that_fills_or_fails_a_host_delays_no_other_tenant_there() -> None:
    """Both name the same host; its places and its circuit are counted for each of them."""
    release = asyncio.Event()

    async def by_path(request: web.Request) -> web.StreamResponse:
        if request.path == "/slow":
            await release.wait()
        return web.Response(status=500 if request.path == "/broken" else 200)

    breaker = CircuitBreaker(now_s=lambda: 0.0, failures_max=1)
    async with listening(by_path) as target, sending(breaker=breaker) as sender:

        async def post(path: str, tenant: str) -> Sent:
            return await sender.post(target.url + path, BODY, tenant=tenant, delivery="d1")

        async with asyncio.TaskGroup() as posts:
            for _ in range(4):
                posts.create_task(post("/slow", "acme"))
            await target.arrived(4)
            beside_the_slow = await post("/", "globex")
            release.set()
        await post("/broken", "acme")
        own, beside_the_broken = await post("/", "acme"), await post("/", "globex")

    assert (True, True) == (beside_the_slow.ok, beside_the_broken.ok)
    assert own.deferred


async def test_slow_names_of_one_tenant_take_no_threads_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look-up keeps its thread after its request was given up, and counts until then."""
    release, of_the_system = threading.Event(), socket.getaddrinfo

    def name_server(name: str, *rest: Any, **options: Any) -> Any:
        if name.startswith("slow"):
            release.wait()
        return of_the_system(name, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", name_server)
    settings = WebhookSettings(
        allow_private=True, hmac_secret=SECRET, concurrency=8, timeout_seconds=1
    )
    async with listening() as target, sending(settings) as sender:
        for _ in range(2):
            slow = (
                sender.post(f"http://slow{n}.example/", BODY, tenant="acme", delivery="d1")
                for n in range(4)
            )
            await asyncio.gather(*slow)
        url = f"http://localhost:{target.port}/"
        sent = await sender.post(url, BODY, tenant="globex", delivery="d2")
        release.set()

    assert sent.ok


async def test_a_host_that_fails_is_left_alone_and_found_again() -> None:
    """After its cool-down one request decides."""
    now_s = 0.0
    well = False

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=200 if well else 500)

    breaker = CircuitBreaker(now_s=lambda: now_s, failures_max=3, cooldown_s=5.0)
    async with listening(answer) as target, sending(breaker=breaker) as sender:

        async def post() -> Sent:
            return await sender.post(target.url, BODY, tenant="acme", delivery="d1")

        failures = [(await post()).status for _ in range(3)]
        opened, room = await post(), sender.room(sender.route("acme", target.url))
        heard = len(target.heard)
        now_s = 5.0
        probe, reopened = await post(), await post()
        well = True
        now_s = 15.0
        recovered = [(await post()).ok for _ in range(2)]

    assert [500] * 3 == failures
    assert (True, 5.0, 0, 3) == (opened.deferred, opened.retry_after_s, room, heard)
    assert (500, False) == (probe.status, probe.deferred)
    assert (True, 10.0) == (reopened.deferred, reopened.retry_after_s)
    assert [True, True] == recovered


async def test_a_refusal_of_one_caller_does_not_stop_the_others() -> None:
    """A host that answers 4xx counts as healthy."""

    async def gone(request: web.Request) -> web.StreamResponse:
        return web.Response(status=410)

    breaker = CircuitBreaker(now_s=lambda: 0.0, failures_max=1)
    async with listening(gone) as target, sending(breaker=breaker) as sender:
        for delivery in ("d1", "d2", "d3"):
            sent = await sender.post(target.url, BODY, tenant="acme", delivery=delivery)

    assert (410, False) == (sent.status, sent.deferred)


async def test_a_cancelled_probe_leaves_its_place_to_another() -> None:
    """A node that stops in the middle of a post leaves no host blocked."""
    now_s = 0.0

    async def never(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return web.Response()

    breaker = CircuitBreaker(now_s=lambda: now_s, failures_max=1, cooldown_s=5.0)
    async with listening(never) as target, sending(breaker=breaker) as sender:
        breaker.failed(("acme", f"127.0.0.1:{target.port}"))
        now_s = 5.0
        probe = asyncio.create_task(sender.post(target.url, BODY, tenant="acme", delivery="d1"))
        await target.arrived(1)
        during = sender.room(sender.route("acme", target.url))
        probe.cancel()
        [outcome] = await asyncio.gather(probe, return_exceptions=True)

        assert isinstance(outcome, asyncio.CancelledError)
        assert (0, 4) == (during, sender.room(sender.route("acme", target.url)))


async def test_a_name_that_does_not_resolve_is_a_failure() -> None:
    """The failure is the target's, and is retried like any other."""

    async def lookup(name: str) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async with sending(lookup=lookup) as sender:
        sent = await sender.post("http://hooks.example/", BODY, tenant="acme", delivery="d1")

    assert (0, False) == (sent.status, sent.deferred)
    assert "Name or service not known" in sent.error


async def test_a_name_is_resolved_by_the_system() -> None:
    """The system resolves names unless a custom look-up is given."""
    async with listening() as target, sending() as sender:
        sent = await sender.post(
            f"http://localhost:{target.port}/", BODY, tenant="acme", delivery="d1"
        )

    assert sent.ok
    assert f"localhost:{target.port}" == target.heard[0].headers["Host"]


async def test_an_invalid_url_is_refused_without_a_request() -> None:
    """A delivery to it can never succeed."""
    async with sending() as sender:
        sent = await sender.post("ftp://hooks.example/", BODY, tenant="acme", delivery="d1")
        room = sender.room(sender.route("acme", "ftp://hooks.example/"))

    assert Sent(error="the URL is neither http nor https") == sent
    assert room > 0


async def test_proxies_and_cookies_play_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy could connect to forbidden targets, and a cookie would identify callers."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(headers={"Set-Cookie": "who=me; Path=/"})

    async with listening() as proxy, listening(answer) as target:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        async with sending() as sender:
            for delivery in ("d1", "d2"):
                await sender.post(
                    f"http://localhost:{target.port}", BODY, tenant="acme", delivery=delivery
                )

    assert [] == proxy.heard
    assert [False, False] == ["Cookie" in heard.headers for heard in target.heard]


def test_the_sender_works_on_the_event_loop_of_nodes() -> None:
    """The sender's own sockets are connected by uvloop as by asyncio."""

    async def story() -> tuple[Sent, Sent, Listener]:
        strict = WebhookSettings(allow_private=False, hmac_secret=SECRET)

        async def lookup(name: str) -> Sequence[str]:
            return ("127.0.0.1",)

        async with listening() as target, sending() as sender:
            sent = await sender.post(target.url, BODY, tenant="acme", delivery="d1")
            async with sending(strict, lookup=lookup) as guarded:
                url = f"http://hooks.example:{target.port}/"
                refused = await guarded.post(url, BODY, tenant="acme", delivery="d2")
            return sent, refused, target

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sent, refused, target = runner.run(story())

    assert sent.ok
    assert Sent(error="the target's address is not public") == refused
    assert ["d1"] == [heard.headers["X-CodeQ-Delivery"] for heard in target.heard]
