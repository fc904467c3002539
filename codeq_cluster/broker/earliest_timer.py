"""Earliest timer: one call at the earliest of the instants that were asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context


class EarliestTimer:
    """Calls once, at the earliest instant that was asked for since the last call.

    It keeps the instant itself: a timer of uvloop that is due at once does not know its own.

    Args:
        call: Run in a fresh context: who asks may be in the tracing context of some request.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._handle: asyncio.Handle | None = None
        self._at_s = 0.0

    def at(self, when_s: float) -> None:
        """Call at this instant of the loop's clock, unless an earlier call is due."""
        if self._handle is not None:
            if self._at_s <= when_s:
                return
            self._handle.cancel()
        self._at_s = when_s
        loop = asyncio.get_running_loop()
        self._handle = loop.call_at(when_s, self._due, context=Context())

    def stop(self) -> None:
        """Forget the call that is due."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _due(self) -> None:
        self._handle = None
        self._call()
