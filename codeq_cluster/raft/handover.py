"""Handover: giving leadership to a peer, on request or because it is the preferred one."""

from __future__ import annotations

# The preferred peer has to be back for good before the group pauses for it. A peer that loses what
# it was given soon after has to be back for longer each time: one that is up but cannot lead (a
# disk that stalls under load) must not interrupt the others every few seconds.
_CAUGHT_UP_S = 5.0
_CAUGHT_UP_S_MAX = 600.0
_SOON_S = 60.0
# No entry is taken meanwhile, so clients wait: bounded by what they barely notice.
_PAUSE_S = 0.5


class Handover:
    """One leader's intention to hand over; at most one at a time.

    Attributes:
        peer: Who shall lead; None when nobody is asked. No entry is taken meanwhile.
        asked: The peer was told to stand.
        deadline: When leading goes on if nothing came of it; infinite without a peer.
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
        """Start handing over to the peer."""
        self.peer = peer
        self.asked = False
        self.deadline = now + _PAUSE_S

    def end(self) -> None:
        """Go on leading, or be done with it."""
        self.peer = None
        self.asked = False
        self.deadline = float("inf")
        self._caught_up_since = None

    def preferred_due(self, peer: str, *, caught_up: bool, now: float) -> bool:
        """Tell whether the preferred peer has been connected and caught up for long enough."""
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
