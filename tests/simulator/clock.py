"""Simulated time: one heap of calls for all nodes, and each node's timers on top of it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class SimHandle:
    """A scheduled call that can be cancelled."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None] | None) -> None:
        self.call = call

    def cancel(self) -> None:
        """Cancel the call."""
        self.call = None


class SimClock:
    """Virtual time; it advances when the next call runs.

    Attributes:
        now: Virtual seconds.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self._heap: list[tuple[float, int, SimHandle]] = []
        self._order = count()

    def at(self, instant: float, call: Callable[[], None]) -> SimHandle:
        """Run `call` at `instant`, after all earlier-scheduled calls for the same instant."""
        handle = SimHandle(call)
        heapq.heappush(self._heap, (max(instant, self.now), next(self._order), handle))
        return handle

    def run_until(self, instant: float, *, steps_max: int = 5_000_000) -> None:
        """Run everything up to `instant`.

        Raises:
            AssertionError: More than `steps_max` calls: a loop without end.
        """
        heap = self._heap
        for _ in range(steps_max):
            if not heap or heap[0][0] > instant:
                self.now = instant
                return
            self.step()
        raise AssertionError(f"more than {steps_max} calls before {instant}: something spins")

    def step(self) -> bool:
        """Run the next call, whenever it is due; False if there is none."""
        if not self._heap:
            return False
        self.now, _, handle = heapq.heappop(self._heap)
        call, handle.call = handle.call, None
        if call is not None:
            call()
        return True


class SimTimers:
    """One life of one node's timers; a crash cancels them."""

    def __init__(self, clock: SimClock) -> None:
        self._clock = clock
        self._dead = False

    def kill(self) -> None:
        """Stop running calls for good."""
        self._dead = True

    def now(self) -> float:
        """Return virtual seconds."""
        return self._clock.now

    def call_later(self, delay_s: float, call: Callable[[], None]) -> SimHandle:
        """Run `call` after `delay_s` unless the node crashes first."""

        def run() -> None:
            if not self._dead:
                call()

        return self._clock.at(self._clock.now + delay_s, run)

    def call_soon(self, call: Callable[[], None]) -> SimHandle:
        """Run `call` at this instant, after the calls already due."""
        return self.call_later(0.0, call)

    def call_last(self, call: Callable[[], None]) -> SimHandle:
        """Run `call` at this instant, after the calls already due."""
        return self.call_soon(call)
