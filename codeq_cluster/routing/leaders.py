"""Leaders: who leads each shard, by this node's replicas, or by its peers while one is isolated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from codeq_cluster.broker.engine.engine import Engine
from codeq_cluster.errors import LinkLost, NoLeader, NotLeader, OutcomeUnknown, PeerUnreachable

# Between two looks for a leader while no event announces one; a change ends the wait at once.
PAUSE_S = 0.05

_T = TypeVar("_T")


class Leaders:
    """Follows the leader of every shard.

    Args:
        replicas: This node's, in the order of shards.
        replaced: Called with (shard, old leader) when another node is found to lead the shard.
    """

    def __init__(
        self,
        replicas: Sequence[Engine],
        *,
        replaced: Callable[[int, str], None] = lambda _shard, _leader: None,
    ) -> None:
        self._replicas = replicas
        self._replaced = replaced
        self.ask_peers(while_out=lambda _shard: False, peers=tuple)
        self._latest: list[str | None] = [None] * len(replicas)
        self._changes: list[asyncio.Future[None] | None] = [None] * len(replicas)
        for shard, replica in enumerate(replicas):
            replica.on_leader(partial(self._changed, shard))

    def ask_peers(
        self, *, while_out: Callable[[int], bool], peers: Callable[[], Sequence[str]]
    ) -> None:
        """Let peers be asked who leads a shard while this node's replica of it is out of service.

        It then learns of no leader, however long it waits.

        Args:
            while_out: Returns whether the replica is.
            peers: Returns the connected nodes.
        """
        self._is_out = while_out
        self.hints = LeaderHints(peers)

    def of(self, shard: int) -> str | None:
        """Return the id of the shard's leader, or None."""
        return self._replicas[shard].leader

    def isolated(self, shard: int) -> bool:
        """Return whether the shard's entries do not reach this node, so that a peer is to be asked.

        `hints` has the peer.
        """
        return self.of(shard) is None and self._is_out(shard)

    async def change(self, shard: int, timeout_s: float) -> None:
        """Wait until a leader is found or lost, at most `timeout_s`."""
        change = self._changes[shard]
        if change is None:
            change = self._changes[shard] = asyncio.get_running_loop().create_future()
        await asyncio.wait((change,), timeout=timeout_s)

    async def ask(
        self, shard: int, ask: Callable[[str, float], Awaitable[_T]], *, timeout_s: float
    ) -> _T:
        """Ask the shard's leader until one answers; nothing is repeated that may have been done.

        Args:
            shard: The shard.
            ask: Asks a node within so many seconds; raises NotLeader or PeerUnreachable if nothing
                was done, LinkLost if that is not known.
            timeout_s: For all of it.

        Raises:
            NoLeader: No leader was found; nothing was done.
            OutcomeUnknown: A node was asked and did not answer.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while (left_s := deadline - loop.time()) > 0:
            isolated = self.isolated(shard)
            leader = self.hints.of(shard) if isolated else self.of(shard)
            try:
                if leader is not None:
                    return await ask(leader, left_s)
            except (NotLeader, PeerUnreachable) as refused:
                self.hints.astray(shard, leader, refused)  # Nothing was done.
            except LinkLost as lost:
                raise OutcomeUnknown(f"{leader} was asked about shard {shard}") from lost
            if isolated or leader == self.of(shard):
                await self.change(shard, min(PAUSE_S, max(0, deadline - loop.time())))
        raise NoLeader(f"no leader for shard {shard}")

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
