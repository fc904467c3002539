"""Readiness: the reasons for which a node should get no requests."""

from __future__ import annotations

from collections.abc import Sequence

from codeq_cluster.membership.node_view import NodeMembers
from codeq_cluster.node.disk_guard import DiskGuard
from codeq_cluster.raft.group import RaftGroup
from codeq_cluster.raft.status import GroupStatus
from codeq_cluster.wire.refusals import HandshakeRefusal


class Readiness:
    """Says why a node is not ready, for `/readyz`.

    Args:
        groups: Of this node, in the order of shards.

    Attributes:
        draining: The node is about to stop.
    """

    def __init__(
        self,
        *,
        groups: Sequence[RaftGroup],
        members: NodeMembers,
        disk_guard: DiskGuard,
        entries_in_flight_max: int,
    ) -> None:
        self.draining = False
        self._groups = groups
        self._members = members
        self._disk_guard = disk_guard
        # Under load a follower is always a few entries behind; balancers must not leave it for
        # that.
        self._tolerated = 2 * entries_in_flight_max

    def missing(self, *, in_full: bool) -> list[str]:
        """Return the reasons, each once, with the shards it applies to.

        Args:
            in_full: With directories of this machine, which only operators may see.
        """
        if self.draining:
            return ["draining: this node is about to stop"]
        of_node: dict[str, None] = {}
        of_shards: dict[str, list[int]] = {}
        for group in self._groups:
            status = group.status()
            if refused := self._unseated(status):
                of_node[refused] = None
            elif words := self._of_shard(status, in_full=in_full):
                of_shards.setdefault(words, []).append(status.shard)
        return [*of_node, *(_told(shards, words) for words, shards in of_shards.items())]

    def _unseated(self, status: GroupStatus) -> str:
        """Return why this node is not a member, for a shard it does not belong to yet."""
        if status.shard in self._disk_guard.out or (status.voting and status.leader is not None):
            return ""
        me = self._members.me.id
        if others := self._members.denied_as(HandshakeRefusal.RECOVERED):
            return (
                f"the data of {me} is from before the cluster was recovered without it, by the "
                f"word of {', '.join(others)}: stop it, empty its data directory, let it in with "
                f"`cluster join {me}`, and start it again"
            )
        if others := self._members.denied_as(HandshakeRefusal.STRANGER):
            return (
                f"{me} is no member of this cluster, by the word of {', '.join(others)}: "
                f"let it in with `cluster join {me}`, or stop it"
            )
        known = self._groups[status.shard].membership.members
        return "" if known else self._members.waits_for()

    def _of_shard(self, status: GroupStatus, *, in_full: bool) -> str:
        """Return a shard's problem, as the text after its number; empty for none."""
        if status.shard in (out := self._disk_guard.out):
            outage = out[status.shard]
            return f": {outage.text if in_full else outage.public}"
        if not status.voting:
            return self._not_voting(status.shard)
        if status.in_doubt:
            others = ", ".join(status.in_doubt)
            return f": its state is not that of {others}, and no majority has been heard"
        if status.leader is None or (status.is_leader and not status.ready):
            return f" has no leader{self._without_majority(status.shard)}"
        if not status.is_leader and (why := self._members.cannot_reach(status.leader)) is not None:
            return f" is led by {status.leader}, which this node cannot reach{why}"
        behind = status.known_commit - status.applied_index
        return f" is {behind} entries behind" if behind > self._tolerated else ""

    def _without_majority(self, shard: int) -> str:
        """Return which voters a majority lacks, and the remedy; empty if it lacks none."""
        voters = self._groups[shard].membership.voters
        missing = self._members.missing(shard)
        if len(voters) - len(missing) > len(voters) // 2:
            return ""
        return (
            f": {len(missing)} of its {len(voters)} voters are missing ("
            f"{', '.join(f'{peer} {why}' for peer, why in missing.items())}); start them on their "
            "data, or see `cluster recover` if that is lost for good"
        )

    def _not_voting(self, shard: int) -> str:
        me = self._members.me.id
        membership = self._groups[shard].membership
        if not membership.members:
            return " does not know its members yet"
        if membership.of(me) is None:
            return f": {me} is no member of this cluster"
        return " is being copied to this node"


def _told(shards: Sequence[int], words: str) -> str:
    names = ", ".join(map(str, shards))
    if len(shards) == 1:
        return f"shard {names}{words}"
    return f"shards {names}{words}" if words.startswith(":") else f"each of shards {names}{words}"
