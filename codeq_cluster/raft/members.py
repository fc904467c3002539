"""Members: who they are at every index of the log, now and next, and how they can be reached.

The newest membership in the log is in force, committed or not; a truncated one was never in force.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from codeq_cluster.codec import membership as codec
from codeq_cluster.codec.membership import Membership, data_of
from codeq_cluster.raft.safety_switches import SafetySwitches

# The index of the entry that holds a membership, and the membership.
Named = tuple[int, Membership]

Done = Callable[[bool], None]


class Memberships:
    """The memberships that one log names, from its oldest entry on.

    Attributes:
        newest: The one in force.
    """

    newest: Named

    def __init__(self) -> None:
        # The first is the base: the membership at the log's oldest entry. It is never truncated.
        self._named: list[Named] = []

    @property
    def base(self) -> Named:
        """Return the membership at the log's oldest entry."""
        return self._named[0]

    def begin(self, index: int, membership: Membership) -> None:
        """Start with the membership at the log's oldest entry."""
        self.newest = (index, membership)
        self._named = [self.newest]

    def append(self, index: int, payload: bytes) -> None:
        """Note an entry that names a membership; raises ValueError if it names none."""
        if index > self.newest[0]:
            self.newest = (index, codec.decode(payload))
            self._named.append(self.newest)

    def truncate(self, start: int) -> None:
        """Forget the memberships that the entries from `start` on named."""
        while len(self._named) > 1 and self._named[-1][0] >= start:
            self._named.pop()
        self.newest = self._named[-1]

    def trim(self, floor: int) -> bool:
        """Forget memberships replaced by entry `floor`; return whether the base changed."""
        count = sum(index <= floor for index, _ in self._named[1:])
        del self._named[:count]
        return count > 0

    def at(self, index: int) -> Named:
        """Return the membership at an entry that is kept."""
        return next(named for named in reversed(self._named) if named[0] <= index)


class Voters:
    """The members as one node of the group sees them; `adopt` changes them for all readers.

    Args:
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
        prefers_another: Another node should lead when it can.
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
        self.prefers_another = self.preferred not in (None, self._node_id)
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


class Links:
    """The state of the connections to all peers, members or not.

    No peer is both connected and refused.

    Attributes:
        connected: The peers to which the link works.
        refused: The peers whose process was gone when they were last dialled.
    """

    def __init__(self) -> None:
        self.connected: set[str] = set()
        self.refused: set[str] = set()

    def up(self, peer: str) -> None:
        """Note that the link to the peer works."""
        self.connected.add(peer)
        self.refused.discard(peer)

    def down(self, peer: str, *, refused: bool) -> None:
        """Note that the link broke, and whether dialling again was refused."""
        self.connected.discard(peer)
        if refused:
            self.refused.add(peer)

    def leave_a_majority(self, voters: Voters) -> bool:
        """Return whether the voters that are not known to be gone are a majority."""
        gone = sum(map(voters.votes, self.refused))
        return len(voters.voters) - gone >= voters.majority


class Followers:
    """The notes of one replica's leaderships, by follower.

    Attributes:
        awaited: A caller on the follower's node waits for entries to be applied there.
        rewound: Number of the last message sent before the latest rewind.
        informed: The commit index that was last sent to the follower.
    """

    def __init__(self) -> None:
        self.awaited: dict[str, bool] = {}
        self.rewound: Counter[str] = Counter()
        self.informed: dict[str, int] = {}
        self._out_of_reach: dict[str, float] = {}

    def lacks_trimmed_entries(self, peer: str, now: float) -> None:
        """Note that the follower needs entries that this leader's log no longer has."""
        self._out_of_reach[peer] = now

    def out_of_reach(self, peer: str, *, since: float) -> bool:
        """Return whether the follower has needed trimmed entries after `since`."""
        return self._out_of_reach.get(peer, since) > since


class Changes:
    """One change, from its request until it is committed or this node no longer leads.

    Attributes:
        wanted: The membership to propose next, once.
        index: Of the entry that holds it.
    """

    def __init__(self, voters: Voters, *, node_id: str, rules: SafetySwitches) -> None:
        self._voters = voters
        self._node_id = node_id
        self._rules = rules
        self.wanted: Membership | None = None
        self.index: int | None = None
        self._done: Done | None = None

    @property
    def under_way(self) -> bool:
        """Return whether a change was begun and has not ended."""
        return self._done is not None

    def check(self, wanted: Membership) -> None:
        """Check that any majority before the change shares a voter with any majority after it.

        Raises:
            ValueError: They might share none, this node would have no vote, or a member would not
                know the format version in use.
        """
        now, then = _voters(self._voters.membership), _voters(wanted)
        if self._node_id not in wanted.voters:
            raise ValueError(f"{self._node_id} leads: transfer its leadership first")
        if len(now ^ then) > 1 and self._rules.one_change_at_a_time:
            raise ValueError("at most one voter is added or removed at a time")
        if then - now - _learners(self._voters.membership):
            raise ValueError("a node is a learner before it is a voter")
        if wanted.level < self._voters.membership.level:
            raise ValueError("the level of the formats in use is never lowered")
        if wanted.level > min(member.level for member in wanted.members):
            raise ValueError("a member does not know the formats that would be in use")

    def begin(self, wanted: Membership, done: Done) -> None:
        """Begin a change to this membership; `done` runs once."""
        assert not (self.under_way and self._rules.one_change_at_a_time), "one at a time"
        self.wanted, self.index, self._done = wanted, None, done

    def proposed(self, index: int) -> None:
        """Note that entry `index` holds the wanted membership."""
        self.wanted, self.index = None, index

    def settle(self, applied: int) -> None:
        """End the change when its entry is applied here."""
        if self.index is not None and self.index <= applied:
            self._end(committed=True)

    def fail(self) -> None:
        """End the change; whether it was committed is unknown."""
        self._end(committed=False)

    def _end(self, *, committed: bool) -> None:
        done, self._done = self._done, None
        self.wanted = self.index = None
        if done is not None:
            done(committed)


def _voters(membership: Membership) -> set[tuple[str, int]]:
    return {(member.id, member.data) for member in membership.members if member.voter}


def _learners(membership: Membership) -> set[tuple[str, int]]:
    return {(member.id, member.data) for member in membership.members if not member.voter}
