"""State digests: proof that replicas with the same log have the same state."""

from __future__ import annotations

from collections import OrderedDict

# How many entries behind a peer can still be compared: 2,048 x ~100 bytes.
_KEPT = 2048


class Digests:
    """The digests of this replica's latest states, and one expected digest of a later state."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._expected: tuple[str, int, bytes] | None = None

    def applied(self, index: int, digest: bytes) -> tuple[str, bool] | None:
        """Note the state at `index`, and compare it with the digest expected there.

        Returns:
            The leader that sent the digest and whether it is equal; None when none was expected
            here.
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
        """Return whether another replica's state at `index` equals this one's; None if unknown."""
        mine = self._kept.get(index)
        return None if mine is None else mine == digest

    def expect(self, peer: str, index: int, digest: bytes) -> None:
        """Compare once this replica reaches `index`; an earlier expectation takes precedence."""
        if self._expected is None:
            self._expected = (peer, index, digest)
