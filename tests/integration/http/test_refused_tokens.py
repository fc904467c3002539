"""Refused tokens: an address that sends too many waits for its answers, and nobody else does.

Time stands still in these tests, so the node's timers go off only when a test moves it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from codeq_cluster.api.http.strangers import DELAY_S_MAX, REFUSALS
from codeq_cluster.node.compose import Node
from codeq_cluster.settings import LimitSettings
from tests.integration.http.client import (
    DEADLINE_S,
    Answer,
    Client,
    read_answer,
    running_node,
    single,
)
from tests.integration.http.page import try_to_log_in, with_roles

_TURN_S = 60 / REFUSALS.per_minute
_ALMOST = 0.98
_OTHER = "127.0.0.3"
_HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n"
_TAKEN_MAX = 32 * 2**20  # More than the kernel's two buffers.

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter


class HeldLoop(asyncio.SelectorEventLoop):
    """A loop whose time stands still while a test holds it.

    Attributes:
        held_s: Where it stands; None while it goes on.
    """

    held_s: float | None = None

    def time(self) -> float:
        """Return the loop's time."""
        return super().time() if self.held_s is None else self.held_s


def move(seconds: float) -> None:
    """Move the time that stands still."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, HeldLoop)
    assert loop.held_s is not None
    loop.held_s += seconds


def let_go() -> None:
    """Let the time go on."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, HeldLoop)
    loop.held_s = None


@contextlib.asynccontextmanager
async def held(
    directory: Path, limits: LimitSettings | None = None
) -> AsyncIterator[tuple[Node, Client]]:
    """Run a node, whose time stands still, that has refused as many tokens as it does at once."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, HeldLoop)
    settings = with_roles(single(directory / "node", limits or LimitSettings()))
    async with running_node(settings) as (node, client):
        client.token = "worker"
        loop.held_s = loop.time()
        try:
            reader, writer = await client.connect()
            for _ in range(REFUSALS.burst):
                writer.write(wrong_claim(client))
                assert 401 == (await read_answer(reader)).status
            writer.close()
            yield node, client
        finally:
            let_go()


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test on a loop whose time can stand still."""

    async def awaited() -> None:
        await test()

    with asyncio.Runner(loop_factory=HeldLoop) as runner:
        runner.run(awaited())


def wrong_claim(client: Client) -> bytes:
    """Return a request that is read in one piece."""
    return client.head("POST", "tasks/claim", 2, token="wrong") + b"{}"


def wrong_read(client: Client) -> bytes:
    """Return a request that the library reads."""
    return client.head("GET", "admin/queues", 0, token="wrong")


def wrong_log_in(client: Client) -> bytes:
    """Return a log-in."""
    body = json.dumps({"token": "wrong"}).encode()
    json_type = {"Content_Type": "application/json"}
    return client.head("POST", "/ui/api/session", len(body), token="", **json_type) + body


def broken_log_in(client: Client) -> bytes:
    """Return a log-in that has no token to check."""
    return client.head("POST", "/ui/api/session", 2, token="") + b"{}"


async def asked(
    client: Client, request: bytes, *, address: str = "127.0.0.1"
) -> tuple[Reader, Writer, asyncio.Future[Answer]]:
    """Send a request on a connection of its own; return the answer to come."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", client.port, local_addr=(address, 0)
    )
    client.open.append(writer)
    writer.write(request)
    answering = asyncio.ensure_future(read_answer(reader))
    await others_are_served(client)
    return reader, writer, answering


async def until_one_waits(client: Client) -> None:
    """Send wrong tokens until the answer to one is delayed: time that was moved has added to them.

    At most so many are answered at once.
    """
    for _ in range(REFUSALS.burst):
        _, _, answering = await asked(client, wrong_claim(client))
        if not answering.done():
            return
    raise AssertionError("every wrong token is answered at once")


async def others_are_served(client: Client) -> None:
    """Send valid tokens from the same address; what went before has had its turns by then."""
    assert 200 == (await try_to_log_in(client, "viewer")).status
    assert 200 == (await client.get("admin/queues", token="admin")).status
    assert 204 == (await client.post("tasks/claim", {"commands": ["none"]})).status


@pytest.mark.parametrize(
    ("request_of", "status"),
    [(wrong_claim, 401), (wrong_read, 401), (wrong_log_in, 401), (broken_log_in, 415)],
)
def test_beyond_its_pace_an_address_waits_and_valid_tokens_do_not(
    tmp_path: Path, request_of: Callable[[Client], bytes], status: int
) -> None:
    """The answer is the connection's last one: a request that follows is never read."""

    async def test() -> None:
        async with held(tmp_path) as (_, client):
            reader, _, answering = await asked(client, request_of(client) + _HEALTHZ)
            waits = [not answering.done()]
            move(_TURN_S * _ALMOST)
            await others_are_served(client)
            waits.append(not answering.done())
            move(_TURN_S)
            answer = await answering
            rest = await reader.read()

        assert [True, True] == waits
        assert (status, "close") == (answer.status, answer.headers["connection"])
        assert b"" == rest

    run(test)


def test_log_ins_that_are_too_many_wait_too(tmp_path: Path) -> None:
    """Their 429 comes after the same wait as a 401."""

    async def test() -> None:
        async with held(tmp_path) as (_, client):
            statuses = []
            for n in range(11):
                if n:
                    await until_one_waits(client)
                _, _, answering = await asked(client, wrong_log_in(client))
                assert not answering.done()
                move(3 * _TURN_S)
                statuses.append((await answering).status)

        assert [401] * 10 + [429] == statuses

    run(test)


