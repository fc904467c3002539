"""A process of node n2 that talks to n1 until it is killed: port, n1's address, incarnation."""

from __future__ import annotations

import asyncio
import sys

import uvloop

from codeq_cluster.settings import LinkSettings
from codeq_cluster.wire import Mesh


async def refuse(peer: str, method: str, body: object, timeout_s: float) -> object:
    """Refuse every call."""
    raise AssertionError((peer, method, body, timeout_s))


async def run(port: int, peer: str, incarnation: int) -> None:
    """Run the node."""
    mesh = Mesh(
        node_id="n2",
        cluster_id="c",
        secret="the cluster's secret",
        peers={"n1": peer},
        host="127.0.0.1",
        port=port,
        settings=LinkSettings(),
        incarnation=incarnation,
        on_raft=lambda *_: None,
        on_up=lambda _: None,
        on_down=lambda *_: None,
        serve=refuse,
    )
    await mesh.start()
    await asyncio.Event().wait()


uvloop.run(run(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
