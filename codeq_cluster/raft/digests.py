"""Digests: two replicas at one index must have one state."""

from __future__ import annotations

from collections import OrderedDict

# Entries a peer may be behind and still be compared; 2,048 x ~100 bytes.
_KEPT = 2048


class Digests:
    """The digests of this replica's last states, and one of a leader's still to be met."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._expected: tuple[str, int, bytes] | None = None

    def applied(self, index: int, digest: bytes) -> tuple[str, bool] | None:
        """Note the state at `index`.

        When a leader's was expected there, return who that was, and whether it is the same.
        """
        self._kept[index] = digest
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        expected = self._expected
        if expected is None or expected[1] > index:
            return None
        self._expected = None
        return None if expected[1] < index else (expected[0], expected[2] == digest)

    def same(self, index: int, digest: bytes) -> bool | None:
        """Compare with another replica's state at `index`; None when it cannot be told."""
        mine = self._kept.get(index)
        return None if mine is None else mine == digest

    def expect(self, peer: str, index: int, digest: bytes) -> None:
        """Compare when this replica gets to `index`; an earlier expectation is met first."""
        if self._expected is None:
            self._expected = (peer, index, digest)
