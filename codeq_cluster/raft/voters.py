"""Voters: the voters and learners of a group, as of the newest membership."""

from __future__ import annotations

import msgspec

from codeq_cluster.codec.membership import Membership, data_of


class Voters:
    """The members as one node of the group sees them; `adopt` changes them for all readers.

    Args:
        node_id: This node.
        shard: Number of the group.
        own_data: Identity of this node's data.

    Attributes:
        membership: The membership in force.
        index: Index of the entry that names it.
        voters: Ids of the members that count for a majority.
        peers: Ids of all members but this node.
        data: Identity of each peer's data, 0 when it is not known.
        learners: Ids of the members that wait to become voters and whose data is known.
        voting: This node is a voter and has the data it was named with. After a loss of data,
            an old log or snapshot may still name it as a voter with its former data.
        majority: The number of voters that decide.
        preferred: The voter that should lead when it can; None before the group is
            bootstrapped.
        rank: Place of this node among the voters, counted from the preferred one.
    """

    def __init__(self, *, node_id: str, shard: int, own_data: int) -> None:
        self._node_id = node_id
        self._shard = shard
        self._own_data = own_data
        self.data: dict[str, int] = {}
        self.adopt(0, Membership())

    def adopt(self, index: int, membership: Membership) -> None:
        """Follow another membership from now on."""
        self.index = index
        self.membership = membership
        self.voters = membership.voters
        self.peers = tuple(member.id for member in membership.members if member.id != self._node_id)
        self.learners = tuple(
            member.id for member in membership.members if not member.voter and member.data
        )
        me = membership.of(self._node_id)
        self.voting = me is not None and me.voter and me.data in (0, self._own_data)
        self.majority = len(self.voters) // 2 + 1
        self.preferred = self.voters[self._shard % len(self.voters)] if self.voters else None
        self.rank = 0
        if self.voting and self.preferred is not None:
            places = self.voters.index(self._node_id) - self.voters.index(self.preferred)
            self.rank = places % len(self.voters)
        self.data = {
            member.id: member.data for member in membership.members if member.id != self._node_id
        }

    def knows(self, peer: str, incarnation: int) -> bool:
        """Return whether a peer is a member and runs on the data it joined with.

        A node that lost its data has forgotten its votes and the entries it acknowledged.
        """
        data = self.data.get(peer)
        return data is not None and data in (0, data_of(incarnation))

    def votes(self, peer: str) -> bool:
        """Return whether a node counts for a majority."""
        return peer in self.voters

    def with_voter(self, learner: str) -> Membership:
        """Return the membership with a learner promoted to a voter."""
        member = self.membership.of(learner)
        assert member is not None, "a learner is a member"
        return self.membership.with_member(msgspec.structs.replace(member, voter=True))
