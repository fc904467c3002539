"""Group commit: when a leader's next entry is due, if more operations are likely to join it.

An entry costs the same for one operation as for ten, and callers just answered may ask again.
An entry taken at once would carry only the waiting callers and miss these: two half-full entries
would alternate for ever. So the next entry waits for as many operations as the last one answered
and left waiting. The wait is short, and a caller who comes alone does not wait.

Whether that pays depends on the load: callers whose next step goes to another shard do not come
back, and an idle processor gains nothing from fewer entries. So a leadership compares how fast it
ends operations with the wait and without, and goes on with the faster. It begins with the wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

GATHER_S_MAX = 0.006  # The default for engines.
# This many operations share the cost of an entry well enough. More are not worth a wait.
GATHERED_MAX = 64
# Entries of one measurement, and measurements from one comparison to the next.
_ENTRIES = 96
_BETWEEN = 9
# Longer pauses between two entries come from callers, and say nothing about the wait.
_PAUSE_S = 0.05
# The other way must be faster by this much: measurements differ by chance.
_FASTER = 0.95


class GroupCommit:
    """Paces the entries of one leadership.

    Args:
        wake: Called when the next entry is due although fewer operations came than expected.
        wait_s_max: The longest wait of an entry; 0 for none.

    Attributes:
        waits: Entries wait at present.
        timer: Ends the wait of the next entry; None while that entry need not wait.
    """

    def __init__(self, wake: Callable[[], None], *, wait_s_max: float = GATHER_S_MAX) -> None:
        self._wake = wake
        self._wait_s_max = wait_s_max
        self._expected = 0
        self.timer: asyncio.TimerHandle | None = None
        self.waits = True
        # Seconds an operation, with the wait and without.
        self._paces = {True: 0.0, False: 0.0}
        self._is_trial = False
        self._measurements = 0
        self._entries = 0
        self._operations = 0
        self._seconds = 0.0
        self._begun_at = float("-inf")

    def begin(self, *, answered: int, waiting: int, took_s: float) -> None:
        """Start to gather: an entry is applied and none is in flight.

        Args:
            answered: Operations it answered.
            waiting: Operations that wait for the next entry already.
            took_s: Time from its proposal until it was applied; the wait is no longer than this.
        """
        if self.timer is not None:
            self.stop()
        loop = asyncio.get_running_loop()
        now, before = loop.time(), self._begun_at
        self._begun_at = now
        if now - before < _PAUSE_S:
            self._seconds += now - before
            self._operations += answered
            self._entries += 1
            if self._entries >= _ENTRIES:
                self._compare()
        self._expected = answered + waiting
        if self.waits and self._wait_s_max and 1 < self._expected > waiting < GATHERED_MAX:
            self.timer = loop.call_later(min(self._wait_s_max, took_s), self._over)

    def is_due(self, waiting: int) -> bool:
        """Return whether an entry with this many operations need not wait for more."""
        if self.timer is None:
            return True
        if waiting < min(self._expected, GATHERED_MAX):
            return False
        self.stop()
        return True

    def stop(self) -> None:
        """End the wait, if any."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _over(self) -> None:
        self.timer = None
        self._wake()

    def _compare(self) -> None:
        """End a measurement: try the other way now and then, and go on with the faster."""
        paces = self._paces
        paces[self.waits] = self._seconds / max(self._operations, 1)
        self._entries = self._operations = 0
        self._seconds = 0.0
        if self._is_trial:
            self._is_trial = False
            self._measurements = 0
            if paces[self.waits] >= _FASTER * paces[not self.waits]:
                self.waits = not self.waits
            return
        self._measurements += 1
        if self._measurements == _BETWEEN:
            self._is_trial = True
            self.waits = not self.waits
