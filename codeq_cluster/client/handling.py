"""Handling: what a handler takes, what it may raise, and how a delivery ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from codeq_cluster.client.leases import Task
from codeq_cluster.errors import CodeqError

Handler = Callable[[Task], Awaitable[object]]


class TaskFailed(Exception):
    """Raised by a handler: the task has failed for good; the text is its error."""


class TaskReturned(Exception):
    """Raised by a handler: the task is to be tried again; the text is the reason.

    Attributes:
        delay_s: When; 0 for the broker's back-off.
    """

    def __init__(self, reason: str, *, delay_s: int = 0) -> None:
        super().__init__(reason)
        self.delay_s = delay_s


class HandlerUnfit(CodeqError):
    """Raised by a handler: it can handle nothing; the task goes back and the worker ends."""


class JsonText(str):
    """A result that is JSON text already, sent as it is."""

    __slots__ = ()


class Ending(StrEnum):
    """How a delivery ended.

    `returned` tasks come again, `dead` ones had their last attempt; `lost` were no longer this
    worker's; of an `unknown` one the broker did not say whether it took the report.
    """

    COMPLETED = "completed"
    FAILED = "failed"
    RETURNED = "returned"
    DEAD = "dead"
    ABANDONED = "abandoned"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A delivery that ended.

    Attributes:
        note: Why, where it did not complete; one line or more.
        seconds: From the claim's answer to the report's.
        failure: Why the worker cannot go on, where it cannot.
    """

    task: Task
    ending: Ending
    note: str
    seconds: float
    failure: CodeqError | None = None
