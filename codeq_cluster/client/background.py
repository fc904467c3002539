"""Background: an event loop in a thread of its own, for the calls of threads without one."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Final, TypeVar
from weakref import WeakSet

from codeq_cluster.client.connection import Connection
from codeq_cluster.client.refusals import CLOSED, ConnectionGone

T = TypeVar("T")

_FORKED: Final = "this connection was made before a fork: open one in this process"

_open: Final[WeakSet[Background]] = WeakSet()
# Those of the parent, in a child. Collecting them would change what the parent's loop waits for:
# both processes share its descriptors.
_inherited: Final[list[Background]] = []


class Background:
    """Runs the calls of connections that nothing else uses; its methods are for any thread."""

    def __init__(self, *connections: Connection, name: str) -> None:
        """Start the thread, of this name; nothing is sent yet."""
        self._connections = connections
        self._pid = os.getpid()
        # The collector may drop a connection, which begins a call, within another call's begin.
        self._lock = threading.RLock()
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        _open.add(self)

    @property
    def ours(self) -> bool:
        """Whether this process made it: in a child its thread does not exist."""
        return os.getpid() == self._pid

    def start(self, call: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin a call.

        Raises:
            ConnectionGone: It is closed, or another process's.
        """
        # A thread of the parent may have had the lock at the fork, and as the interpreter ends, the
        # loop's thread stands still: a module's iterator that is dropped then would wait for ever.
        if self.ours and not sys.is_finalizing():
            with self._lock:
                if not self._is_closed:
                    return asyncio.run_coroutine_threadsafe(call, self._loop)
        call.close()
        raise ConnectionGone(CLOSED if self.ours else _FORKED)

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Return the answer of a call, or raise what it raises.

        Raises:
            ConnectionGone: It is closed, maybe meanwhile, or another process's.
        """
        future = self.start(call)
        try:
            return future.result()
        except CancelledError:
            if self._is_closed:
                raise ConnectionGone(CLOSED) from None
            raise
        except BaseException:
            # A signal ends the wait; without the cancel the call would go on with nobody waiting.
            future.cancel()
            raise

    def finish(self, call: Coroutine[Any, Any, None]) -> None:
        """Run the last call of something that is dropped, in whatever thread the collector runs."""
        with suppress(ConnectionGone):
            if threading.current_thread() is self._thread:
                self.start(call)  # The loop that is to run it cannot wait for it.
            else:
                self.run(call)

    def close(self) -> None:
        """End the calls under way, the connections and the thread; another process's stays."""
        if not self.ours:
            return
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            ending = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        ending.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        _open.discard(self)

    async def _end(self) -> None:
        """Cancel all calls, whose threads would wait for ever for a loop that has stopped."""
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        for each in calls:
            each.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self._loop.shutdown_asyncgens()  # Streams between two calls have connections too.
        for connection in self._connections:
            await connection.close()


def _inherit() -> None:
    _inherited.extend(_open)
    _open.clear()


os.register_at_fork(after_in_child=_inherit)
