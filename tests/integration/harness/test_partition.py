"""Partition: a cut direction holds its bytes, and healing delivers them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from codeq_cluster.testing.ports import free_ports
from tests.harness.partition import LinkProxies


@asynccontextmanager
async def echo_servers() -> AsyncIterator[LinkProxies]:
    """Run three nodes that answer every line with itself, behind proxies."""
    ended: list[asyncio.Task[None]] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while line := await reader.readline():
                writer.write(line)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.append(asyncio.create_task(echo(reader, writer)))

    ports = dict(zip("abc", free_ports(3), strict=True))
    proxies = LinkProxies(ports)
    servers = [await asyncio.start_server(accepted, "127.0.0.1", port) for port in ports.values()]
    await proxies.start()
    try:
        yield proxies
    finally:
        await proxies.stop()
        await asyncio.gather(*ended)
        for server in servers:
            server.close()
            await server.wait_closed()


@asynccontextmanager
async def dialled(
    proxies: LinkProxies, source: str, target: str
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Dial one node as another."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxies.port(source, target))
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.parametrize("direction", [("a", "b"), ("b", "a")])
async def test_a_blocked_direction_holds_its_bytes_until_it_is_healed(
    direction: tuple[str, str],
) -> None:
    """Neither the request nor the answer passes, and nothing is lost."""
    async with echo_servers() as proxies, dialled(proxies, "a", "b") as (reader, writer):
        writer.write(b"before\n")
        before = await reader.readline()
        proxies.block(*direction)
        writer.write(b"during\n")
        held = asyncio.create_task(reader.readline())
        done, _ = await asyncio.wait({held}, timeout=0.1)
        proxies.unblock(*direction)

        assert b"before\n" == before
        assert not done
        assert b"during\n" == await asyncio.wait_for(held, 60)


async def test_the_other_directions_stay_open_while_one_is_blocked() -> None:
    """Of three nodes, only the bytes from one to another are held."""
    async with echo_servers() as proxies:
        proxies.block("a", "b")
        async with dialled(proxies, "c", "b") as (reader, writer):
            writer.write(b"hello\n")

            assert b"hello\n" == await asyncio.wait_for(reader.readline(), 60)


async def test_a_node_that_is_not_there_ends_the_diallers_connection() -> None:
    """A proxy without a server behind it closes at once."""
    proxies = LinkProxies(dict(zip("ab", free_ports(2), strict=True)))
    await proxies.start()
    try:
        async with dialled(proxies, "a", "b") as (reader, _):
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(reader.readexactly(1), 60)
    finally:
        await proxies.stop()
