"""Leadership: transfers of a shard's leadership, requested on any node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from msgspec import Struct

from codeq_cluster.errors import NotLeader
from codeq_cluster.routing.leaders import Leaders
from codeq_cluster.wire import Mesh

TRANSFER = "transfer"

# A leader tries for half a second; in the rest this node must hear of the new leader.
WAIT_S = 1.5


class TransferAnswer(Struct, frozen=True, array_like=True):
    """The outcome of a leadership transfer.

    Attributes:
        before: The leader before the transfer.
        leader: The leader now; equal to `before` if the transfer failed.
    """

    before: str
    leader: str


class LeadershipTransfers:
    """Transfers the leadership of any shard, on behalf of this node's callers and peers.

    Args:
        count: How many shards there are.
        leaders: Know who leads each.
        begin: Starts to transfer a shard's leadership from this node to a peer, or to any peer for
            None; returns whether it started.
    """

    def __init__(
        self,
        *,
        node_id: str,
        count: int,
        leaders: Leaders,
        begin: Callable[[int, str | None], bool],
        calls: Mesh,
    ) -> None:
        self._node_id = node_id
        self._count = count
        self._begin = begin
        self._calls = calls
        self._leaders = leaders

    async def transfer(self, shard: int, to: str, *, timeout_s: float) -> TransferAnswer:
        """Transfer a shard's leadership to a node, or to any other if `to` is empty.

        The leader stays if `to` is the leader itself, or a peer that is away or too far behind.

        Raises:
            NoLeader: No leader was found; nothing was done.
            OutcomeUnknown: The leader was asked and did not answer.
        """

        async def ask(leader: str, left_s: float) -> TransferAnswer:
            if leader == self._node_id:
                return await self._give(shard, to)
            # Without a topic: a change of the leader ends all calls whose topic is the shard, and
            # this call may cause one.
            said = await self._calls.call(leader, TRANSFER, [shard, to], timeout_s=left_s)
            return msgspec.convert(said, TransferAnswer)

        return await self._leaders.ask(shard, ask, timeout_s=timeout_s)

    async def serve(self, peer: str, method: str, body: object, timeout_s: float) -> object:
        """Transfer one of this node's leaderships for a peer; return [before, leader].

        Raises:
            NotLeader: This node does not lead the shard; nothing was done.
            ValueError: The body does not fit the method.
        """
        del peer, method, timeout_s
        shard, to = msgspec.convert(body, tuple[int, str])
        if not 0 <= shard < self._count:
            raise ValueError(f"no such shard: {shard}")
        return msgspec.to_builtins(await self._give(shard, to))

    async def _give(self, shard: int, to: str) -> TransferAnswer:
        own = self._node_id
        if self._leaders.of(shard) != own:
            raise NotLeader(self._leaders.of(shard))
        if to == own or not self._begin(shard, to or None):
            return TransferAnswer(own, own)
        loop = asyncio.get_running_loop()
        until = loop.time() + WAIT_S
        while (left_s := until - loop.time()) > 0:
            await self._leaders.change(shard, left_s)
            leader = self._leaders.of(shard)
            if leader is not None and leader != own:
                return TransferAnswer(own, leader)
        return TransferAnswer(own, self._leaders.of(shard) or own)
