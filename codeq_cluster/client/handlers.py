"""Handlers: the functions that process tasks, and how each is called."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from codeq_cluster.client.codecs import Codec
from codeq_cluster.client.handling import Fail, HandlerUnfit, Retry, Task
from codeq_cluster.client.outcomes import Completed, Failed, GivenBack, Outcome, Unfit
from codeq_cluster.client.producing import whole_seconds
from codeq_cluster.client.records import TaskRecord
from codeq_cluster.client.threads import Threads
from codeq_cluster.errors import ConfigInvalid

log = logging.getLogger(__name__)

Handler = Callable[[Task[Any]], Awaitable[object]] | Callable[[Task[Any]], object]
Meaning = Fail | Retry

_REASON_CHARS_MAX: Final = 1024  # The broker cuts a longer one.
_ERROR_CHARS_MAX: Final = 8192  # At most 32 KiB of UTF-8, half of the broker's bound.


class Registered:
    """A handler, the type of its payload, and what its exceptions mean."""

    def __init__(
        self,
        handler: Handler,
        *,
        errors: Mapping[type[Exception], Meaning],
        codec: Codec,
        threads: Threads,
    ) -> None:
        """Inspect the handler's signature.

        Args:
            handler: Takes one `Task`.
            errors: What to do when the handler raises one of these or a subclass.
            codec: Reads payloads and writes results.
            threads: Run the handler if it is not a coroutine function.

        Raises:
            ConfigInvalid: The handler does not take one `Task`, or the codec cannot read its
                payload's type.
        """
        self._handler = handler
        self._errors = dict(errors)
        self._codec = codec
        self._threads = threads
        self.is_async = inspect.iscoroutinefunction(_function(handler))
        wanted = _payload_type(handler)
        try:
            self._decode = codec.decoder(wanted)
        except TypeError as error:
            raise ConfigInvalid(f"{_name(handler)}: its payload: {error}") from error

    def call(self, record: TaskRecord) -> HandlerCall:
        """Return a call of the handler, not yet started."""
        return HandlerCall(self, record)

    def task(self, record: TaskRecord) -> Task[Any] | GivenBack:
        """Return the task for the handler, or the reason it cannot be built."""
        try:
            return Task(record=record, payload=self._decode(record.payload.encode()))
        except Exception as error:  # noqa: BLE001, a codec is its owner's
            # The task is not failed for good: a worker of another release may be able to read the
            # payload.
            return GivenBack(f"the payload cannot be read: {error}"[:_REASON_CHARS_MAX])

    async def handle(self, task: Task[Any]) -> object:
        """Await the handler; cancelling this cancels it."""
        handled = self._handler(task)
        assert inspect.isawaitable(handled)
        return await handled

    def start(self, task: Task[Any]) -> asyncio.Future[object]:
        """Start the handler in a thread."""
        return self._threads.run(functools.partial(self._handler, task))

    def completed(self, result: object) -> Outcome:
        """Return the outcome of a handler that returned."""
        if result is None:
            return Completed(b"{}")  # The broker treats null as no result.
        try:
            text = self._codec.encode(result)
        except Exception as error:  # noqa: BLE001, a codec is its owner's
            return GivenBack(f"the result is no JSON: {error}"[:_REASON_CHARS_MAX])
        return Completed(b"{}" if text.strip() == b"null" else text)

    def raised(self, error: Exception) -> Outcome:
        """Return the outcome of a handler that raised."""
        if isinstance(error, HandlerUnfit):
            return Unfit(error)
        meaning, text = self._meaning(error)
        match meaning:
            case Fail():
                return Failed(text[:_ERROR_CHARS_MAX].strip() or "the handler failed the task")
            case Retry():
                return GivenBack(text[:_REASON_CHARS_MAX], whole_seconds(meaning.after))
        # The handler is not our code: its exception is the reason, and the traceback is logged for
        # its author.
        log.warning(
            "the handler raised %s; the task is returned", type(error).__name__, exc_info=error
        )
        return GivenBack(text[:_REASON_CHARS_MAX])

    def _meaning(self, error: Exception) -> tuple[Meaning | None, str]:
        if isinstance(error, Fail | Retry):
            return error, str(error)
        text = f"{type(error).__name__}: {error}"
        for kind in type(error).__mro__:
            if (meaning := self._errors.get(kind)) is not None:
                return meaning, f"{meaning}: {text}" if str(meaning) else text
        return None, text


class HandlerCall:
    """One task on its way through its handler."""

    def __init__(self, handler: Registered, record: TaskRecord) -> None:
        """Prepare it."""
        self._handler = handler
        self._record = record
        self._thread: asyncio.Future[object] | None = None

    async def run(self) -> Outcome:
        """Run the handler and return its outcome; an exception of the handler is an outcome too.

        Cancelling this cancels a coroutine handler and waits for it. A thread cannot be cancelled:
        it goes on, and its task's `cancelled` becomes true.
        """
        task = self._handler.task(self._record)
        if isinstance(task, GivenBack):
            return task
        try:
            if self._handler.is_async:
                result = await self._handler.handle(task)
            else:
                self._thread = self._handler.start(task)
                result = await asyncio.shield(self._thread)
        except asyncio.CancelledError:
            task.cancel()
            raise
        except Exception as error:  # noqa: BLE001, a handler is its author's
            return self._handler.raised(error)
        return self._handler.completed(result)

    async def settled(self) -> None:
        """Return when the handler's thread is free again."""
        if self._thread is not None:
            await asyncio.wait({self._thread})


def _payload_type(handler: Handler) -> Any:
    """Return the type that the handler declares for its payload."""
    taken = [
        each
        for each in inspect.signature(handler).parameters.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        and each.default is each.empty
    ]
    if len(taken) != 1:
        raise ConfigInvalid(f"{_name(handler)}: takes {len(taken)} arguments; allowed is one Task")
    try:
        hint = get_type_hints(_function(handler)).get(taken[0].name, Any)
    except NameError as error:
        raise ConfigInvalid(
            f"{_name(handler)}: {error}; the payload's type must be defined at the top of a module"
        ) from error
    if hint in (Any, Task):
        return Any
    if get_origin(hint) is not Task:
        raise ConfigInvalid(f"{_name(handler)}: takes {hint}; allowed is Task or Task[…]")
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
