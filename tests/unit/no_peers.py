"""No peers: the link of a node that has nobody to call."""

from __future__ import annotations


class NoPeers:
    """Nobody is called, and nothing waits."""

    async def call(
        self, peer: str, method: str, body: object, *, timeout_s: float, topic: int | None = None
    ) -> object:
        """Fail: nobody is to be called."""
        raise AssertionError((peer, method, body, timeout_s, topic))

    def give_up(self, peer: str, topic: int) -> None:
        """Nothing waits."""
