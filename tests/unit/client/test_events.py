"""Events of the client: a stream goes on at any node, and says why it cannot."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from aiohttp import web
from msgspec.structs import fields as fields_of

from codeq_cluster.api.routes.events import EventView
from codeq_cluster.broker.feed.events import EventKind as Kinds
from codeq_cluster.client import Client, EventKind, Refused, SyncClient, TaskEvent, Unreachable
from codeq_cluster.testing.broker import LocalBroker

from .servers import serve

WITHIN_S = 20.0


def test_a_record_has_every_field_of_the_api() -> None:
    """Beside them it has its cursor; the kinds are those of the broker."""
    names = {each.encode_name for each in fields_of(TaskEvent)}

    assert {each.encode_name for each in fields_of(EventView)} == names - {"cursor"}
    assert list(Kinds) == list(EventKind)


def test_a_program_without_a_loop_follows_too(broker: LocalBroker) -> None:
    """The stream ends when its iterator is closed, and goes on after a cursor of its events."""
    with broker.sync_client() as client:
        after = client.events_cursor()
        made = [client.create("followed", n).id for n in range(3)]
        stream = client.events(command="followed", after=after)
        first = next(stream)
        stream.close()
        rest = client.events(command="followed", after=first.cursor)
        told = {first.task_id}
        while len(told) < len(made):
            told.add(next(rest).task_id)
    rest.close()  # It has ended with its client.

    assert set(made) == told
    assert SyncClient.events_cursor.__doc__ == Client.events_cursor.__doc__


async def test_a_stream_that_breaks_goes_on_where_it_was(broker: LocalBroker) -> None:
    """Nothing is lost between the node that fails and the next one."""
    cut: list[str] = []

    async def fail(request: web.Request) -> web.StreamResponse:
        cut.append(request.headers.get("Last-Event-ID", ""))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(f"retry: 1\nid: {cut[0]}\n\n".encode())
        assert request.transport is not None
        request.transport.abort()
        return response

    async with broker.client() as client, serve(fail) as failing, asyncio.timeout(WITHIN_S):
        after = await client.events_cursor()
        made = await client.create("went-on", 1)
        options = {"token": broker.token, "discover": False}
        async with (
            Client([failing, broker.url], **options) as watching,  # type: ignore[arg-type]
            aclosing(watching.events(command="went-on", after=after)) as stream,
        ):
            event = await anext(stream)

    assert [after] == cut
    assert made.id == event.task_id


async def test_a_stream_that_no_node_serves_ends_in_time(closed_url: str) -> None:
    """The caller learns that no node takes a connection."""
    async with Client([closed_url], token="t", discover=False) as client:
        with pytest.raises(Unreachable):
            async with aclosing(client.events(within_s=0)) as stream:
                await anext(stream)


async def test_an_expired_cursor_is_an_error_of_the_stream() -> None:
    """Also if it expires while the stream is open; it is not asked for again."""
    asked: list[int] = []

    async def expire(request: web.Request) -> web.StreamResponse:
        asked.append(1)
        said = b'{"error":"gone","code":"cursor-expired","retryable":false}'
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"event: error\ndata: %b\n\n" % said)
        return response

    async with serve(expire) as url, Client([url], token="t", discover=False) as client:
        with pytest.raises(Refused) as refused:
            async with aclosing(client.events()) as stream:
                await anext(stream)

    assert (410, "cursor-expired") == (refused.value.status, refused.value.code)
    assert [1] == asked
