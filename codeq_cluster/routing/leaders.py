"""Leaders: who leads each shard, by this node's replicas, or by its peers while one is isolated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from codeq_cluster.broker.engine.engine import Engine
from codeq_cluster.errors import NotLeader


class Leaders:
    """Follows the leader of every shard.

    Args:
        replicas: This node's, in the order of shards.
        replaced: Called with (shard, old leader) when another node is found to lead the shard.
    """

    def __init__(self, replicas: Sequence[Engine], *, replaced: Callable[[int, str], None]) -> None:
        self._replicas = replicas
        self._replaced = replaced
        self._latest: list[str | None] = [None] * len(replicas)
        self._changes: list[asyncio.Future[None] | None] = [None] * len(replicas)
        for shard, replica in enumerate(replicas):
            replica.on_leader(partial(self._changed, shard))

    def of(self, shard: int) -> str | None:
        """Return the id of the shard's leader, or None."""
        return self._replicas[shard].leader

    async def change(self, shard: int, timeout_s: float) -> None:
        """Wait until a leader is found or lost, at most `timeout_s`."""
        change = self._changes[shard]
        if change is None:
            change = self._changes[shard] = asyncio.get_running_loop().create_future()
        await asyncio.wait((change,), timeout=timeout_s)

    def _changed(self, shard: int) -> None:
        change, self._changes[shard] = self._changes[shard], None
        if change is not None and not change.done():
            change.set_result(None)
        leader, latest = self.of(shard), self._latest[shard]
        if leader is not None:
            self._latest[shard] = leader
            if latest is not None and latest != leader:
                self._replaced(shard, latest)


class LeaderHints:
    """The peer to ask for each shard, while the own replica is isolated.

    A hint only decides where a request is sent: the receiver answers for a shard only while it
    leads it.
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
