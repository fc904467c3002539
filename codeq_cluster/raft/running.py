"""Running: the ports of a group in a real process, an event loop and a thread for the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from codeq_cluster.raft.ports import Handle

Work = Callable[[], None]
Done = Callable[[BaseException | None], None]


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


class DiskThread:
    """The one thread of a node that waits for the disk.

    What the groups ask for while it works goes together in its next job: a hand-over to a thread
    and back costs more than the write itself, so shards that flush at the same time share it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self._asked: list[tuple[Work, Done]] = []
        self._works = False

    def stop(self) -> None:
        """Finish the job under way; nothing is called back after that."""
        self._asked.clear()
        self._thread.shutdown()

    def run(self, work: Work, done: Done) -> None:
        """Run `work` in the thread, then `done(error or None)` on the loop."""
        self._asked.append((work, done))
        if not self._works:
            self._works = True
            # Groups whose turn is in the same pass of the loop share even the first job.
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        job, self._asked = self._asked, []
        if not job:
            self._works = False
            return
        self._thread.submit(self._in_thread, job)

    def _in_thread(self, job: Sequence[tuple[Work, Done]]) -> None:
        errors = [_error_of(work) for work, _ in job]
        try:
            self._loop.call_soon_threadsafe(self._finished, job, errors)
        except RuntimeError:
            assert self._loop.is_closed(), "the loop refuses a call"

    def _finished(
        self, job: Sequence[tuple[Work, Done]], errors: Sequence[BaseException | None]
    ) -> None:
        self._begin()
        for (_, done), error in zip(job, errors, strict=True):
            done(error)


def _error_of(work: Work) -> BaseException | None:
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - handed to `done`, which stops the node
        return error
    return None


class ThreadFlusher:
    """One group's way to the disk.

    Args:
        disk: Shared by the groups of a node.
        now: Monotonic seconds.
        took: Told the seconds of every flush, waits included.
    """

    def __init__(
        self, disk: DiskThread, *, now: Callable[[], float], took: Callable[[float], None]
    ) -> None:
        self._disk = disk
        self._now = now
        self._took = took

    def run(self, work: Work, done: Done) -> None:
        """Run `work` away from the loop, then `done(error or None)` on it."""
        started = self._now()

        def finished(error: BaseException | None) -> None:
            self._took(self._now() - started)
            done(error)

        self._disk.run(work, finished)


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
