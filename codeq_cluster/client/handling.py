"""Handling: the task a handler gets, the errors it may raise, and how a delivery ends."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from codeq_cluster.client.producing import Duration, NewTask
from codeq_cluster.client.records import InputRecord, TaskRecord
from codeq_cluster.errors import CodeqError

P = TypeVar("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Generic[P]):
    """A task that this worker has leased.

    Attributes:
        payload: Of the type the handler declares, `Task[Resize]`; plain values without one.
        record: Everything the broker returned about the task, including the payload's own text.
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
        """The number of the last delivery; a task that fails it is a dead letter."""
        return self.record.max_attempts

    @property
    def lease_token(self) -> int:
        """The fencing token: grows with every delivery, and protects writes to other systems."""
        return self.record.lease_token

    @property
    def inputs(self) -> Mapping[str, InputRecord]:
        """How the tasks have ended that it waited for, by ref or id."""
        return self.record.inputs

    @property
    def cancelled(self) -> bool:
        """Whether the handler should end: out of time, its lease is lost, or the worker stops.

        An async handler is also cancelled. A handler in a thread cannot be cancelled, so a long one
        must check this from time to time.
        """
        return self._gone.is_set()

    def cancel(self) -> None:
        """Ask the handler to end; only the worker calls this."""
        self._gone.set()


@dataclass(frozen=True, slots=True)
class Done:
    """Returned by a handler that has more to say than its result.

    Attributes:
        result: As a handler returns it.
        next: Tasks that are created with the result: all of them with it, or none without it, and
            none twice, however often the task is delivered.
    """

    result: object = None
    next: Sequence[NewTask] = ()


class Fail(Exception):
    """Raised by a handler to fail the task for good; the text is its error.

    Attributes:
        next: Tasks that are created with the failure, such as one that undoes what was done.
    """

    def __init__(self, error: str = "", *, next: Sequence[NewTask] = ()) -> None:  # noqa: A002
        super().__init__(error)
        self.next = next


class Retry(Exception):
    """Raised by a handler to retry the task later; the text is the reason.

    Attributes:
        after: When to retry, a number in seconds; 0 for the broker's back-off. The broker bounds
            it, by 15 minutes unless it is configured otherwise.
    """

    def __init__(self, reason: str = "", *, after: Duration = 0) -> None:
        super().__init__(reason)
        self.after = after


class HandlerUnfit(CodeqError):
    """Raised by a handler that can handle nothing; the task is returned and the worker ends."""


class HandlersStuck(CodeqError):
    """Too many handlers go on after their time limits; only the end of the process ends them."""


class HandlerTimeout(TimeoutError):
    """A handler ran longer than its time limit; the text is the reason of the nack."""

    def __init__(self, limit_s: float, *, whose: str) -> None:
        super().__init__(f"HANDLER_TIMEOUT: it ran longer than {limit_s:g} s, the {whose}'s limit")


class Ending(StrEnum):
    """How a delivery ended.

    A `returned` task comes again, and a `dead` one had its last attempt. A `lost` one no longer
    belonged to this worker. For an `unknown` one, the broker did not answer whether it took the
    report.
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
        note: Why the task did not complete; one line or more.
        seconds: From the answer of the claim to the answer of the report.
        failure: Why the worker cannot go on, if it cannot.
        error: Why the task was returned, with its traceback, if the handler did not ask for it.
    """

    task: TaskRecord
    ending: Ending
    note: str
    seconds: float
    failure: CodeqError | None = None
    error: Exception | None = None

    def __str__(self) -> str:
        """Return it as one line."""
        task = self.task
        line = (
            f"task {task.id} {task.command}: {self.ending} in {self.seconds:.3f} s, "
            f"attempt {task.attempts} of {task.max_attempts}"
        )
        if task.worker_name:
            line += f", by {task.worker_name}"
        return f"{line}: {' '.join(self.note.split())}" if self.note else line
