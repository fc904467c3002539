"""Session: what one process has of one cluster, with Dramatiq's errors."""

from __future__ import annotations

import os
from collections.abc import Coroutine
from typing import Any, TypeVar

from dramatiq.errors import BrokerError, ConnectionClosed

from codeq_cluster.errors import CodeqError
from codeq_cluster.integrations.holding import Holding, this_worker
from codeq_cluster.integrations.link import Link, acquire, may_pass, release
from codeq_cluster.integrations.target import Target

T = TypeVar("T")


class BrokerRefused(BrokerError):
    """The broker refused a request, and would refuse it again."""


class Session:
    """The link of a process, and the messages that the process holds."""

    def __init__(self, target: Target, *, lease_s: int) -> None:
        """Start the link's thread, unless the process has it; nothing is sent yet."""
        self.link: Link = acquire(target)
        self.holding = Holding(self.link.leases, lease_s=lease_s, worker_name=this_worker())

    def ask(self, call: Coroutine[Any, Any, T]) -> T:
        """Return the answer of a request, from any thread.

        Raises:
            ConnectionClosed: No node answered, or the outcome is unknown; repeating it is safe.
            BrokerRefused: The broker refused it.
        """
        try:
            return self.link.run(call)
        except CodeqError as error:
            raise as_dramatiq(error) from error

    def close(self) -> None:
        """Give back what is held, and close the link unless others use it."""
        if self.link.ours:
            self.link.run(self.holding.close())
        release(self.link)


class Sessions:
    """The session of each process that a broker is used in: a fork has another one."""

    def __init__(self, target: Target, *, lease_s: int) -> None:
        """Prepare it; a session begins when it is needed."""
        self._target = target
        self._lease_s = lease_s
        self._of_pid: dict[int, Session] = {}

    @property
    def ours(self) -> Session:
        """The session of this process."""
        pid = os.getpid()
        found = self._of_pid.get(pid)
        if found is not None:
            return found
        # No lock: a thread of the parent could have held it at a fork.
        made = Session(self._target, lease_s=self._lease_s)
        found = self._of_pid.setdefault(pid, made)
        if found is not made:
            made.close()
        return found

    def close(self) -> None:
        """End this process's session; another one begins when it is needed."""
        found = self._of_pid.pop(os.getpid(), None)
        if found is not None:
            found.close()


def as_dramatiq(error: CodeqError) -> BrokerError:
    """Return an error of the client as one of Dramatiq's; what may pass is repeated by it."""
    return ConnectionClosed(str(error)) if may_pass(error) else BrokerRefused(str(error))
