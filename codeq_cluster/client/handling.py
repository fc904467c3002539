"""Handling: what a handler gets, what it may raise, and how a delivery ends."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from codeq_cluster.client.producing import Duration
from codeq_cluster.client.records import TaskRecord
from codeq_cluster.errors import CodeqError

P = TypeVar("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Generic[P]):
    """A task that this worker has leased.

    Attributes:
        payload: As the type the handler names, `Task[Resize]`; plain values when it names none.
        record: All the broker says of it, the payload's own text included.
    """

    record: TaskRecord
    payload: P
    _gone: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)

    @property
    def id(self) -> str:
        """The task's id."""
        return self.record.id

    @property
    def command(self) -> str:
        """The task's command."""
        return self.record.command

    @property
    def attempt(self) -> int:
        """Which delivery this is, from 1."""
        return self.record.attempts

    @property
    def attempts_max(self) -> int:
        """The last delivery; a task that fails it is a dead letter."""
        return self.record.max_attempts

    @property
    def lease_token(self) -> int:
        """Grows with every delivery of the task; fences what a handler writes elsewhere."""
        return self.record.lease_token

    @property
    def cancelled(self) -> bool:
        """Whether the handler is to end: its lease is lost, or the worker stops.

        An async handler is cancelled besides. A handler in a thread cannot be: a long one looks
        here from time to time.
        """
        return self._gone.is_set()

    def cancel(self) -> None:
        """Tell the handler to end; the worker's to call."""
        self._gone.set()


class Fail(Exception):
    """Raised by a handler: the task has failed for good; the text is its error."""


class Retry(Exception):
    """Raised by a handler: the task is to be tried again; the text is the reason.

    Attributes:
        after: When, a number counts seconds; 0 for the broker's back-off. The broker bounds it, by
            15 minutes unless it is configured otherwise.
    """

    def __init__(self, reason: str = "", *, after: Duration = 0) -> None:
        super().__init__(reason)
        self.after = after


class HandlerUnfit(CodeqError):
    """Raised by a handler: it can handle nothing; the task goes back and the worker ends."""


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

    task: TaskRecord
    ending: Ending
    note: str
    seconds: float
    failure: CodeqError | None = None
