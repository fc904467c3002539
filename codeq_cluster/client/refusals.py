"""Refusals: the errors of requests that did not succeed."""

from __future__ import annotations

from typing import Final

from codeq_cluster.errors import CodeqError

# The code of what the cluster does not know before it is upgraded.
TOO_EARLY: Final = "upgrade-under-way"
CLOSED: Final = "this connection is closed: open a new one"


def said(error: str, detail: str) -> str:
    """Return what an answer says of an error: its text, and what is wrong, if it says that."""
    return f"{error}: {detail}" if detail else error


class Unreachable(CodeqError):
    """No node took the request, so nothing was done."""


class Untrusted(Unreachable):
    """The node's certificate is not trusted; nothing was sent."""


class ConnectionGone(ConnectionError):
    """The connection is closed, or another process's: it was made before a fork."""


class Refused(CodeqError):
    """The broker answered with an error, or with something outside its protocol.

    Attributes:
        status: The HTTP status, or 0 if the connection broke after the request was sent.
        code: The stable code of the error, or empty; `outcome-unknown` if the request may have
            taken effect.
        retryable: Whether the same request may succeed later.
        retry_after_s: When to try again, as the broker suggests; 0 if it suggests nothing.
        nothing_done: Whether the broker states that the request had no effect.
        task_id: The task that holds the unique key, for `unique-conflict`; empty otherwise.
    """

    def __init__(
        self,
        text: str,
        *,
        status: int,
        code: str = "",
        retryable: bool = False,
        retry_after_s: int = 0,
        nothing_done: bool = False,
        task_id: str = "",
    ) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.nothing_done = nothing_done
        self.task_id = task_id
