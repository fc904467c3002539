"""Node view: this node's peers, and how it becomes a member."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence

from codeq_cluster.codec import membership as codec
from codeq_cluster.codec.levels import LEVEL
from codeq_cluster.codec.membership import Member, Membership, data_of
from codeq_cluster.membership.bootstrap import (
    STAND,
    Bootstrap,
    BootstrapOutcome,
    BootstrapStatement,
)
from codeq_cluster.membership.registration import Registration
from codeq_cluster.membership.service import MEMBERS, MembershipService
from codeq_cluster.raft.group import RaftGroup
from codeq_cluster.routing.leaders import Leaders
from codeq_cluster.settings import NodeSettings
from codeq_cluster.storage.directory import DataDirectory
from codeq_cluster.wire import Mesh
from codeq_cluster.wire.refusals import HandshakeRefusal

_Serve = Callable[[str, str, object, float], Coroutine[None, None, object]]

log = logging.getLogger(__name__)


class NodeMembers:
    """The cluster's membership, as this node's groups have it.

    Before the groups have any, it is the configured one.

    Args:
        directory: Names the node's data and the bootstrap membership.
        groups: Of this node, in the order of shards.
        leaders: Know who leads each.

    Attributes:
        members: Asks the leaders about the membership.
    """

    def __init__(
        self,
        settings: NodeSettings,
        directory: DataDirectory,
        *,
        groups: Sequence[RaftGroup],
        leaders: Leaders,
        mesh: Mesh,
    ) -> None:
        self._directory = directory
        self._groups = groups
        self._mesh = mesh
        self._configured = {
            peer.id: Member(id=peer.id, link=peer.link, http=peer.http, level=LEVEL)
            for peer in settings.peers
        }
        own = self._configured[settings.node_id]
        self.me = Member(id=own.id, data=directory.data, link=own.link, http=own.http, level=LEVEL)
        self._heard: dict[str, Member] = {}
        self.members = MembershipService(
            node_id=self.me.id, leaders=leaders, groups=groups, link=mesh
        )
        self._bootstrap = Bootstrap(
            statement=self._statement,
            order=[peer.id for peer in settings.peers],
            calls=mesh,
            level=LEVEL,
            on_bootstrap=self._on_bootstrap,
            on_heard=self._on_heard,
            callers=lambda: list(self._heard),
        )
        self._announcing = Registration(
            me=self.me, groups=groups, members=self.members, peers=self.connected
        )

    @property
    def methods(self) -> dict[str, _Serve]:
        """Return the methods served to peers."""
        return {MEMBERS: self.members.serve, STAND: self._bootstrap.serve}

    def known(self) -> dict[str, Member]:
        """Return every node by its id: the members, or the nodes that may let this one join."""
        found = {member.id: member for group in self._groups for member in group.membership.members}
        return found or self._heard | self._configured

    def links(self) -> dict[str, str]:
        """Return the link address of every other node: as configured, else as on record."""
        return {
            member.id: self._configured.get(member.id, member).link
            for member in self.known().values()
            if member.id != self.me.id
        }

    def _recorded(self) -> dict[str, list[str]]:
        """Return every member's own link addresses, by each shard's log."""
        found: dict[str, list[str]] = {}
        for group in self._groups:
            for member in group.membership.members:
                if member.link:
                    found.setdefault(member.id, []).append(member.link)
        return found

    def recognises(self, peer: str, incarnation: int) -> bool:
        """Return whether a node may connect; not if a live node of its id has other data."""
        known = {
            member.data
            for group in self._groups
            if (member := group.membership.of(peer)) is not None and member.data
        }
        if not known or data_of(incarnation) in known:
            return True
        return self._mesh.data_at(peer) not in known

    def welcomes(self) -> bool:
        """Return whether unknown nodes may connect: only while this one does not know its peers."""
        return not self.knows_cluster

    def on_stranger(self, peer: str, address: str) -> None:
        """Record a node that has proved to be of the cluster, and its address.

        If a node's configuration names only nodes that are gone, these calls are its only way to
        find the cluster.
        """
        if not self.knows_cluster and address and len(self._heard) < codec.MEMBERS_MAX:
            self._heard.setdefault(peer, Member(id=peer, link=address))
            self.changed()

    @property
    def knows_cluster(self) -> bool:
        """Return whether this node knows the cluster's membership."""
        return self._directory.bootstrap is not None or bool(self._members())

    def waits_for(self) -> str:
        """Return why this node is not part of a cluster yet, for the operator."""
        text = self._bootstrap.waits_for or self._announcing.refused
        remedies = [
            f"{peer}: {remedy}" for peer in self.links() if (remedy := self._mesh.remedy(peer))
        ]
        return f"{text} ({', '.join(remedies)})" if text and remedies else text

    def connected(self) -> list[str]:
        """Return the nodes that are connected."""
        return [peer for peer in self.links() if self._mesh.connected(peer)]

    def missing(self, shard: int) -> dict[str, str]:
        """Return the voters of a shard that cannot vote with this node now, and why."""
        found = {}
        for member in self._groups[shard].membership.members:
            if not member.voter or member.id == self.me.id:
                continue
            if not self._mesh.connected(member.id):
                remedy = self._mesh.remedy(member.id)
                found[member.id] = f"is not connected: {remedy}" if remedy else "is not connected"
            elif self._mesh.data_at(member.id) not in (None, member.data):
                found[member.id] = "has lost its data"
        return found

    def remedy(self, peer: str) -> str:
        """Return what to do if this node and a peer refuse each other; empty if unknown."""
        return self._mesh.remedy(peer)

    def cannot_reach(self, peer: str) -> str | None:
        """Return the remedy, perhaps empty, if nothing can be sent to a peer; None if it can."""
        if self._mesh.connected(peer):
            return None
        remedy = self._mesh.remedy(peer)
        return f": {remedy}" if remedy else ""

    def needed(self, shard: int) -> bool:
        """Return whether the connected voters of a shard have no majority without this one."""
        group = self._groups[shard]
        voters = group.membership.voters
        others = len(voters) - 1 - len(self.missing(shard))
        return group.status().voting and others <= len(voters) // 2

    def is_past(self, incarnation: int) -> bool:
        """Return whether a node runs on data that the cluster was recovered without."""
        return any(data_of(incarnation) in group.membership.past for group in self._groups)

    def denied_as(self, reason: HandshakeRefusal) -> list[str]:
        """Return the nodes that refuse this one for the given reason."""
        return self._mesh.denied_as(reason)

    def changed(self) -> None:
        """Record that a group's membership changed.

        Raises:
            StorageFailed: The level of newer formats in use cannot be written down.
        """
        for group in self._groups:
            self._directory.use(group.level)
        self._mesh.know(self.links(), self._recorded())
        self._announcing.changed()

    async def take_part(self) -> None:
        """Find the cluster's membership and register this node with it; runs for ever."""
        async with asyncio.TaskGroup() as tasks:
            if not self.knows_cluster:
                outcome = await self._bootstrap.run()
                log.info("cluster found", extra={"outcome": outcome.value})
                if outcome is BootstrapOutcome.LATER:
                    tasks.create_task(self._bootstrap.go_on())
            await self._announcing.run()

    def _statement(self) -> BootstrapStatement:
        bootstrap = self._directory.bootstrap
        return BootstrapStatement(
            me=self.me,
            peers=tuple(sorted(self._configured)),
            states=tuple(
                (status.applied_index, bytes.fromhex(status.digest))
                for status in (group.status() for group in self._groups)
            ),
            bootstrap=codec.encode(bootstrap) if bootstrap is not None else b"",
            members=self._members(),
        )

    def _members(self) -> bytes:
        known = (group.membership for group in self._groups if group.membership.members)
        return next(map(codec.encode, known), b"")

    def _on_heard(self, membership: Membership) -> None:
        heard = {member.id: member for member in membership.members}
        if heard != self._heard:
            self._heard = heard
            self.changed()

    def _on_bootstrap(self, membership: Membership) -> None:
        self._directory.note_bootstrap(membership)
        for group in self._groups:
            group.bootstrap(membership)
