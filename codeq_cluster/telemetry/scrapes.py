"""Scrapes: the metrics' text, made once for all callers that wait for it.

Every caller may ask, and the text of a node with many commands takes a tenth of a second, during
which the node does nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextvars import Context

RESTS = 4  # Pause before the next text, in multiples of its duration: a fifth of one processor.


class Scrapes:
    """Makes a text on request, repeatedly, with pauses between.

    Args:
        make: Returns the text.
        clock: Monotonic seconds, to measure how long that takes.
    """

    def __init__(
        self, make: Callable[[], bytes], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._make = make
        self._clock = clock
        self._asked: asyncio.Future[bytes] | None = None
        self._rests_until_s = 0.0

    async def text(self) -> bytes:
        """Return a text that was begun after the call; raises the errors of `make`."""
        if self._asked is None:
            loop = asyncio.get_running_loop()
            self._asked = loop.create_future()
            loop.call_at(self._rests_until_s, self._answer, self._asked, context=Context())
        return await asyncio.shield(self._asked)

    def _answer(self, asked: asyncio.Future[bytes]) -> None:
        self._asked = None
        started_s = self._clock()
        try:
            asked.set_result(self._make())
        except Exception as error:  # noqa: BLE001 - of any source; the caller gets it
            asked.set_exception(error)
        took_s = self._clock() - started_s
        self._rests_until_s = asyncio.get_running_loop().time() + RESTS * took_s
