"""Hints: who leads a shard by the word of the peers, while this node's own replica hears of nobody.

Nothing rests on a hint but where a request is sent: whoever is asked answers for a shard only while
it leads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from codeq_cluster.errors import NotLeader


class Hints:
    """Whom to ask for each shard.

    Args:
        peers: Returns the nodes that are connected.
    """

    def __init__(self, peers: Callable[[], Sequence[str]]) -> None:
        self._peers = peers
        self._believed: dict[int, str] = {}

    def of(self, shard: int) -> str | None:
        """Return the peer to ask: the last that was believed to lead, else any; None for nobody."""
        peers = sorted(self._peers())
        believed = self._believed.get(shard)
        if believed in peers:
            return believed
        return peers[0] if peers else None

    def astray(self, shard: int, peer: str | None, error: Exception) -> None:
        """Note that a peer gave no answer for a shard, but perhaps its word on who leads.

        Without a word the next peer is asked, one after the other.
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
