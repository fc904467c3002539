"""Registration: a node registers itself with its groups until each has it on record.

In this way an expected node becomes a learner, and a node that lost its data returns as one. A new
address or a newer release becomes known the same way. A node whose data was put back after others
took its place is on record in its own log only, and gets nothing that says otherwise: it notices
that it stands still.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from codeq_cluster.codec.membership import Member
from codeq_cluster.errors import CodeqError, NoLeader
from codeq_cluster.membership.plan import JoiningNode
from codeq_cluster.membership.service import Effect, MembershipService
from codeq_cluster.raft.group import RaftGroup

TIMEOUT_S = 5.0
PAUSE_S = 0.2
PAUSE_S_MAX = 5.0
STANDS_S = 5.0  # A shard that lacks entries and gets none for so long is registered again.

log = logging.getLogger(__name__)


class Registration:
    """One node's registrations.

    Args:
        me: This node; its groups decide whether it votes.
        groups: Of this node, in the order of shards.
        members: Sends the registration to the leader of a group.
        stands_s: Seconds after which a shard that lacks entries and gets none is registered again.

    Attributes:
        refused: Why the last registration was refused; empty once one succeeds.
    """

    def __init__(
        self,
        *,
        me: Member,
        groups: Sequence[RaftGroup],
        members: MembershipService,
        peers: Callable[[], Sequence[str]],
        stands_s: float = STANDS_S,
    ) -> None:
        self._stands_s = stands_s
        self._me = me
        self._groups = groups
        self._members = members
        self._peers = peers
        self._changed = asyncio.Event()
        self._logged: set[str] = set()
        self.refused = ""

    def changed(self) -> None:
        """Record that a group's membership changed."""
        self._changed.set()

    async def run(self) -> None:
        """Register this node wherever its entry is missing or outdated; runs for ever."""
        pause_s = PAUSE_S
        standing: Sequence[int] = ()
        while True:
            self._changed.clear()
            unknown = [shard for shard in range(len(self._groups)) if not self._on_record(shard)]
            if not unknown and not standing:
                self._logged.clear()
                self.refused = ""
                pause_s = PAUSE_S
                standing = await self._standing()
                continue
            for shard in {*unknown, *standing}:
                await self._announce(shard)
            # A registration is complete when its entry comes back through the log. This node may
            # need a snapshot first.
            try:
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
                pause_s = PAUSE_S
            except TimeoutError:
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
            standing = ()

    async def _standing(self) -> Sequence[int]:
        """Wait for a change; if there is none for long, return the shards that stood still."""
        before = self._lacking()
        try:
            async with asyncio.timeout(self._stands_s):
                await self._changed.wait()
        except TimeoutError:
            return [shard for shard, at in self._lacking().items() if before.get(shard) == at]
        return ()

    def _lacking(self) -> dict[int, int]:
        """Return the applied index of each shard of which this node knows that it lacks entries."""
        seen = {shard: group.status() for shard, group in enumerate(self._groups)}
        return {
            shard: status.applied_index
            for shard, status in seen.items()
            if status.known_commit > status.applied_index
        }

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
        joining_node = JoiningNode(
            id=me.id, data=me.data, link=me.link, http=me.http, level=me.level
        )
        try:
            if self._groups[shard].membership.of(me.id) is None:
                effect = await self._through_a_peer(shard, joining_node)
            else:
                effect = await self._by_itself(shard, joining_node)
        except (CodeqError, ValueError) as error:
            # A shard that only stands still may stand because there is no leader.
            if not self._on_record(shard):
                self._tell(f"shard {shard}: {error}")
            return
        if effect.refused:
            self._tell(effect.refused)

    async def _by_itself(self, shard: int, joining_node: JoiningNode) -> Effect:
        """Ask the leader, or a peer: an unreachable leader may lack this node's new address."""
        try:
            return await self._members.change(shard, joining_node, timeout_s=TIMEOUT_S)
        except NoLeader:
            return await self._through_a_peer(shard, joining_node)

    async def _through_a_peer(self, shard: int, joining_node: JoiningNode) -> Effect:
        """Ask the leader through any connected peer."""
        failure: CodeqError | None = None
        for peer in self._peers():
            try:
                return await self._members.ask_through(
                    peer, shard, joining_node, timeout_s=TIMEOUT_S
                )
            except CodeqError as error:
                failure = error
        raise failure or CodeqError("no node of the cluster is connected")

    def _tell(self, reason: str) -> None:
        self.refused = reason
        # While no node is connected nobody refuses this one: a new cluster's first node is alone.
        if self._peers() and reason not in self._logged:
            self._logged.add(reason)
            log.warning("registration refused", extra={"reason": reason})
