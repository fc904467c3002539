"""Digests: two replicas at one index must have one state."""

from __future__ import annotations

from collections import OrderedDict

# Entries a peer may be behind and still be compared; 2,048 x ~100 bytes.
_KEPT = 2048


class Digests:
    """The digests of this replica's last states, and one of the leader's still to be met."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._expected: tuple[int, bytes] | None = None

    def applied(self, index: int, digest: bytes) -> bool:
        """Note the state at `index`; False when the leader's differed there."""
        self._kept[index] = digest
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        expected = self._expected
        if expected is None or expected[0] > index:
            return True
        self._expected = None
        return expected[0] < index or expected[1] == digest

    def matches(self, index: int, digest: bytes) -> bool:
        """Compare with another replica's state at `index`; True when it cannot be told."""
        mine = self._kept.get(index)
        return mine is None or mine == digest

    def expect(self, index: int, digest: bytes) -> None:
        """Compare when this replica gets to `index`; an earlier expectation is met first."""
        if self._expected is None:
            self._expected = (index, digest)
