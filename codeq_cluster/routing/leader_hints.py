"""Leader hints: the leader of a shard by its peers' answers, while the own replica is isolated.

A hint only decides where a request is sent: the receiver answers for a shard only while it leads
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from codeq_cluster.errors import NotLeader


class LeaderHints:
    """The peer to ask for each shard.

    Args:
        peers: Returns the nodes that are connected.
    """

    def __init__(self, peers: Callable[[], Sequence[str]]) -> None:
        self._peers = peers
        self._believed: dict[int, str] = {}

    def of(self, shard: int) -> str | None:
        """Return the peer last believed to lead, or any peer, or None if none is connected."""
        peers = sorted(self._peers())
        believed = self._believed.get(shard)
        if believed in peers:
            return believed
        return peers[0] if peers else None

    def astray(self, shard: int, peer: str | None, error: Exception) -> None:
        """Record that a peer did not answer for a shard; follow its hint on the leader, if any.

        Without a hint, the peers are asked one after the other.
        """
        if peer is None:
            return
        peers = sorted(self._peers())
        hint = error.hint if isinstance(error, NotLeader) else None
        after = [each for each in peers if each > peer] or peers
        if hint != peer and hint in peers:
            self._believed[shard] = hint
        elif after:
            self._believed[shard] = after[0]
