"""Nodes: three of them on one loop, over real sockets, each with a client."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from codeq_cluster.node.compose import Node
from codeq_cluster.settings import LimitSettings, NodeSettings, PeerAddress
from codeq_cluster.testing.ports import free_ports
from tests.integration.http.client import OPERATOR, Client, eventually, single

NAMES = ("n1", "n2", "n3")


@dataclass
class Nodes:
    """Nodes by their id, each with its configuration."""

    settings: dict[str, NodeSettings]
    running: dict[str, Node] = field(default_factory=dict)
    clients: dict[str, Client] = field(default_factory=dict)

    async def start(self, name: str, **changed: object) -> Client:
        """Start a node with its earlier configuration and the given changes."""
        node = Node(replace(self.settings[name], **changed))  # type: ignore[arg-type]
        await node.start()
        self.running[name] = node
        self.clients[name] = Client(node.port)
        return self.clients[name]

    async def stop(self, name: str) -> None:
        """Stop a node, and close its clients' connections."""
        for writer in self.clients.pop(name).open:
            writer.close()
        await self.running.pop(name).stop()

    async def ready(self, *names: str) -> None:
        """Wait until nodes are ready."""
        for name in names:
            await self.says(name, lambda missing: not missing)

    async def says(self, name: str, holds: Callable[[list[str]], bool]) -> list[str]:
        """Wait until `/readyz`, asked as operator, has the expected state; return it."""

        async def missing() -> list[str]:
            told = (await self.clients[name].get("/readyz", token=OPERATOR)).json
            return [str(line) for line in told.get("missing", [])]  # type: ignore[attr-defined]

        return await eventually(missing, holds)


@contextlib.asynccontextmanager
async def three_nodes(directory: Path, **changed: object) -> AsyncIterator[Nodes]:
    """Run three nodes of two shards until the end of the block.

    Args:
        directory: Their data goes below it.
        changed: Changes of their settings.
    """
    ports = dict(zip(NAMES, free_ports(len(NAMES)), strict=True))
    made = Nodes(
        {
            name: replace(
                single(directory / name, LimitSettings()),
                node_id=name,
                peers=peers_at(ports),
                link_port=ports[name],
                **changed,  # type: ignore[arg-type]
            )
            for name in NAMES
        }
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(_stop, made)
        for name in NAMES:
            await made.start(name)
        await made.ready(*NAMES)
        yield made


async def _stop(nodes: Nodes) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for name in list(nodes.running):
            stack.push_async_callback(nodes.stop, name)


def peers_at(ports: Mapping[str, int]) -> tuple[PeerAddress, ...]:
    """Return nodes by the ports of their links, in the form of `raft.peers`."""
    return tuple(
        PeerAddress(id=name, link=f"127.0.0.1:{port}", http=f"http://{name}")
        for name, port in ports.items()
    )
