"""Roster: makes the newest membership in the log the one in force."""

from __future__ import annotations

import logging
from collections.abc import Callable

from codeq_cluster.codec import levels
from codeq_cluster.codec.membership import Membership
from codeq_cluster.raft.elections import Elections
from codeq_cluster.raft.read_index import ReadIndex
from codeq_cluster.raft.replica import Context, Replica

_log = logging.getLogger(__name__)


class InitialMembers:
    """The members for as long as a log names none.

    Attributes:
        members: Empty for a node that waits for a bootstrap, or to be added by a leader.
        wanted: The bootstrap that the next turn carries out.
    """

    def __init__(self, members: Membership) -> None:
        self.members = members
        self.wanted: Membership | None = None


class Roster:
    """One replica's membership, committed or not, and the formats that it allows.

    Nothing acts on a membership before every part has adopted it: library, reads and timer.

    Args:
        replica: The replica of this membership; its log has been loaded.
        initial_members: The members that the log begins with.
        read_index: Counts its rounds again when the voters change.
        elections: Armed when this node becomes a voter.
        on_members: Called when the membership has changed.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        initial_members: InitialMembers,
        read_index: ReadIndex,
        elections: Elections,
        on_members: Callable[[], None],
    ) -> None:
        self._context = replica.context
        self._voters = replica.voters
        self._journal = replica.journal
        self._engine = replica.engine
        self._initial_members = initial_members
        self._read_index = read_index
        self._elections = elections
        self._on_members = on_members

    def bootstrap(self) -> None:
        """Begin the log with the members that were asked for, unless it has members already."""
        membership, self._initial_members.wanted = self._initial_members.wanted, None
        if membership is not None and not self._voters.membership.members:
            self._journal.bootstrap(membership)
            self._initial_members.members = membership
            self.adopt()

    def adopt(self) -> None:
        """Follow the newest membership in the log.

        Raises:
            ReleaseTooOld: It uses formats that this node does not know.
        """
        index, membership = self._journal.memberships.newest
        voters = self._voters
        if (index, membership) == (voters.index, voters.membership):
            return
        check_level(membership, self._context)
        voting = voters.voting
        voters.adopt(index, membership)
        self._engine.adopt_members()
        self._read_index.recount()
        _log.info(
            "members changed",
            extra={
                "shard": self._context.shard,
                "index": index,
                "formats": membership.level,
                "members": [
                    member.id if member.voter else f"{member.id} (learner)"
                    for member in membership.members
                ],
            },
        )
        if voters.voting and not voting:
            self._elections.start(self._context.now())
        self._on_members()


def check_level(membership: Membership, context: Context) -> None:
    """Check that this node knows the formats that its group uses.

    Raises:
        ReleaseTooOld: It does not.
    """
    levels.check(membership.level, by=f"shard {context.shard}", known=context.level)
