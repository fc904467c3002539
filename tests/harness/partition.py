"""Partition: a TCP proxy in front of every directed link, to cut nodes off without root."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from functools import partial

_CHUNK_BYTES = 64 * 1024


class LinkProxies:
    """One listening proxy for each ordered pair of nodes; the pair is (dialler, dialled).

    A blocked direction holds bytes instead of dropping them, like a network in which TCP resends
    lost packets: connections stay open, and the bytes arrive when the direction is unblocked. The
    proxy of a node that does not run closes the dialler's connection.

    Attributes:
        dialled: Connections so far, by pair.
    """

    def __init__(self, link_ports: Mapping[str, int]) -> None:
        self._link_ports = dict(link_ports)
        self._servers: dict[tuple[str, str], asyncio.Server] = {}
        self._open: dict[tuple[str, str], asyncio.Event] = {}
        self._connections: dict[asyncio.Task[None], tuple[str, str]] = {}
        self._refused: set[tuple[str, str]] = set()
        self.dialled: Counter[tuple[str, str]] = Counter()

    async def start(self) -> None:
        """Listen for every ordered pair, on ports the kernel picks."""
        for source in self._link_ports:
            for target in self._link_ports:
                if source == target:
                    continue
                self._open[source, target] = asyncio.Event()
                self._open[source, target].set()
                accepted = partial(self._accepted, source, target)
                self._servers[source, target] = await asyncio.start_server(accepted, "127.0.0.1", 0)

    async def stop(self) -> None:
        """Close every listener and connection; safe to call again."""
        for server in self._servers.values():
            server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        # The transports aborted above close on the loop's next pass.
        await asyncio.sleep(0)
        for server in self._servers.values():
            await server.wait_closed()
        self._servers.clear()

    def port(self, source: str, target: str) -> int:
        """Return the port `source` must dial to reach `target`."""
        port: int = self._servers[source, target].sockets[0].getsockname()[1]
        return port

    def block(self, source: str, target: str) -> None:
        """Hold all bytes from `source` to `target`, on connections dialled by either."""
        self._open[source, target].clear()

    def unblock(self, source: str, target: str) -> None:
        """Let bytes from `source` to `target` pass, starting with those held."""
        self._refused.discard((source, target))
        if (source, target) in self._open:
            self._open[source, target].set()

    def refuse(self, source: str, target: str) -> None:
        """End the connections that `source` has dialled to `target`, and every later one."""
        self._refused.add((source, target))
        for connection, pair in self._connections.items():
            if pair == (source, target):
                connection.cancel()

    def _accepted(
        self,
        source: str,
        target: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.dialled[source, target] += 1
        if (source, target) in self._refused:
            writer.transport.abort()
            return
        connection = asyncio.create_task(self._relay(source, target, reader, writer))
        self._connections[connection] = source, target
        connection.add_done_callback(self._connections.pop)

    async def _relay(
        self,
        source: str,
        target: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        forward, backward = self._open[source, target], self._open[target, source]
        far_writer: asyncio.StreamWriter | None = None
        try:
            # TCP's own handshake needs both directions.
            await forward.wait()
            await backward.wait()
            try:
                far_reader, far_writer = await asyncio.open_connection(
                    "127.0.0.1", self._link_ports[target]
                )
            except OSError:
                # Nobody listens there; the close below tells the dialler.
                return
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(_pump(reader, far_writer, forward))
                pumps.create_task(_pump(far_reader, writer, backward))
        finally:
            writer.transport.abort()
            if far_writer is not None:
                far_writer.transport.abort()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: asyncio.Event
) -> None:
    """Copy bytes while `passes` is set; the end of the stream is held like a byte."""
    try:
        while chunk := await reader.read(_CHUNK_BYTES):
            await passes.wait()
            writer.write(chunk)
            await writer.drain()
        await passes.wait()
    except OSError:
        # A reset of either end closes the other one below.
        await passes.wait()
    # Closing also ends the reader of that connection, and with it the opposite pump.
    writer.close()
