"""Doubts: whose state differs from this replica's, and whose side a majority is on.

Two replicas that differ cannot tell which of them is wrong. A majority that has one and the same
state at an index can: whoever has another there is to be made anew. The digests are running ones,
so being equal at an index is being equal at all before it, and a difference stays.
"""

from __future__ import annotations


class Doubts:
    """What the voters' digests have shown of this replica's own state.

    Args:
        voters: How many there are, this replica included.
    """

    def __init__(self, *, voters: int) -> None:
        self._majority = voters // 2 + 1
        self._voters = voters
        self._same: dict[str, int] = {}
        self._differs: dict[str, int] = {}

    def heard(self, peer: str, index: int, *, same: bool) -> bool:
        """Note how a voter's state at `index` compares with this one; True when that is news."""
        if same:
            self._same[peer] = max(self._same.get(peer, 0), index)
            # A state that differed and does no more has been made anew.
            return self._differs.pop(peer, None) is not None
        news = peer not in self._differs
        # Where it was first seen to: whoever is right there is right about it.
        self._differs.setdefault(peer, index)
        return news

    @property
    def differing(self) -> tuple[str, ...]:
        """Return the voters that differ, as far as is known."""
        return tuple(sorted(self._differs))

    @property
    def open(self) -> bool:
        """Tell whether a voter differs and no majority is known to be on this replica's side."""
        return any(not self._confirmed(index) for index in self._differs.values())

    @property
    def lost(self) -> bool:
        """Tell whether no majority can be on this replica's side."""
        return self._voters - len(self._differs) < self._majority

    def condemns(self, peer: str) -> bool:
        """Tell whether the voter differs from what a majority has."""
        index = self._differs.get(peer)
        return index is not None and self._confirmed(index)

    def _confirmed(self, index: int) -> bool:
        return 1 + sum(upto >= index for upto in self._same.values()) >= self._majority
