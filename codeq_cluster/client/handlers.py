"""Handlers: the functions that process tasks, and how each is called."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from traceback import format_exception_only
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from codeq_cluster.client.codecs import Codec
from codeq_cluster.client.handling import (
    Done,
    Fail,
    HandlerTimeout,
    HandlerUnfit,
    Reject,
    Retry,
    Task,
)
from codeq_cluster.client.outcomes import (
    Completed,
    Failed,
    GivenBack,
    Outcome,
    Rejects,
    Unfit,
    Waits,
)
from codeq_cluster.client.producing import NewTask, body_of, whole_seconds
from codeq_cluster.client.records import TaskRecord
from codeq_cluster.client.saying import Said
from codeq_cluster.client.steps import Parked, Recorder, StepLog
from codeq_cluster.client.threads import Threads, told
from codeq_cluster.errors import ConfigInvalid, first_of

log = logging.getLogger(__name__)

Handler = Callable[[Task[Any]], Awaitable[object]] | Callable[[Task[Any]], object]
Meaning = Fail | Retry | Reject

_REASON_CHARS_MAX: Final = 1024  # The broker cuts a longer one.
_AFTER_S_MAX: Final = 366 * 86_400  # The broker cuts it, and refuses far larger numbers.
_ERROR_CHARS_MAX: Final = 8192  # At most 32 KiB of UTF-8, half of the broker's bound.


@dataclass(frozen=True, slots=True)
class Limit:
    """How long a handler may take, and who says so."""

    seconds: float
    whose: str


class Registered:
    """A handler, the type of its payload, and what its exceptions mean."""

    def __init__(
        self,
        handler: Handler,
        *,
        errors: Mapping[type[Exception], Meaning],
        codec: Codec,
        threads: Threads,
        limit: Limit,
    ) -> None:
        """Inspect the handler's signature.

        Args:
            handler: Takes one `Task`.
            errors: What to do when the handler raises one of these or a subclass.
            threads: Run the handler if it is not a coroutine function.

        Raises:
            ConfigInvalid: The handler does not take one `Task`, or the codec cannot read its
                payload's type.
        """
        self._handler = handler
        self._errors = dict(errors)
        self._codec = codec
        self._threads = threads
        self._own_limit = limit
        self.is_async = inspect.iscoroutinefunction(_function(handler))
        wanted = _payload_type(handler)
        try:
            self._decode = codec.decoder(wanted)
        except TypeError as error:
            raise ConfigInvalid(f"{_name(handler)}: its payload: {error}") from error

    def task(
        self, record: TaskRecord, said: Said, record_step: Recorder, park: Recorder
    ) -> tuple[Task[Any], StepLog] | GivenBack:
        """Return the task for the handler with its steps, or the reason it cannot be built."""
        loop = None if self.is_async else asyncio.get_running_loop()
        steps = StepLog(record.steps, self._codec, record_step, park, loop)
        try:
            payload = self._decode(record.payload.encode())
            return (
                Task(record=record, payload=payload, _steps=steps, _said=said, _codec=self._codec),
                steps,
            )
        except Exception as error:  # noqa: BLE001, a codec is its owner's
            # The task is not failed for good: a worker of another release may be able to read the
            # payload.
            text = f"the payload cannot be read: {error}"
            return GivenBack(text[:_REASON_CHARS_MAX], error=error)

    def start(self, task: Task[Any]) -> asyncio.Future[object]:
        """Start the handler: as a task of the loop, or in a thread."""
        if self.is_async:
            return asyncio.ensure_future(self._handle(task))
        return self._threads.run(functools.partial(self._handler, task))

    def limit_of(self, record: TaskRecord) -> Limit:
        """Return the smaller of the handler's limit and the task's."""
        if 0 < record.timeout_seconds < self._own_limit.seconds:
            return Limit(record.timeout_seconds, "task")
        return self._own_limit

    def overdue(self, handled: asyncio.Future[object], limit: Limit) -> HandlerTimeout:
        """Return the error of a handler that is out of time, with the place where it is."""
        error = HandlerTimeout(limit.seconds, whose=limit.whose)
        if stack := self._threads.stack(handled):
            error.add_note(f"Its thread cannot be ended. It is at:\n{stack}")
        return error

    def completed(self, result: object) -> Outcome:
        """Return the outcome of a handler that returned."""
        done = result if isinstance(result, Done) else Done(result)
        try:
            text = b"null" if done.result is None else self._codec.encode(done.result)
        except Exception as error:  # noqa: BLE001, a codec is its owner's
            reason = f"the result is no JSON: {error}"
            return GivenBack(reason[:_REASON_CHARS_MAX], error=error)
        # The broker treats null as no result.
        return self._followed(Completed(b"{}" if text.strip() == b"null" else text), done.next)

    def raised(self, error: Exception) -> Outcome:
        """Return the outcome of a handler that raised."""
        if isinstance(error, HandlerUnfit):
            return Unfit(error)
        try:
            return self._meant(error)
        except Exception as unread:  # noqa: BLE001, what is raised is its author's
            # The text of either may be what cannot be read.
            [why, *_] = format_exception_only(unread)
            reason = f"{type(error).__name__}: what it says cannot be read: {why.strip()}"
            return GivenBack(reason[:_REASON_CHARS_MAX], error=error)

    def _meant(self, error: Exception) -> Outcome:
        meaning, text = self._meaning(error)
        match meaning:
            case Fail():
                text = text[:_ERROR_CHARS_MAX].strip() or "the handler failed the task"
                return self._followed(Failed(text), meaning.next)
            case Retry():
                delay_s = min(whole_seconds(meaning.after), _AFTER_S_MAX)
                return GivenBack(text[:_REASON_CHARS_MAX], delay_s, hold=meaning.hold)
            case Reject():
                return Rejects(text[:_REASON_CHARS_MAX])
        return GivenBack(text[:_REASON_CHARS_MAX], error=error)

    def _followed(self, outcome: Completed | Failed, tasks: Sequence[NewTask]) -> Outcome:
        try:
            bodies = tuple(body_of(task, self._codec, keyless=True) for task in tasks)
        except Exception as error:  # noqa: BLE001, a codec is its owner's
            reason = f"its follow-ups cannot be sent: {error}"
            if isinstance(outcome, Failed):
                reason = f"{reason}; it failed: {outcome.error}"
            return GivenBack(reason[:_REASON_CHARS_MAX], error=error)
        return replace(outcome, next=bodies)

    async def _handle(self, task: Task[Any]) -> object:
        try:
            handled = self._handler(task)
            assert inspect.isawaitable(handled)
            return await handled
        except SystemExit as error:
            raise told(error) from error

    def _meaning(self, error: Exception) -> tuple[Meaning | None, str]:
        if isinstance(error, Fail | Retry | Reject):
            return error, str(error)
        text = f"{type(error).__name__}: {error}"
        for kind in type(error).__mro__:
            if (meaning := self._errors.get(kind)) is not None:
                return meaning, f"{meaning}: {text}" if str(meaning) else text
        return None, text


class HandlerCall:
    """One task on its way through its handler."""

    def __init__(
        self,
        handler: Registered,
        record: TaskRecord,
        record_step: Recorder,
        park: Recorder,
        *,
        overtime_s: float,
    ) -> None:
        """Prepare it; its time runs from now on.

        Args:
            park: Gives it back until its wait is over.
            overtime_s: For a handler that was asked to end, before it is left alone.
        """
        self._handler = handler
        self._record = record
        self._record_step, self._park = record_step, park
        self.said = Said()
        self._overtime_s = overtime_s
        self._limit = handler.limit_of(record)
        self._ends = time.monotonic() + self._limit.seconds
        self._handled: asyncio.Future[object] | None = None

    @property
    def left_s(self) -> float:
        """What is left of its time."""
        return max(0.0, self._ends - time.monotonic())

    async def run(self) -> Outcome:
        """Run the handler and return its outcome; an exception of the handler is an outcome too.

        At the end of its time, and when this is cancelled, the handler is asked to end: a coroutine
        is cancelled, and a thread, which cannot be, finds its task's `cancelled` true. A coroutine
        gets `overtime_s` for it; a thread too, but only at the end of its time.
        """
        made = self._handler.task(self._record, self.said, self._record_step, self._park)
        if isinstance(made, GivenBack):
            return made
        task, steps = made
        handled = self._handled = self._handler.start(task)
        try:
            await asyncio.wait({handled}, timeout=self.left_s)
            if not handled.done():
                return await self._overdue(task, handled)
        except asyncio.CancelledError:
            task.cancel()
            if self._handler.is_async:
                handled.cancel()
                await asyncio.wait({handled}, timeout=self._overtime_s)
            raise
        try:
            result = handled.result()
        except asyncio.CancelledError:
            return GivenBack("the handler was cancelled")
        except BaseException as error:  # noqa: BLE001, what is raised is its author's
            if (step := _parked_at(error)) is not None:
                return Waits(step)
            return self._handler.raised(error if isinstance(error, Exception) else told(error))
        if steps.unasked:
            log.warning(
                "task %s %s has recorded steps that its function did not ask for: %s",
                self._record.id,
                self._record.command,
                ", ".join(steps.unasked),
            )
        return self._handler.completed(result)

    def unfinished(self) -> asyncio.Future[object] | None:
        """Return the handler that still runs although the call is over, or None."""
        handled = self._handled
        return None if handled is None or handled.done() else handled

    async def _overdue(self, task: Task[Any], handled: asyncio.Future[object]) -> Outcome:
        error = self._handler.overdue(handled, self._limit)
        task.cancel()
        if self._handler.is_async:
            handled.cancel()
        await asyncio.wait({handled}, timeout=self._overtime_s)
        if handled.cancelled():
            try:
                handled.result()
            except asyncio.CancelledError as cut:
                error.__cause__ = cut  # Its traceback shows where the handler was.
        # A result after the end of its time is not taken: producers rely on the limit.
        return GivenBack(str(error), error=error)


def _parked_at(error: BaseException) -> str | None:
    """Return the step at which the handler has parked its task, alone or in a group, or None."""
    if isinstance(error, BaseExceptionGroup):
        error = first_of(error.subgroup(Parked) or error)
    return error.step if isinstance(error, Parked) else None


def _payload_type(handler: Handler) -> Any:
    """Return the type that the handler declares for its payload."""
    taken = [
        each
        for each in inspect.signature(handler).parameters.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        and each.default is each.empty
    ]
    if len(taken) != 1:
        raise ConfigInvalid(f"{_name(handler)}: takes {len(taken)} arguments; must take one Task")
    try:
        hint = get_type_hints(_function(handler)).get(taken[0].name, Any)
    except NameError as error:
        raise ConfigInvalid(
            f"{_name(handler)}: {error}; the payload's type must be defined at the top of a module"
        ) from error
    if hint in (Any, Task):
        return Any
    if get_origin(hint) is not Task:
        raise ConfigInvalid(f"{_name(handler)}: takes {hint}; must take Task or Task[…]")
    [wanted] = get_args(hint)
    return Any if isinstance(wanted, TypeVar) else wanted


def _function(handler: Handler) -> Callable[..., object]:
    """Return the function behind a handler, which may be any callable object."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if inspect.isroutine(handler):
        return handler
    return type(handler).__call__


def _name(handler: Handler) -> str:
    return str(getattr(handler, "__qualname__", repr(handler)))
