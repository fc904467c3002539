"""A process of node n2 that talks to n1 until killed; it gets port, n1's address, incarnation."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import ClassVar

import uvloop

from codeq_cluster.settings import LinkSettings
from codeq_cluster.wire import Mesh
from codeq_cluster.wire.handshake import LinkIdentity
from codeq_cluster.wire.rpc import Quick


class Silent:
    """A node that ignores its peers' messages, and lets every peer connect."""

    quick: ClassVar[Mapping[str, Quick]] = {}

    def on_raft(self, peer: str, group: int, message: bytes) -> None:
        """Drop it."""

    def on_up(self, peer: str) -> None:
        """Do nothing."""

    def on_down(self, peer: str, *, refused: bool) -> None:
        """Do nothing."""

    async def on_call(self, peer: str, method: str, body: object, timeout_s: float) -> object:
        """Refuse every call."""
        raise AssertionError((peer, method, body, timeout_s))

    def welcomes(self) -> bool:
        """Return whether strangers may connect."""
        return False

    def recognises(self, peer: str, incarnation: int) -> bool:
        """Return whether a peer may connect."""
        return bool(peer and incarnation)

    def is_past(self, incarnation: int) -> bool:
        """Return whether the data is a recovered cluster's past."""
        return incarnation == 0

    def on_stranger(self, peer: str, address: str) -> None:
        """Do nothing."""


async def run(port: int, peer: str, incarnation: int) -> None:
    """Run the node."""
    node = Silent()
    mesh = Mesh(
        LinkIdentity(
            node_id="n2",
            cluster_id="c",
            incarnation=incarnation,
            secret=b"the cluster's secret",
        ),
        peers={"n1": peer},
        host="127.0.0.1",
        port=port,
        settings=LinkSettings(),
    )
    await mesh.start(node, node)
    await asyncio.Event().wait()


uvloop.run(run(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
