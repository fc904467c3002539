"""Linked nodes: the calls of `AskAll` between nodes of one process, some of which do not answer."""

from __future__ import annotations

import asyncio

from codeq_cluster.errors import PeerUnreachable
from codeq_cluster.routing.ask_all import AskAll


class Link:
    """Connects nodes of one process; those that are away do not answer."""

    def __init__(self) -> None:
        self.nodes: dict[str, AskAll] = {}
        self.away: set[str] = set()
        self.silent: set[str] = set()

    async def call(
        self, peer: str, method: str, body: object, *, timeout_s: float, topic: int | None = None
    ) -> object:
        """Pass a call on."""
        assert topic is None
        if peer in self.away:
            raise PeerUnreachable(peer)
        if peer in self.silent:
            await asyncio.Event().wait()
        return await self.nodes[peer].serve("n1", method, body, timeout_s)
