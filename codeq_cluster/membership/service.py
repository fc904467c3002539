"""Service: changes the membership of the groups, whichever node gets the request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec import Struct

from codeq_cluster.codec.membership import Member, Membership
from codeq_cluster.errors import (
    LinkLost,
    MembershipRefused,
    MethodUnknown,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
)
from codeq_cluster.membership import plan
from codeq_cluster.membership.plan import Change, Dismiss
from codeq_cluster.raft.group import RaftGroup
from codeq_cluster.routing.leaders import Leaders
from codeq_cluster.wire import Mesh

MEMBERS = "members"

_ASK_ON = 0.8  # Share of a node's time that the node it asks may use.
_TRANSFER_S = 2.0  # Half a second until a peer leads, the rest for news of the new leader.


class Effect(Struct, frozen=True, array_like=True, kw_only=True):
    """The effect of a change on one shard's group, or the reason for its refusal.

    Attributes:
        leader: The node that decided.
        voters: Now.
        voters_after: After the change.
        learners_after: After the change; the leader makes them voters when they have caught up.
        answering: How many of `voters_after` answer now, and acknowledge entries.
        changes: Whether there is, or was, a change to make.
        done: It is committed; False for a dry run or a refusal.
        refused: Why nothing was done; empty for no objection.
        code: Stable, of the refusal.
        retryable: It may be possible later.
        level: Of the formats in use now.
        level_after: After the change.
        levels: The newest formats each member knows, as (id, level).
    """

    shard: int
    leader: str
    voters: tuple[str, ...]
    voters_after: tuple[str, ...]
    learners_after: tuple[str, ...]
    answering: int
    changes: bool
    done: bool = False
    refused: str = ""
    code: str = ""
    retryable: bool = False
    level: int = 1
    level_after: int = 1
    levels: tuple[tuple[str, int], ...] = ()


class MembershipService:
    """The membership of every shard, from this node.

    Args:
        leaders: Know who leads each shard.
        groups: This node's, in the order of shards.
    """

    def __init__(
        self,
        *,
        node_id: str,
        leaders: Leaders,
        groups: Sequence[RaftGroup],
        link: Mesh,
    ) -> None:
        self._node_id = node_id
        self._groups = groups
        self._link = link
        self._leaders = leaders

    async def change(
        self, shard: int, change: Change, *, timeout_s: float, dry: bool = False
    ) -> Effect:
        """Change one group and return the effect, or only predict it.

        A change waits for another one in progress.

        Args:
            dry: Change nothing.

        Raises:
            NoLeader: No leader was found; nothing was done.
            OutcomeUnknown: The leader was asked and did not answer.
            MethodUnknown: Its release does not know the change; nothing was done.
        """
        effect: Effect | None = None

        async def ask(leader: str, left_s: float) -> Effect:
            nonlocal effect
            effect = await self._ask(leader, shard, change, dry=dry, left_s=left_s)
            if effect.code == "busy":
                raise NotLeader(leader)  # It leads, and has done nothing.
            return effect

        try:
            return await self._leaders.ask(shard, ask, timeout_s=timeout_s)
        except NoLeader:
            if effect is None:
                raise
            return effect

    async def ask_through(
        self, peer: str, shard: int, change: Change, *, timeout_s: float
    ) -> Effect:
        """Ask the leader through a peer: for a node that has no leader yet.

        Raises:
            PeerUnreachable: The peer was not asked.
            NoLeader: It knows no leader.
            OutcomeUnknown: It did not answer.
        """
        # The peer's deadline is earlier, so that its reason for giving up reaches this node in
        # time.
        body = [shard, msgspec.to_builtins(change), False, timeout_s * _ASK_ON]
        try:
            said = await self._link.call(peer, MEMBERS, body, timeout_s=timeout_s)
        except LinkLost as lost:
            raise OutcomeUnknown(f"{peer} was asked to change shard {shard}") from lost
        return msgspec.convert(said, Effect)

    async def serve(self, peer: str, method: str, body: object, timeout_s: float) -> object:
        """Decide for a peer if this node leads the shard, or ask the leader: an Effect.

        Raises:
            NotLeader: This node does not lead the shard and was not to ask on; nothing was done.
            MethodUnknown: The body does not fit this release; nothing was done.
            ValueError: The shard does not exist.
        """
        del peer, method
        try:
            shard, change, dry, ask_on_s = msgspec.convert(body, tuple[int, Change, bool, float])
        except msgspec.ValidationError as error:
            raise MethodUnknown(f"this release knows no such change: {error}") from error
        if not 0 <= shard < len(self._groups):
            raise ValueError(f"no such shard: {shard}")
        if ask_on_s > 0:
            effect = await self.change(shard, change, timeout_s=min(ask_on_s, timeout_s), dry=dry)
        else:
            effect = await self._decide(shard, change, dry=dry)
        return msgspec.to_builtins(effect)

    async def _ask(
        self, leader: str, shard: int, change: Change, *, dry: bool, left_s: float
    ) -> Effect:
        if leader == self._node_id:
            try:
                async with asyncio.timeout(left_s):
                    return await self._decide(shard, change, dry=dry)
            except TimeoutError as late:
                raise OutcomeUnknown(f"shard {shard} has not agreed in time") from late
        body = [shard, msgspec.to_builtins(change), dry, 0.0]
        # Without a topic: calls about a shard are ended when its leader changes, which this call
        # may cause.
        said = await self._link.call(leader, MEMBERS, body, timeout_s=left_s)
        return msgspec.convert(said, Effect)

    async def _decide(self, shard: int, change: Change, *, dry: bool) -> Effect:
        if self._leaders.of(shard) != self._node_id:
            raise NotLeader(self._leaders.of(shard))
        group = self._groups[shard]
        now = group.membership
        if isinstance(change, Dismiss):
            stay = set(now.voters) - {self._node_id, change.id}
            if None in map(group.acknowledges, stay):
                # This node has just begun to lead: wait for the others' answers.
                return self._busy(shard)
        try:
            wanted = plan.changed(
                now,
                change,
                lives=lambda node_id, data: self._link.data_at(node_id) == data,
                answers=partial(self._commits, group)
                # After a removal, the remaining voters must commit at once.
                if isinstance(change, Dismiss)
                else self._answers,
            )
        except MembershipRefused as refused:
            return self._effect(shard, now, now, refused=refused)
        effect = self._effect(shard, now, wanted)
        if dry:
            return effect
        if isinstance(change, Dismiss) and change.id == self._node_id and wanted != now:
            await self._transfer(shard)
            raise NotLeader(self._leaders.of(shard))
        if wanted == now:
            # An earlier request may have made this change, and it may still fail to commit.
            return self._busy(shard) if group.changing else _done(effect)
        return await self._commit(shard, wanted, effect)

    async def _commit(self, shard: int, wanted: Membership, effect: Effect) -> Effect:
        committed = asyncio.get_running_loop().create_future()

        def done(known: bool) -> None:
            if not committed.done():
                committed.set_result(known)

        group = self._groups[shard]
        try:
            begun = group.change(wanted, done)
        except ValueError as error:
            refused = MembershipRefused(str(error), code="unsafe")
            return self._effect(shard, group.membership, group.membership, refused=refused)
        if not begun:
            return self._busy(shard)
        if not await committed:
            raise OutcomeUnknown(f"the leader of shard {shard} changed meanwhile")
        return _done(effect)

    def _busy(self, shard: int) -> Effect:
        now = self._groups[shard].membership
        busy = MembershipRefused(
            "another change is under way: try again", code="busy", retryable=True
        )
        return self._effect(shard, now, now, refused=busy)

    async def _transfer(self, shard: int) -> None:
        """Stop leading a group that this node is to leave; bounded."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _TRANSFER_S
        self._groups[shard].transfer(None)
        while self._leaders.of(shard) == self._node_id and (left_s := until - loop.time()) > 0:
            await self._leaders.change(shard, left_s)

    def _commits(self, group: RaftGroup, voter: Member) -> bool:
        # A voter that fetches a snapshot, or whose replica is out, is connected all the same.
        return voter.id == self._node_id or (
            self._answers(voter) and group.acknowledges(voter.id) is not False
        )

    def _answers(self, voter: Member) -> bool:
        if voter.id == self._node_id:
            return True
        # A node that lost its data is connected and does not count.
        known = voter.data in (0, self._link.data_at(voter.id))
        return known and self._link.connected(voter.id)

    def _effect(
        self,
        shard: int,
        now: Membership,
        wanted: Membership,
        *,
        refused: MembershipRefused | None = None,
    ) -> Effect:
        return Effect(
            shard=shard,
            leader=self._node_id,
            voters=now.voters,
            voters_after=wanted.voters,
            learners_after=tuple(each.id for each in wanted.members if not each.voter),
            answering=sum(
                self._commits(self._groups[shard], each) for each in wanted.members if each.voter
            ),
            changes=wanted != now,
            refused=str(refused or ""),
            code=refused.code if refused else "",
            retryable=refused.retryable if refused else False,
            level=now.level,
            level_after=wanted.level,
            levels=tuple((member.id, member.level) for member in wanted.members),
        )


def _done(effect: Effect) -> Effect:
    return msgspec.structs.replace(effect, done=True)
