"""Handling: the task a handler gets, the errors it may raise, and how a delivery ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from operator import index
from typing import Any, Generic, Literal, TypeVar, get_args

from msgspec import Raw, UnsetType

from codeq_cluster.client.codecs import JSON, Codec
from codeq_cluster.client.producing import Duration, NewTask
from codeq_cluster.client.records import CancelRecord, InputRecord, TaskRecord
from codeq_cluster.client.saying import CHECKPOINT_BYTES_MAX, COUNT_MAX, Said, cut
from codeq_cluster.client.steps import StepLog, wait_of
from codeq_cluster.errors import CodeqError

P = TypeVar("P")
Hold = Literal["", "key", "queue", "limit"]


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
    _steps: StepLog | None = field(default=None, repr=False, compare=False)
    _said: Said = field(default_factory=Said, repr=False, compare=False)
    _codec: Codec = field(default=JSON, repr=False, compare=False)

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
    def tags(self) -> Mapping[str, str]:
        """The texts by which lists find the task, by name."""
        return self.record.tags

    @property
    def metadata(self) -> Any:
        """What the producer has said beside the payload, as plain values; None if nothing."""
        said = self.record.metadata
        return None if isinstance(said, UnsetType) else self._codec.decoder(object)(bytes(said))

    @property
    def cancelled(self) -> bool:
        """Whether the handler should end: out of time, its lease is lost, or the worker stops.

        An async handler is also cancelled. A handler in a thread cannot be cancelled, so a long one
        must check this from time to time. It is also true while a cancel leaves the handler time to
        end: what it returns by the deadline counts, and if it raises, the task is cancelled.
        """
        return self._gone.is_set() or self._said.cancel is not None

    @property
    def cancel_asked(self) -> CancelRecord | None:
        """Why the task is to be cancelled, and when; None while nobody has asked for it."""
        return self._said.cancel

    def step(
        self,
        name: str,
        call: Callable[..., Any],
        /,
        *given: Any,
        anywhere: bool = False,
        **named: Any,
    ) -> Any:
        """Call a function once for this task, and return what it has returned, now or before.

        In a coroutine function, await it. What is returned is recorded as JSON, at most 64 KiB, and
        comes back as the type that the function says it returns, else as plain values. If the
        function raises, nothing is recorded, and the task's next delivery calls it again. It may
        also be called again if the worker dies before its record is taken; `step_key` lets others
        recognise that.

        Args:
            name: Of the step within the task; a second one is `name#2`, and so on.
            call: Also a coroutine function, in a handler that is one.
            given: Its arguments.
            anywhere: It is new in this release: earlier steps may be recorded that the function has
                not asked for yet.
            named: Its arguments by name.

        Raises:
            StepsChanged: The task has recorded other steps than the function now asks for.
            Refused: The broker does not take the step; the task is lost, or has too many.
            Unreachable: No node takes it.
        """
        return self._log.step(name, call, given, named, anywhere=anywhere)

    def step_key(self, name: str) -> str:
        """Return a text that is the same at each call of a step, and no other step's."""
        return f"{self.id}:{name}"

    def sleep(
        self,
        duration: Duration | None = None,
        *,
        until: datetime | None = None,
        name: str = "sleep",
        keep_key: bool = False,
        anywhere: bool = False,
        **span: float,
    ) -> Any:
        """Go on later, without a worker meanwhile; in a coroutine function, await it.

        The handler ends here, and the task's next delivery begins it again. At most 366 days.

        Args:
            duration: How long, a number in seconds.
            until: Instead, the instant.
            name: As of a step.
            keep_key: No other task with its `key` goes on meanwhile.
            anywhere: As of a step.
            span: Instead, as `days=3`, `hours=1` and what else a `timedelta` takes.

        Raises:
            ValueError: No time is given, or two.
        """
        wait = wait_of(until=until, for_=_of(duration, span), signal="", keep_key=keep_key)
        return self._log.wait(name, anywhere=anywhere, **wait)

    def wait_for(
        self,
        signal: str,
        duration: Duration | None = None,
        *,
        until: datetime | None = None,
        name: str | None = None,
        keep_key: bool = False,
        anywhere: bool = False,
        **span: float,
    ) -> Any:
        """Return a `Signal` to this task, or None if its time is over first.

        As `sleep` in all else; without a time it waits for 366 days. Each wait takes one signal of
        its name, also one that came before.
        """
        wait = wait_of(until=until, for_=_of(duration, span), signal=signal, keep_key=keep_key)
        return self._log.wait(signal if name is None else name, anywhere=anywhere, **wait)

    @property
    def _log(self) -> StepLog:
        if self._steps is None:
            raise LookupError("steps need a worker: this task was not given to a handler by one")
        return self._steps

    def progress(self, done: int, total: int = 0, note: str = "") -> None:
        """Say how far the work is, in whatever unit; the task shows the last one said.

        It is reported within a second or so, together with what the worker's other handlers say,
        the last one before the task's end, and may be called as often as you like, from any thread.
        A note is cut at 1 KiB.

        Raises:
            ValueError: A number is negative, or above 253,402,300,799,999.
            TypeError: One is not whole.
        """
        counted = {"done": index(done), "total": index(total)}  # As of NumPy's integers, too.
        if not all(0 <= each <= COUNT_MAX for each in counted.values()):
            raise ValueError(
                f"progress({done}, {total}): must not be negative, nor above {COUNT_MAX}"
            )
        self._said.say("progress", {**counted, "note": cut(note)})

    def log(self, text: str) -> None:
        """Add a line to the task's log, which the broker keeps with the task: its last 200 lines.

        It is reported as progress is, 20 lines a second, and the last ones before the task's end.
        It may be called as often as you like, from any thread, and never waits or raises; if more
        than 200 lines wait to be sent, the oldest are left out, and a line says how many. A text of
        several lines is as many. A line is cut at 1 KiB.
        """
        self._said.log(str(text))

    def save(self, checkpoint: object) -> None:
        """Leave something to the next delivery, in place of what was left before.

        It is reported as progress is, and before the task is given back, so a worker that dies
        loses about the last second of it.

        Raises:
            ValueError: Its JSON is null, or larger than 64 KiB.
        """
        text = self._codec.encode(checkpoint)
        if text.strip() == b"null" or len(text) > CHECKPOINT_BYTES_MAX:
            raise ValueError(f"save(): must be JSON but null, at most {CHECKPOINT_BYTES_MAX} bytes")
        self._said.say("checkpoint", Raw(text))

    @property
    def checkpoint(self) -> Any:
        """What the last delivery has left, as plain values; None if it left nothing."""
        left = self.record.checkpoint
        return None if isinstance(left, UnsetType) else self._codec.decoder(object)(bytes(left))

    def cancel(self) -> None:
        """Ask the handler to end; only the worker calls this."""
        self._gone.set()


