"""Memberships: which nodes form the group, at every index of the log.

The newest one in the log counts, committed or not; one that is truncated was never true.
"""

from __future__ import annotations

from codeq_cluster.codec import membership as codec
from codeq_cluster.codec.membership import Membership

Named = tuple[int, Membership]
"""The index of the entry that names it, and the membership."""


class Memberships:
    """What one log says of its members, from its oldest entry on."""

    def __init__(self) -> None:
        # The first is the base: true of the log's oldest entry. It is never truncated.
        self._named: list[Named] = []

    @property
    def base(self) -> Named:
        """Return what was true at the log's oldest entry."""
        return self._named[0]

    @property
    def newest(self) -> Named:
        """Return what counts."""
        return self._named[-1]

    def begin(self, index: int, membership: Membership) -> None:
        """Start with what is true at the log's oldest entry."""
        self._named = [(index, membership)]

    def append(self, index: int, payload: bytes) -> None:
        """Note an entry that names a membership.

        Raises:
            ValueError: It names none.
        """
        if index > self.newest[0]:
            self._named.append((index, codec.decode(payload)))

    def truncate(self, start: int) -> None:
        """Forget what the entries from `start` on said."""
        while len(self._named) > 1 and self._named[-1][0] >= start:
            self._named.pop()

    def trim(self, floor: int) -> bool:
        """Forget what was no longer true at entry `floor`; tell whether the base is another."""
        count = sum(index <= floor for index, _ in self._named[1:])
        del self._named[:count]
        return count > 0

    def at(self, index: int) -> Named:
        """Return what was true at an entry, one that is kept."""
        return next(named for named in reversed(self._named) if named[0] <= index)
