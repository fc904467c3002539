"""I/O adapters: a group's ports in a real process, on an event loop and a thread for the disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from codeq_cluster.loop_pass import LoopPass
from codeq_cluster.raft.ports import Handle

Work = Callable[[], None]
Done = Callable[[BaseException | None], None]


class LoopTimers:
    """The running event loop's time.

    Attributes:
        now: Returns monotonic seconds.
        call_soon: Runs a call in the loop's next pass; see `LoopPass.soon`.
        call_last: Runs a call at the end of a pass; see `LoopPass.last`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now: Callable[[], float] = loop.time
        shared = LoopPass.of(loop)
        self.call_soon = shared.soon
        self.call_last = shared.last

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Handle:
        """Run `call` on the loop after `delay_s` seconds."""
        return self._loop.call_later(delay_s, call)


class DiskThread:
    """The one thread of a node that waits for the disk; it runs requests in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self._working = threading.Lock()
        self._stopped = False

    def stop(self, within_s: float) -> bool:
        """Begin no more work and call nobody back; return whether all work has ended.

        Blocks until then, but at most `within_s` seconds; harmless when it has stopped already.
        """
        self._stopped = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        if not self._working.acquire(timeout=within_s):
            return False
        self._working.release()
        return True

    def run(self, work: Work, done: Done) -> None:
        """Run `work` in the thread, then `done(error or None)` on the loop."""
        self._thread.submit(self._in_thread, work, done)

    def _in_thread(self, work: Work, done: Done) -> None:
        error: BaseException | None = None
        with self._working:
            if self._stopped:
                return
            try:
                work()
            except BaseException as failure:  # noqa: BLE001 - handed to `done`
                error = failure
        try:
            self._loop.call_soon_threadsafe(self._finished, done, error)
        except RuntimeError:
            assert self._loop.is_closed(), "the loop refuses a call"

    def _finished(self, done: Done, error: BaseException | None) -> None:
        if not self._stopped:
            done(error)


class PeerLink(Protocol):
    """The node's link to its peers, which carries every group."""

    def send(self, peer: str, group: int, message: bytes) -> bool:
        """Queue one message; False when it was dropped."""


class GroupLink:
    """One group's share of the link."""

    def __init__(self, link: PeerLink, shard: int) -> None:
        self._link = link
        self._shard = shard

    def send(self, peer: str, message: bytes) -> bool:
        """Queue one message; False when it was dropped, which is always safe."""
        return self._link.send(peer, self._shard, message)
