"""Doubts: whose state differs from this replica's, and whose side a majority is on.

Two replicas that differ cannot tell which of them is wrong. A majority that has one and the same
state at an index can: whoever has another there is to be made anew. The digests are running ones,
so being equal at an index is being equal at all before it, and a difference stays.
"""

from __future__ import annotations

from codeq_cluster.raft.electorate import Electorate

_Who = tuple[str, int]
"""A peer and the data it runs on: on other data it has another state."""


class Doubts:
    """What the voters' digests have shown of this replica's own state.

    Args:
        electorate: Who they are.
    """

    def __init__(self, electorate: Electorate) -> None:
        self._electorate = electorate
        self._same: dict[_Who, int] = {}
        self._differs: dict[_Who, int] = {}

    def heard(self, peer: str, index: int, *, same: bool) -> bool:
        """Note how a member's state at `index` compares with this one; True when that is news."""
        who = self._who(peer)
        if same:
            self._same[who] = max(self._same.get(who, 0), index)
            # A state that differed and does no more has been made anew.
            return self._differs.pop(who, None) is not None
        news = who not in self._differs
        # Where it was first seen to: whoever is right there is right about it.
        self._differs.setdefault(who, index)
        return news

    @property
    def differing(self) -> tuple[str, ...]:
        """Return the voters that differ, as far as is known."""
        return tuple(sorted(peer for peer, _ in filter(self._votes, self._differs)))

    @property
    def open(self) -> bool:
        """Tell whether a voter differs and no majority is known to be on this replica's side."""
        return bool(self._differs) and any(
            not self._confirmed(index) for who, index in self._differs.items() if self._votes(who)
        )

    @property
    def lost(self) -> bool:
        """Tell whether no majority can be on this replica's side."""
        electorate = self._electorate
        return len(electorate.voters) - len(self.differing) < electorate.majority

    def condemns(self, peer: str) -> bool:
        """Tell whether the member differs from what a majority has."""
        index = self._differs.get(self._who(peer))
        return index is not None and self._confirmed(index)

    def _confirmed(self, index: int) -> bool:
        same = sum(upto >= index for who, upto in self._same.items() if self._votes(who))
        return 1 + same >= self._electorate.majority

    def _who(self, peer: str) -> _Who:
        return peer, self._electorate.data.get(peer, 0)

    def _votes(self, who: _Who) -> bool:
        peer, data = who
        return self._electorate.votes(peer) and self._electorate.data.get(peer) == data
