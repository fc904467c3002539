"""Running: the ports of a group in a real process, an event loop and a thread for the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Protocol

from codeq_cluster.raft.ports import Handle


class LoopTimers:
    """Time as the running event loop has it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        """Return monotonic seconds."""
        return self._loop.time()

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Handle:
        """Run `call` on the loop after `delay_s` seconds."""
        return self._loop.call_later(delay_s, call)

    def call_soon(self, call: Callable[[], None]) -> Handle:
        """Run `call` on the loop's next pass."""
        return self._loop.call_soon(call)


class ThreadFlusher:
    """Waits for the disk in a thread: the one place where a group's work leaves the loop.

    Args:
        loop: Where `done` is called.
        threads: Shared by the groups of a node, one thread each at most.
        took: Told the seconds of every flush.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        threads: Executor,
        took: Callable[[float], None],
    ) -> None:
        self._loop = loop
        self._threads = threads
        self._took = took

    def run(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        """Run `work` in a thread, then `done(error or None)` on the loop."""
        started = self._loop.time()

        def finished(error: BaseException | None) -> None:
            self._took(self._loop.time() - started)
            done(error)

        def in_thread() -> None:
            error: BaseException | None = None
            try:
                work()
            except BaseException as raised:  # noqa: BLE001 - handed to `done`, which stops the node
                error = raised
            try:
                self._loop.call_soon_threadsafe(finished, error)
            except RuntimeError:
                assert self._loop.is_closed(), "the loop refuses a call"

        self._threads.submit(in_thread)


class PeerLink(Protocol):
    """The node's link to its peers, which carries every group."""

    def send(self, peer: str, group: int, message: Mapping[str, object]) -> bool:
        """Queue one message; False when it was dropped."""


class GroupLink:
    """One group's share of the link."""

    def __init__(self, link: PeerLink, shard: int) -> None:
        self._link = link
        self._shard = shard

    def send(self, peer: str, message: Mapping[str, object]) -> bool:
        """Queue one message; False when it was dropped, which is always safe."""
        return self._link.send(peer, self._shard, message)