def test_the_answers_of_an_address_have_their_turns(tmp_path: Path) -> None:
    """More connections do not get more answers; another address is answered at once."""

    async def test() -> None:
        async with held(tmp_path) as (_, client):
            answers = [(await asked(client, wrong_read(client)))[2] for _ in range(3)]
            _, _, other = await asked(client, wrong_read(client), address=_OTHER)
            answered = [[each.done() for each in (*answers, other)]]
            for _ in range(3):
                move(_TURN_S * 1.01)
                await others_are_served(client)
                answered.append([each.done() for each in answers])

        assert [
            [False, False, False, True],
            [True, False, False],
            [True, True, False],
            [True, True, True],
        ] == answered

    run(test)


def test_no_answer_is_delayed_for_longer_than_the_bound(tmp_path: Path) -> None:
    """Beyond that the number of connections counts, which is an address's share."""

    async def test() -> None:
        async with held(tmp_path) as (_, client):
            count = round(DELAY_S_MAX / _TURN_S) + 20
            answers = []
            for _ in range(count):
                reader, writer = await client.connect()
                writer.write(wrong_read(client))
                answers.append(asyncio.ensure_future(read_answer(reader)))
            await others_are_served(client)
            waiting = sum(not each.done() for each in answers)
            move(DELAY_S_MAX)
            statuses = {(await each).status for each in answers}

        assert count == waiting
        assert {401} == statuses

    run(test)


def test_delayed_answers_leave_connections_to_valid_tokens(tmp_path: Path) -> None:
    """Four of sixteen may wait, two of one address; a further one is answered and closed."""

    async def test() -> None:
        async with held(tmp_path, LimitSettings(connections_max=16)) as (_, client):
            sent = [await asked(client, wrong_read(client) + _HEALTHZ) for _ in range(3)]
            at_once = [answering.done() for *_, answering in sent]
            rest = await sent[-1][0].read()
            move(3 * _TURN_S)
            statuses = [(await answering).status for *_, answering in sent]
            for reader, *_ in sent:
                await reader.read()
            # Both places are free again.
            await until_one_waits(client)
            _, _, later = await asked(client, wrong_read(client))
            waits = not later.done()
            move(3 * _TURN_S)
            await others_are_served(client)

        assert [False, False, True] == at_once
        assert b"" == rest
        assert [401] * 3 == statuses
        assert waits
        assert later.done()

    run(test)


def test_nothing_is_read_while_an_answer_is_delayed(tmp_path: Path) -> None:
    """The client's further bytes stay in the kernel's buffers, which are bounded."""

    async def test() -> None:
        async with held(tmp_path) as (_, client):
            with socket.create_connection(("127.0.0.1", client.port)) as raw:
                raw.sendall(wrong_read(client))
                await others_are_served(client)
                raw.setblocking(False)
                taken, more = 0, True
                while more and taken < _TAKEN_MAX:
                    more = False
                    with contextlib.suppress(BlockingIOError):
                        while taken < _TAKEN_MAX:
                            taken += raw.send(_HEALTHZ * 1000)
                            more = True
                    await others_are_served(client)

        assert taken < _TAKEN_MAX

    run(test)


def test_the_sender_of_a_body_reads_its_delayed_answer(tmp_path: Path) -> None:
    """The rest of the body is drained, so that no reset destroys the answer."""

    async def test() -> None:
        async with held(tmp_path) as (_, client):
            head = client.head("POST", "tasks", 2**20, token="wrong")
            reader, writer, answering = await asked(client, head + b" " * 2**16)
            assert not answering.done()
            move(2 * _TURN_S)
            answer = await answering
            writer.write(b" " * (2**20 - 2**16))
            await writer.drain()
            writer.write_eof()
            rest = await reader.read()

        assert 401 == answer.status
        assert b"" == rest

    run(test)


def test_a_delayed_answer_to_head_has_no_body(tmp_path: Path) -> None:
    """A client would take a body for the next answer."""

    async def test() -> None:
        async with held(tmp_path) as (_, client):
            reader, writer = await client.connect()
            writer.write(client.head("HEAD", "tasks/t/artifacts/u/a", 0, token="wrong"))
            await others_are_served(client)
            move(2 * _TURN_S)
            sent = await reader.read()

        assert sent.startswith(b"HTTP/1.1 401 ")
        assert sent.index(b"\r\n\r\n") == len(sent) - 4

    run(test)


@pytest.mark.parametrize("request_of", [wrong_claim, wrong_read])
def test_a_node_that_stops_waits_for_no_delay(
    tmp_path: Path, request_of: Callable[[Client], bytes]
) -> None:
    """Its clients get their answers at once, although the time stands still."""

    async def test() -> None:
        async with held(tmp_path) as (node, client):
            with socket.create_connection(("127.0.0.1", client.port)) as raw:
                # Of the machine's time, because the loop's stands still.
                raw.settimeout(DEADLINE_S)
                raw.sendall(request_of(client))
                await others_are_served(client)
                stopping = asyncio.ensure_future(node.stop())
                received = await asyncio.to_thread(raw.recv, 2**16)
                let_go()
                await stopping

        assert received.startswith(b"HTTP/1.1 401 ")

    run(test)
