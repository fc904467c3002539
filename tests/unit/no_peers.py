"""No peers: the link of a node without peers."""

from __future__ import annotations


class NoPeers:
    """A link without calls."""

    async def call(
        self, peer: str, method: str, body: object, *, timeout_s: float, topic: int | None = None
    ) -> object:
        """Fail: there is no peer to call."""
        raise AssertionError((peer, method, body, timeout_s, topic))

    def give_up(self, peer: str, topic: int) -> None:
        """Do nothing, because no call waits."""
