"""Gathering: when a leader's next entry is due, if more operations are likely to join it soon.

An entry costs the same for one operation as for ten, and callers who have just been answered mostly
ask again. Taken at once, the next entry would carry those who waited and leave these behind: two
half-full entries in turn for ever. So the next one waits for as many operations as the last one
answered and left waiting, and never for long: a caller who comes alone is not held up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

GATHER_S_MAX = 0.006  # Unless an engine is told otherwise.


class Gathering:
    """One reign's pace.

    Args:
        wake: Called when the next entry is due although fewer operations came than expected.
        wait_s_max: No entry waits longer; 0 for not at all.
    """

    def __init__(self, wake: Callable[[], None], *, wait_s_max: float = GATHER_S_MAX) -> None:
        self._wake = wake
        self._wait_s_max = wait_s_max
        self._expected = 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, *, answered: int, waiting: int, took_s: float) -> None:
        """Note that an entry is applied, and that nothing else is on its way.

        Args:
            answered: Operations it answered.
            waiting: Operations for the next one by now.
            took_s: From its hand-over until it was applied; no longer is waited.
        """
        self.stop()
        self._expected = answered + waiting
        if self._wait_s_max and 1 < self._expected > waiting:
            wait_s = min(self._wait_s_max, took_s)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._over)

    def is_due(self, waiting: int) -> bool:
        """Return whether an entry of so many operations need not wait for more."""
        if self._timer is None:
            return True
        if waiting < self._expected:
            return False
        self.stop()
        return True

    def stop(self) -> None:
        """Wait for nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self) -> None:
        self._timer = None
        self._wake()