def _of(duration: Duration | None, span: Mapping[str, float]) -> Duration | None:
    if not span:
        return duration
    if duration is not None:
        raise ValueError("a wait has one duration")
    return timedelta(**span)


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
        hold: `"key"`, `"queue"` or `"limit"` if no task of the same key, of the whole queue, or of
            all queues that share its limit, is to be handed out before then, to any worker: the API
            has said that it wants less. The attempt does not count. Where there is nothing to hold,
            it is a retry without it.
    """

    def __init__(self, reason: str = "", *, after: Duration = 0, hold: Hold = "") -> None:
        if hold not in get_args(Hold):
            raise ValueError(f'hold must be "key", "queue", "limit", or "" for none, not {hold!r}')
        super().__init__(reason)
        self.after = after
        self.hold = hold


class Reject(Exception):
    """Raised by a handler to make the task a dead letter at once; the text is its error.

    `Fail` is an answer to the producer. A dead letter is for an operator, who may correct and
    requeue it. Before the cluster has formats of level 2 it is a retry.
    """


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

    A `returned` task comes again, and a `dead` one had its last attempt or was rejected. A `lost`
    one no longer belonged to this worker. A `parked` one waits for time or a signal. For an
    `unknown` one, the broker did not answer whether it took the report.
    """

    COMPLETED = "completed"
    FAILED = "failed"
    RETURNED = "returned"
    DEAD = "dead"
    ABANDONED = "abandoned"
    PARKED = "parked"
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
        task = self.task
        line = (
            f"task {task.id} {task.command}: {self.ending} in {self.seconds:.3f} s, "
            f"attempt {task.attempts} of {task.max_attempts}"
        )
        if task.worker_name:
            line += f", by {task.worker_name}"
        return f"{line}: {' '.join(self.note.split())}" if self.note else line
