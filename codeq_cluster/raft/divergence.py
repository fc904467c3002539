"""Divergence: who has another state and whether a majority agrees with this replica.

Two replicas that differ cannot say which of them is wrong. A majority with the same state at an
index can: a replica that differs there must be replaced by a snapshot.
Digests are running hashes. Equal digests at an index mean equal states at every index before it,
and a difference never disappears.
"""

from __future__ import annotations

import logging

from codeq_cluster.raft.voters import Voters

_log = logging.getLogger(__name__)

# A peer and the identity of its data: a peer whose data was replaced has another state.
_Who = tuple[str, int]


class Divergence:
    """The voters' digests, compared with this replica's own state.

    Either side of a difference may be wrong. A leader says which once a majority agrees with it;
    only a majority's agreement with this replica takes its verdict back.

    Args:
        voters: The voters.
        shard: Number of the shard, for the log.

    Attributes:
        wrong_at: Entry at which this replica's state differs from the majority's; 0 when none is
            known.
    """

    def __init__(self, voters: Voters, *, shard: int) -> None:
        self._voters = voters
        self._shard = shard
        self.wrong_at = 0
        self._same: dict[_Who, int] = {}
        self._differs: dict[_Who, int] = {}

    def compared(self, peer: str, index: int, *, same: bool) -> None:
        """Note whether a member's state at an index equals this replica's."""
        if self.heard(peer, index, same=same):
            _log.log(
                logging.WARNING if same else logging.ERROR,
                "states are equal again" if same else "states differ",
                extra={"shard": self._shard, "peer": peer, "index": index},
            )
        wrong_at = self.wrong_at
        if same and wrong_at and self.confirmed(wrong_at):
            # A leader that is wrong itself can go by what it knew of a state since replaced.
            self.wrong_at = 0
            _log.warning("a majority has my state", extra={"shard": self._shard, "index": wrong_at})

    def heard(self, peer: str, index: int, *, same: bool) -> bool:
        """Note how a member's state at `index` compares with this one; True when that is news."""
        who = self._who(peer)
        if same:
            self._same[who] = max(self._same.get(who, 0), index)
            # Only a replaced state can be equal again.
            return self._differs.pop(who, None) is not None
        news = who not in self._differs
        # Keep the first index at which states differ; the majority at that index decides.
        self._differs.setdefault(who, index)
        return news

    @property
    def differing(self) -> tuple[str, ...]:
        """Return the voters that are known to differ."""
        return tuple(sorted(peer for peer, _ in filter(self._votes, self._differs)))

    @property
    def open(self) -> bool:
        """Return whether a voter differs and no majority is known to agree with this replica."""
        return bool(self._differs) and any(
            not self.confirmed(index) for who, index in self._differs.items() if self._votes(who)
        )

    @property
    def lost(self) -> bool:
        """Return whether no majority can agree with this replica."""
        voters = self._voters
        return len(voters.voters) - len(self.differing) < voters.majority

    def condemns(self, peer: str) -> bool:
        """Return whether the member's state differs from that of a majority."""
        index = self._differs.get(self._who(peer))
        return index is not None and self.confirmed(index)

    def confirmed(self, index: int) -> bool:
        """Return whether a majority is known to agree with this replica's state at `index`."""
        same = sum(upto >= index for who, upto in self._same.items() if self._votes(who))
        return 1 + same >= self._voters.majority

    def _who(self, peer: str) -> _Who:
        return peer, self._voters.data.get(peer, 0)

    def _votes(self, who: _Who) -> bool:
        peer, data = who
        return self._voters.votes(peer) and self._voters.data.get(peer) == data
