"""Changes: the one membership change that a leader has under way."""

from __future__ import annotations

from collections.abc import Callable

from codeq_cluster.codec.membership import Membership
from codeq_cluster.raft.safety_switches import SafetySwitches
from codeq_cluster.raft.voters import Voters

Done = Callable[[bool], None]


class Changes:
    """One change, from its request until it is committed or this node no longer leads."""

    def __init__(self, voters: Voters, *, node_id: str, rules: SafetySwitches) -> None:
        self._voters = voters
        self._node_id = node_id
        self._rules = rules
        self._wanted: Membership | None = None
        self._index: int | None = None
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
            raise ValueError(f"{self._node_id} leads: hand its leadership over first")
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
        self._wanted, self._index, self._done = wanted, None, done

    def take(self, index: int) -> Membership | None:
        """Return the membership to propose as entry `index`, once; None when there is none."""
        wanted, self._wanted = self._wanted, None
        if wanted is not None:
            self._index = index
        return wanted

    def settle(self, applied: int) -> None:
        """End the change when its entry is applied here."""
        if self._index is not None and self._index <= applied:
            self._end(committed=True)

    def fail(self) -> None:
        """End the change; whether it was committed is unknown."""
        self._end(committed=False)

    def _end(self, *, committed: bool) -> None:
        done, self._done = self._done, None
        self._wanted = self._index = None
        if done is not None:
            done(committed)


def _voters(membership: Membership) -> set[tuple[str, int]]:
    return {(member.id, member.data) for member in membership.members if member.voter}


def _learners(membership: Membership) -> set[tuple[str, int]]:
    return {(member.id, member.data) for member in membership.members if not member.voter}
