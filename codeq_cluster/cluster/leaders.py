"""Leaders: who leads each shard as far as this node knows, and the calls under way to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from codeq_cluster.errors import LinkLost

_T = TypeVar("_T")


class Replica(Protocol):
    """A shard's replica on this node, which learns from its Raft group who leads."""

    @property
    def leader(self) -> str | None:
        """Return the leader's node id, or None."""

    def on_leader(self, call: Callable[[], None]) -> None:
        """Call `call` whenever a leader is found or lost."""


class Leaders:
    """Follows the leader of every shard."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._changes: list[asyncio.Future[None] | None] = [None] * len(replicas)
        self._calls: list[dict[asyncio.Task[Any], str]] = [{} for _ in replicas]
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

    async def while_it_leads(self, shard: int, leader: str, call: Coroutine[Any, Any, _T]) -> _T:
        """Run a call to the shard's leader; give it up when another node leads.

        A leader that has stopped answering without its connection breaking (a paused process, a
        silent cut) is noticed by the others electing a new one.

        Raises:
            LinkLost: Another node leads now; the old one may have acted.
        """
        task = asyncio.get_running_loop().create_task(call)
        self._calls[shard][task] = leader
        try:
            return await task
        except asyncio.CancelledError:
            if task.cancelled() and self.of(shard) != leader:
                raise LinkLost(f"{leader} no longer leads shard {shard}") from None
            raise
        finally:
            del self._calls[shard][task]
            task.cancel()

    def _changed(self, shard: int) -> None:
        change, self._changes[shard] = self._changes[shard], None
        if change is not None and not change.done():
            change.set_result(None)
        leader = self.of(shard)
        if leader is not None:
            for task, asked in self._calls[shard].items():
                if asked != leader:
                    task.cancel()
