"""Schedule: when a group takes its next turn."""

from __future__ import annotations

from collections.abc import Callable

from codeq_cluster.raft.ports import Handle, Timers

_NEVER = float("inf")


class Schedule:
    """The turns of one group, one after another.

    At most one turn is scheduled. None begins while a flush is in progress: a turn that is wanted
    meanwhile follows the flush. Between turns one timer is set, for the next deadline or earlier.

    Args:
        turn_s: Seconds from one turn to the next while operations wait.
        due: Returns when the next turn is due at the latest, in monotonic seconds.
        failed: Called with the error of a turn that failed.

    Attributes:
        running: Turns are taken: the group has been started and is not paused.
        flushing: The journal's changes are being written.
        wanted: Another turn follows this one.
        queued: Operations wait for the entry under way.
    """

    def __init__(
        self,
        timers: Timers,
        *,
        turn_s: float,
        due: Callable[[], float],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._timers = timers
        self._turn_s = turn_s
        self._turn: Callable[[], None]
        self._due = due
        self._failed = failed
        self._turned_at = float("-inf")
        self._is_due = False  # A turn has been asked of the loop.
        self._timer: Handle | None = None
        self._timer_at = _NEVER
        self.running = self.flushing = self.wanted = self.queued = False

    def start(self, turn: Callable[[], None]) -> None:
        """Take turns from now on; the store has just been read, so no flush is under way."""
        self._turn = turn
        self.running = True
        self.flushing = self.wanted = False

    def stop(self) -> None:
        """Take no more turns."""
        self.running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def want(self) -> None:
        """Take a turn soon."""
        if not self.running:
            return
        if self.flushing:
            self.wanted = True
        elif not self._is_due:
            self._is_due = True
            # Space turns apart under load, so that each entry carries more operations. Without
            # load, a turn starts at once.
            left_s = self._turned_at + self._turn_s - self._timers.now() if self.queued else 0.0
            if left_s > 0:
                self._timers.call_later(left_s, self._begin)
            else:
                self._timers.call_soon(self._begin)

    def want_another(self) -> None:
        """Take another turn after the present one."""
        self.wanted = True

    def arm(self, due: float) -> None:
        """Set the timer for the next deadline, in monotonic seconds; for an infinite one, none."""
        if due == _NEVER:
            return
        if self._timer is not None:
            if self._timer_at <= due:
                return  # It fires early and is set again, which is cheaper than a timer a message.
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._timers.call_later(max(0.0, due - self._timers.now()), self._fired)

    def _begin(self) -> None:
        self._is_due = False
        if not self.running:
            return
        if self.flushing:
            self.wanted = True
            return
        self._turned_at = self._timers.now()
        self.wanted = self.queued = False
        try:
            self._turn()
        except Exception as error:  # noqa: BLE001 - whatever it is, this replica must not go on
            self._failed(error)

    def _fired(self) -> None:
        self._timer = None
        if not self.running:
            return
        if self.flushing:
            self.wanted = True
        elif self._timers.now() >= (due := self._due()):
            self.want()
        else:
            self.arm(due)
