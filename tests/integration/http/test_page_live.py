"""The page's event stream: it follows changes, resumes where it broke off, and is bounded."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

import codeq_cluster
from codeq_cluster.settings import LimitSettings
from codeq_cluster.ui.live import STREAMS_MAX
from tests.integration.http.client import PATIENCE_S, Client, serving, single
from tests.integration.http.page import Session, logged_in, with_roles

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Event(NamedTuple):
    """An event; `number` is empty if it has none."""

    name: str
    number: str
    told: Any


@dataclass(slots=True)
class Stream:
    """A browser's end of a stream."""

    status: int
    head: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def events(self) -> AsyncIterator[Event]:
        """Yield the events; comments are not events."""
        text = ""
        while size := int(await self.reader.readline(), 16):
            text += (await self.reader.readexactly(size + 2))[:-2].decode()
            *whole, text = text.split("\n\n")
            for each in whole:
                fields = dict(line.partition(": ")[::2] for line in each.split("\n"))
                if "event" in fields:
                    number = fields.get("id", "")
                    yield Event(fields["event"], number, json.loads(fields["data"]))

    async def first(self, name: str) -> Event:
        """Wait for the next event of a name."""
        async with asyncio.timeout(PATIENCE_S):
            async for event in self.events():
                if event.name == name:
                    return event
        raise AssertionError(f"the stream ended before {name}")

    def close(self) -> None:
        """Close the connection."""
        self.writer.close()


async def opened(session: Session, query: str, **headers: str) -> Stream:
    """Open a stream as a browser does."""
    reader, writer = await session.client.connect()
    head = session.client.head(
        "GET", f"/ui/api/live?{query}", 0, token="", Cookie=session.cookie, **headers
    )
    writer.write(head)
    answered = await reader.readuntil(b"\r\n\r\n")
    return Stream(int(answered.split()[1]), answered, reader, writer)


@dataclass(slots=True)
class World:
    """A node, and an admin of a tenant on its page."""

    client: Client
    admin: Session


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Run a node for this file alone."""
    settings = with_roles(single(tmp_path_factory.mktemp("live"), LimitSettings()))
    async with serving(settings) as client:
        client.token = "producer"
        yield World(client, await logged_in(client, "admin"))


async def test_a_stream_sends_every_change(world: World) -> None:
    """A new task in a queue sends the queue again, without a request."""
    stream = await opened(world.admin, "view=queue&queue=streamed")
    before = await stream.first("view")
    await world.client.create("streamed")
    after = await stream.first("view")
    stream.close()

    assert 0 == before.told["queue"]["ready"]
    assert 1 == after.told["queue"]["ready"]


async def test_the_connection_of_a_stream_ends_with_it(world: World) -> None:
    """A browser that comes back opens another one; the node keeps no idle ones."""
    stream = await opened(world.admin, "view=overview")
    stream.close()

    assert 200 == stream.status
    assert b"\r\nconnection: close\r\n" in stream.head.lower()


async def test_charts_go_on_where_they_broke_off(world: World) -> None:
    """A browser reconnects with the number of its last slot, and gets the later slots."""
    stream = await opened(world.admin, "view=overview")
    whole = await stream.first("series")
    last = whole.told["first"] + len(whole.told["created"]) - 1
    stream.close()
    again = await opened(world.admin, "view=overview", Last_Event_ID=str(last - 1))
    rest = await again.first("series")
    again.close()

    assert str(last) == whole.number
    assert last == rest.told["first"]


async def test_an_operator_sees_the_charts_of_each_tenant(world: World) -> None:
    """The numbers are that tenant's alone; an admin may not name one, even its own."""
    await world.client.create("charted")
    operator = await logged_in(world.client, "operator")
    stream = await opened(operator, "view=overview&tenant=acme")
    async with asyncio.timeout(PATIENCE_S):
        while not any((await stream.first("series")).told["ready"]):
            continue
    stream.close()
    other = await operator.view("overview&tenant=other")
    refused = await world.admin.view("overview&tenant=other")

    assert not any(other["series"]["ready"])
    assert (403, "forbidden") == (refused["trouble"]["status"], refused["trouble"]["code"])
    assert "series" not in refused


async def test_no_viewer_and_no_tenant_takes_all_streams(world: World) -> None:
    """A browser beyond its share polls; others of its tenant and other tenants get streams."""
    greedy = [await opened(world.admin, "view=frame") for _ in range(STREAMS_MAX // 4 + 1)]
    over = greedy.pop()
    again = await opened(await logged_in(world.client, "admin"), "view=frame")
    colleague = [
        await opened(await logged_in(world.client, "viewer"), "view=frame")
        for _ in range(STREAMS_MAX // 8)
    ]
    stranger = await opened(await logged_in(world.client, "stranger"), "view=frame")
    asked = await world.admin.get("/now?view=frame")
    for stream in (*greedy, *colleague, stranger):
        stream.close()
    async with asyncio.timeout(PATIENCE_S):
        while (later := await opened(world.admin, "view=frame")).status != 200:
            later.close()
    later.close()

    assert {200} == {stream.status for stream in (*greedy, *colleague, stranger)}
    assert (503, 503, 200) == (over.status, again.status, asked.status)


async def test_viewers_share_what_is_made_of_all_queues(tmp_path: Path) -> None:
    """A further look at a thousand queues calls far fewer functions than there are queues."""
    package = str(Path(codeq_cluster.__file__).parent)
    calls = 0

    def called(frame: FrameType, event: str, _of: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(package)

    limits = LimitSettings(batch_max=1000)
    async with serving(with_roles(single(tmp_path, limits))) as client:
        tasks = [{"command": f"q{number}", "payload": 1} for number in range(1000)]
        made = await client.post("tasks/batch", {"tasks": tasks}, token="producer")
        admin = await logged_in(client, "admin")
        fewest: dict[str, int] = {}
        for view in ("overview", "queues&sort=ready&limit=50"):
            counts = []
            for _ in range(20):  # Some make it anew: it is shared for a second.
                calls = 0
                sys.setprofile(called)
                try:
                    shown = await admin.view(view)
                finally:
                    sys.setprofile(None)
                counts.append(calls)
            fewest[view] = min(counts)
            assert 1000 == shown["totals"]["ready"]

    assert 200 == made.status
    assert [] == [view for view, count in fewest.items() if count > 400], fewest


async def test_a_stream_is_refused_before_it_begins(world: World) -> None:
    """Another role's view, an unknown view and a missing session are refused."""
    refused = [
        (await opened(world.admin, "view=cluster")).status,
        (await opened(world.admin, "view=nothing")).status,
        (await opened(Session(world.client, "", ""), "view=frame")).status,
    ]

    assert [403, 400, 401] == refused
