"""Loop pass: work that several parts of a node do together, once in a pass of the event loop.

Each deferred call costs a loop a pass of its own, with a look at all sockets. A lone create needs
four in a row at each follower: the group's turn, the log's write, the next turn, and the frame that
carries its answer. Here a turn, and the write and the frames it asks for, are one pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from weakref import WeakValueDictionary

Call = Callable[[], None]


class LoopPass:
    """The next pass of one event loop: first the calls of `soon`, then those of `last`.

    A call that fails is reported to the loop's exception handler, and the others follow.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._soon: list[Call] = []
        self._last: list[Call] = []
        self._is_armed = False

    @staticmethod
    def of(loop: asyncio.AbstractEventLoop) -> LoopPass:
        """Return the pass that all parts share that run on a loop; it lasts as long as they do."""
        found = _passes.get(id(loop))
        if found is None:
            found = _passes[id(loop)] = LoopPass(loop)
        return found

    def soon(self, call: Call) -> None:
        """Run `call` in the next pass; from a call of `soon`, in the one after it."""
        self._soon.append(call)
        if not self._is_armed:
            self._is_armed = True
            self._loop.call_soon(self._run)

    def last(self, call: Call) -> None:
        """Run `call` at the end of this pass if one is running, otherwise of the next."""
        self._last.append(call)
        if not self._is_armed:
            self._is_armed = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        try:
            calls, self._soon = self._soon, []
            for is_end in (False, True):
                if is_end:
                    calls, self._last = self._last, []
                for call in calls:
                    try:
                        call()
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:  # noqa: BLE001 - as the loop does for its own calls
                        self._loop.call_exception_handler(
                            {"message": f"exception in {call!r}", "exception": error}
                        )
        finally:
            self._is_armed = bool(self._soon or self._last)
            if self._is_armed:
                self._loop.call_soon(self._run)


# The key is the loop's identity. A pass holds its loop, so a key that also held the loop would keep
# it for ever, with the broker that ran on it.
_passes: WeakValueDictionary[int, LoopPass] = WeakValueDictionary()
