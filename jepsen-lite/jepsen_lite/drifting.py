"""Drifting: the shim between a node and its clocks, which makes them drift or jump."""

from __future__ import annotations

import struct
import time
from pathlib import Path

from jepsen_lite.shims import control_page

_SECOND_NS = 1_000_000_000


class Pace:
    """The drift of one node's clocks.

    Args:
        control: The file that is shared with the shim.
    """

    def __init__(self, control: Path) -> None:
        self._control = control.resolve()
        self._page = control_page(self._control)
        self._gain = 0.0
        self._jump_ns = 0
        self._skew_ns = 0
        self._since_ns = time.monotonic_ns()

    @property
    def environment(self) -> dict[str, str]:
        """The environment for a process with these clocks, beside the library itself."""
        return {"JL_CLOCK_CONTROL": str(self._control)}

    @property
    def looks(self) -> int:
        """How often a drifting or shifted clock was read since the start."""
        return int(struct.unpack_from("=Q", self._page, 32)[0])

    @property
    def skew_s(self) -> float:
        """How many seconds the clocks are ahead now."""
        return self._skew_at(time.monotonic_ns()) / _SECOND_NS

    def set(self, gain: float) -> None:
        """Make the clocks gain `gain` seconds per second from now on; 0 is the true pace."""
        now_ns = time.monotonic_ns()
        self._skew_ns, self._since_ns, self._gain = self._skew_at(now_ns), now_ns, gain
        self._write()

    def jump(self, to_s: float) -> None:
        """Put the time of day this many seconds ahead of the true one; 0 ends the shift."""
        self._jump_ns = round(to_s * _SECOND_NS)
        self._write()

    def _write(self) -> None:
        [sequence] = struct.unpack_from("=Q", self._page, 0)
        struct.pack_into("=Q", self._page, 0, sequence + 1)
        struct.pack_into("=dqq", self._page, 8, self._gain, self._skew_ns, self._since_ns)
        struct.pack_into("=q", self._page, 40, self._jump_ns)
        struct.pack_into("=Q", self._page, 0, sequence + 2)

    def _skew_at(self, now_ns: int) -> int:
        return self._skew_ns + round(self._gain * (now_ns - self._since_ns))
