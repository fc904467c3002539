"""Link: one process's requests to one cluster, for threads, over any fork."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from functools import cache
from typing import Any, Final, TypeVar

from codeq_cluster.client import Client, Leases, Operator, Refused, Unreachable, Untrusted
from codeq_cluster.client.background import Background
from codeq_cluster.errors import CodeqError
from codeq_cluster.integrations.ends import Ends
from codeq_cluster.integrations.target import Target

T = TypeVar("T")

_SENT_OFF_MAX: Final = 100
_UNFIT: Final = frozenset({400, 413})

_lock = threading.Lock()
_open: dict[Target, Link] = {}


class Link(Background):
    """The clients of a cluster, on an event loop in a thread of their own.

    Attributes:
        client: Creates tasks and reads them.
        leases: Claims tasks and ends them.
        ends: Acknowledges them.
        operator: Counts and purges queues, if the token is an admin's.
    """

    def __init__(self, target: Target) -> None:
        """Start the thread; nothing is sent yet."""
        self.target = target
        self.users = 0
        self._sent_off = threading.BoundedSemaphore(_SENT_OFF_MAX)
        options: dict[str, Any] = {
            "token": target.token,
            "ca_file": target.ca_file,
            "deadline_s": target.deadline_s,
        }
        self.client = Client(target.urls, **options)
        self.leases = Leases(target.urls, **options)
        self.ends = Ends(self.leases)
        self.operator = Operator(target.urls, **options)
        super().__init__(self.client, self.leases, self.operator, name="codeq link")

    def send_off(self, call: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin a call that nobody need await; a thread that is faster than the broker waits here.

        Raises:
            ConnectionGone: The link is closed, or another process's.
        """
        self._sent_off.acquire()
        try:
            future = self.start(call)
        except BaseException:
            self._sent_off.release()
            raise
        future.add_done_callback(lambda _: self._sent_off.release())
        return future

    async def answer(self, call: Coroutine[Any, Any, T]) -> T:
        """Return the answer of a call to a coroutine of any loop; as `run`."""
        return await asyncio.wrap_future(self.start(call))


def may_pass(error: CodeqError) -> bool:
    """Return whether the same request may succeed later."""
    if isinstance(error, Refused):
        return error.retryable or error.status == 0 or error.status >= 500
    return isinstance(error, Unreachable) and not isinstance(error, Untrusted)


def is_unfit(error: CodeqError) -> bool:
    """Return whether the broker refuses the request's content: malformed, or over a bound."""
    return isinstance(error, Refused) and error.status in _UNFIT


def acquire(target: Target) -> Link:
    """Return this process's link to a cluster, for `release` when it is used no more."""
    with _lock:
        link = _open.get(target)
        if link is None:
            link = _open[target] = Link(target)
        link.users += 1
        return link


def release(link: Link) -> None:
    """Close a link that nobody uses any more; one of another process is left alone."""
    if not link.ours:
        return
    with _lock:
        link.users -= 1
        if link.users:
            return
        del _open[link.target]
    link.close()


def lasting(target: Target) -> Link:
    """Return this process's link to a cluster, which is closed when the process ends."""
    return _lasting(target, os.getpid())


@cache
def _lasting(target: Target, pid: int) -> Link:
    assert pid == os.getpid()
    link = acquire(target)
    atexit.register(release, link)
    return link


def _forget() -> None:
    """Let a child begin with links of its own."""
    global _lock  # noqa: PLW0603 - a thread of the parent may have held it
    _lock = threading.Lock()
    _open.clear()


os.register_at_fork(after_in_child=_forget)
