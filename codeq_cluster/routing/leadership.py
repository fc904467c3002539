"""Leadership: transfers of a shard's leadership, requested on any node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from codeq_cluster.broker.engine.engine import Engine
from codeq_cluster.errors import LinkLost, NoLeader, NotLeader, OutcomeUnknown, PeerUnreachable
from codeq_cluster.routing.leaders import Leaders
from codeq_cluster.wire import Mesh

TRANSFER = "transfer"

# A leader tries for half a second; in the rest this node must hear of the new leader.
WAIT_S = 1.5
PAUSE_S = 0.05  # Between two checks for a leader while no event announces one.


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
        replicas: This node's, in the order of shards; they know who leads.
        begin: Starts to transfer a shard's leadership from this node to a peer, or to any peer for
            None; returns whether it started.
    """

    def __init__(
        self,
        *,
        node_id: str,
        replicas: Sequence[Engine],
        begin: Callable[[int, str | None], bool],
        calls: Mesh,
    ) -> None:
        self._node_id = node_id
        self._count = len(replicas)
        self._begin = begin
        self._calls = calls
        self._leaders = Leaders(replicas, replaced=lambda _shard, _leader: None)

    async def transfer(self, shard: int, to: str, *, timeout_s: float) -> TransferAnswer:
        """Transfer a shard's leadership to a node, or to any other if `to` is empty.

        The leader stays if `to` is the leader itself, or a peer that is away or too far behind.

        Raises:
            NoLeader: No leader was found; nothing was done.
            OutcomeUnknown: The leader was asked and did not answer.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while (left_s := deadline - loop.time()) > 0:
            leader = self._leaders.of(shard)
            try:
                return await self._ask(leader, shard, to, left_s=left_s)
            except (NotLeader, PeerUnreachable):
                pass  # Nothing was done.
            except LinkLost as lost:
                raise OutcomeUnknown(f"{leader} was asked to hand shard {shard} over") from lost
            if leader == self._leaders.of(shard):
                await self._leaders.change(shard, min(PAUSE_S, max(0, deadline - loop.time())))
        raise NoLeader(f"no leader for shard {shard}")

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

    async def _ask(
        self, leader: str | None, shard: int, to: str, *, left_s: float
    ) -> TransferAnswer:
        if leader is None:
            raise NotLeader
        if leader == self._node_id:
            return await self._give(shard, to)
        # Without a topic: a change of the leader ends all calls whose topic is the shard, and this
        # call may cause one.
        said = await self._calls.call(leader, TRANSFER, [shard, to], timeout_s=left_s)
        return msgspec.convert(said, TransferAnswer)

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
