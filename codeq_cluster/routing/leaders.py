"""Leaders: who leads each shard as far as this node knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from codeq_cluster.broker.engine.engine import Engine


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
