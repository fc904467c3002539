"""Group commit: when a leader's next entry is due, if more operations are likely to join it.

An entry costs the same for one operation as for ten, and callers just answered usually ask again.
An entry taken at once would carry only the waiting callers and miss these: two half-full entries
would alternate for ever. So the next entry waits for as many operations as the last one answered
and left waiting. The wait is short, and a caller who comes alone does not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

GATHER_S_MAX = 0.006  # The default for engines.
# This many operations share the cost of an entry well enough. More are not worth a wait.
GATHERED_MAX = 64


class GroupCommit:
    """Paces the entries of one leadership.

    Args:
        wake: Called when the next entry is due although fewer operations came than expected.
        wait_s_max: The longest wait of an entry; 0 for none.
    """

    def __init__(self, wake: Callable[[], None], *, wait_s_max: float = GATHER_S_MAX) -> None:
        self._wake = wake
        self._wait_s_max = wait_s_max
        self._expected = 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, *, answered: int, waiting: int, took_s: float) -> None:
        """Start to gather: an entry is applied and none is in flight.

        Args:
            answered: Operations it answered.
            waiting: Operations that wait for the next entry already.
            took_s: Time from its handover until it was applied; the wait is no longer than this.
        """
        self.stop()
        self._expected = answered + waiting
        if self._wait_s_max and 1 < self._expected > waiting:
            wait_s = min(self._wait_s_max, took_s)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._over)

    def is_due(self, waiting: int) -> bool:
        """Return whether an entry with this many operations need not wait for more."""
        if self._timer is None:
            return True
        if waiting < min(self._expected, GATHERED_MAX):
            return False
        self.stop()
        return True

    def stop(self) -> None:
        """End the wait, if any."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self) -> None:
        self._timer = None
        self._wake()
