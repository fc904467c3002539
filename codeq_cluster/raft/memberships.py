"""Memberships: the group's members at every index of the log.

The newest membership in the log is in force, committed or not; a truncated one was never in force.
"""

from __future__ import annotations

from codeq_cluster.codec import membership as codec
from codeq_cluster.codec.membership import Membership

# The index of the entry that holds a membership, and the membership.
Named = tuple[int, Membership]


class Memberships:
    """The memberships that one log names, from its oldest entry on."""

    def __init__(self) -> None:
        # The first is the base: the membership at the log's oldest entry. It is never truncated.
        self._named: list[Named] = []

    @property
    def base(self) -> Named:
        """Return the membership at the log's oldest entry."""
        return self._named[0]

    @property
    def newest(self) -> Named:
        """Return the membership in force."""
        return self._named[-1]

    def begin(self, index: int, membership: Membership) -> None:
        """Start with the membership at the log's oldest entry."""
        self._named = [(index, membership)]

    def append(self, index: int, payload: bytes) -> None:
        """Note an entry that names a membership.

        Raises:
            ValueError: The payload is no membership.
        """
        if index > self.newest[0]:
            self._named.append((index, codec.decode(payload)))

    def truncate(self, start: int) -> None:
        """Forget the memberships that the entries from `start` on named."""
        while len(self._named) > 1 and self._named[-1][0] >= start:
            self._named.pop()

    def trim(self, floor: int) -> bool:
        """Forget memberships replaced by entry `floor`; return whether the base changed."""
        count = sum(index <= floor for index, _ in self._named[1:])
        del self._named[:count]
        return count > 0

    def at(self, index: int) -> Named:
        """Return the membership at an entry that is kept."""
        return next(named for named in reversed(self._named) if named[0] <= index)
