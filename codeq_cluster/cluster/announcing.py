"""Announcing: a node tells its groups who it is, until each of them has that on record.

That is how one that was expected comes in, how one that lost its data comes back as a learner, and
how a new address or a newer release becomes known.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from codeq_cluster.cluster.joining import Newcomer
from codeq_cluster.cluster.members import Effect, Group, Members
from codeq_cluster.codec.membership import Member
from codeq_cluster.errors import CodeqError, NoLeader

TIMEOUT_S = 5.0
PAUSE_S = 0.2
PAUSE_S_MAX = 5.0

log = logging.getLogger(__name__)


class Announcing:
    """One node's announcements.

    Args:
        me: This node; whether it votes is for the groups to say.
        groups: Of this node, in the order of shards.
        members: Asks their leaders.
        peers: Returns the nodes that are connected.

    Attributes:
        refused: Why this node was not let in the last time it asked; empty once it is.
    """

    def __init__(
        self,
        *,
        me: Member,
        groups: Sequence[Group],
        members: Members,
        peers: Callable[[], Sequence[str]],
    ) -> None:
        self._me = me
        self._groups = groups
        self._members = members
        self._peers = peers
        self._changed = asyncio.Event()
        self._told: set[str] = set()
        self.refused = ""

    def changed(self) -> None:
        """Note that a group's membership is another."""
        self._changed.set()

    async def run(self) -> None:
        """Announce this node wherever it is not on record as it is, for ever."""
        pause_s = PAUSE_S
        while True:
            self._changed.clear()
            unknown = [shard for shard in range(len(self._groups)) if not self._on_record(shard)]
            if not unknown:
                self._told.clear()
                self.refused = ""
                pause_s = PAUSE_S
                await self._changed.wait()
                continue
            for shard in unknown:
                await self._announce(shard)
            # Also what was done has to come back through the log, which a snapshot may precede.
            try:
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
                pause_s = PAUSE_S
            except TimeoutError:
                pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _on_record(self, shard: int) -> bool:
        me, known = self._me, self._groups[shard].membership.of(self._me.id)
        return known is not None and (known.data, known.link, known.http, known.level) == (
            me.data,
            me.link,
            me.http,
            me.level,
        )

    async def _announce(self, shard: int) -> None:
        me = self._me
        newcomer = Newcomer(id=me.id, data=me.data, link=me.link, http=me.http, level=me.level)
        try:
            if self._groups[shard].membership.of(me.id) is None:
                effect = await self._through_a_peer(shard, newcomer)
            else:
                effect = await self._by_itself(shard, newcomer)
        except (CodeqError, ValueError) as error:
            self._tell(f"shard {shard}: {error}")
            return
        if effect.refused:
            self._tell(effect.refused)

    async def _by_itself(self, shard: int, newcomer: Newcomer) -> Effect:
        """Ask the leader; one that this node does not hear may not know yet where it has moved."""
        try:
            return await self._members.change(shard, newcomer, timeout_s=TIMEOUT_S)
        except NoLeader:
            return await self._through_a_peer(shard, newcomer)

    async def _through_a_peer(self, shard: int, newcomer: Newcomer) -> Effect:
        """Ask the leader by way of whoever is connected."""
        failure: CodeqError | None = None
        for peer in self._peers():
            try:
                return await self._members.ask_through(peer, shard, newcomer, timeout_s=TIMEOUT_S)
            except CodeqError as error:
                failure = error
        raise failure or CodeqError("no node of the cluster is connected")

    def _tell(self, reason: str) -> None:
        self.refused = reason
        if reason not in self._told:
            self._told.add(reason)
            log.warning("not let in", extra={"reason": reason})
