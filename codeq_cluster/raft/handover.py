"""Handover: leadership transfer, on request or to the preferred peer."""

from __future__ import annotations

# The preferred peer must be stable before the group pauses for it. If it soon loses the leadership
# again, the required time doubles. Otherwise a peer that is up but cannot lead (a disk that stalls
# under load) would interrupt the others every few seconds.
_CAUGHT_UP_S = 5.0
_CAUGHT_UP_S_MAX = 600.0
_SOON_S = 60.0
# A transfer pauses proposals, so clients wait: bounded by a time they barely notice.
_PAUSE_S = 0.5


class Handover:
    """One leader's leadership transfer; at most one at a time.

    Attributes:
        peer: The next leader; None while no transfer is under way. A transfer pauses proposals.
        asked: The peer was told to start an election.
        deadline: When this leader gives the transfer up; infinite without a peer.
    """

    def __init__(self) -> None:
        self.peer: str | None = None
        self.asked = False
        self.deadline = float("inf")
        self._caught_up_since: float | None = None
        self._waits_for: str | None = None
        self._wait_s = _CAUGHT_UP_S
        self._given_at = float("-inf")

    def begin(self, peer: str, now: float) -> None:
        """Start the transfer to the peer."""
        self.peer = peer
        self.asked = False
        self.deadline = now + _PAUSE_S

    def end(self) -> None:
        """End the transfer, whether it succeeded or not."""
        self.peer = None
        self.asked = False
        self.deadline = float("inf")
        self._caught_up_since = None

    def preferred_due(self, peer: str, *, caught_up: bool, now: float) -> bool:
        """Return whether the preferred peer has been connected and caught up for long enough."""
        if peer != self._waits_for:
            self._waits_for, self._caught_up_since = peer, None
        if not caught_up:
            self._caught_up_since = None
            return False
        if self._caught_up_since is None:
            self._caught_up_since = now
        wait_s = self._wait_s
        if now - self._given_at < wait_s + _SOON_S:
            wait_s = min(2 * wait_s, _CAUGHT_UP_S_MAX)
        else:
            wait_s = _CAUGHT_UP_S
        if now - self._caught_up_since < wait_s:
            return False
        self._wait_s, self._given_at = wait_s, now
        return True
