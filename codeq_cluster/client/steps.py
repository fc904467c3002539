"""Steps: what a handler's function has done is recorded, and its waits hold no worker.

The next delivery gets what is recorded, so a function that begins again passes over it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar, get_type_hints

from msgspec import UNSET, Raw

from codeq_cluster.client.codecs import Codec
from codeq_cluster.client.producing import Duration, whole_seconds
from codeq_cluster.client.records import StepRecord

T = TypeVar("T")


class StepsChanged(Exception):
    """The function asks for other steps than an earlier release of it has recorded."""


class Parked(BaseException):
    """Ends a handler whose task waits; no `except Exception` catches it."""

    def __init__(self, step: str) -> None:
        super().__init__(step)
        self.step = step


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal that has ended a wait.

    Attributes:
        payload: What it carries, as plain values.
    """

    payload: Any


class Recorder(Protocol):
    """Sends a step of the task to the broker; returns it as it stands."""

    async def __call__(self, name: str, *, position: int, **said: object) -> StepRecord:
        """Record it, with its `value`, or wait at it."""


class StepLog:
    """The steps of one delivery, as its function asks for them.

    Args:
        recorded: What earlier deliveries have recorded.
        park: Begins a wait, which may be over already.
        loop: Of the worker, if the function runs in a thread; None for a coroutine function.
    """

    def __init__(
        self,
        recorded: Sequence[StepRecord],
        codec: Codec,
        record: Recorder,
        park: Recorder,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self._recorded = {step.name: step for step in recorded}
        self._unasked = dict(self._recorded)
        self._send, self._park = record, park
        self._codec = codec
        self._loop = loop
        self._asked: Counter[str] = Counter()
        self._position = 0

    @property
    def unasked(self) -> list[str]:
        """The recorded steps that the function has not asked for."""
        return [*self._unasked]

    def step(
        self, name: str, call: Callable[..., Any], given: Any, named: Any, *, anywhere: bool
    ) -> Any:
        """Return the value of a step, or in a coroutine function an awaitable of it."""
        asked = self._ask(name, anywhere=anywhere)
        if self._loop is None:
            return self._run(asked, call, given, named)
        if asked.known is not None:
            return self._value(asked, call)
        result = call(*given, **named)
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError(f"step {name!r}: a plain function cannot run a coroutine")
        return self._wait(self._record(asked, call, result))

    def wait(self, name: str, *, anywhere: bool, **wait: object) -> Any:
        """Return the signal that ended a wait, None for its end by time, as `step` returns."""
        asked = self._ask(name, anywhere=anywhere)
        waiting = self._waited(asked, wait)
        return waiting if self._loop is None else self._wait(waiting)

    def _ask(self, name: str, *, anywhere: bool) -> _Asked:
        """Note that the function asks for its next step; raises StepsChanged."""
        self._position += 1
        self._asked[name] += 1
        number = self._asked[name]
        full = name if number == 1 else f"{name}#{number}"
        known = self._recorded.get(full)
        self._unasked.pop(full, None)
        if known is None and not anywhere:
            for other in self._unasked.values():
                if 0 < other.position <= self._position:
                    raise StepsChanged(
                        f"the function asks for step {full!r} as its number {self._position}, and "
                        f"step {other.name!r} is recorded as number {other.position}: an earlier "
                        "release of the function has run. Keep the names and the order of steps "
                        "until its tasks have ended, or say anywhere=True of a step that is new"
                    )
        return _Asked(full, self._position, known)

    async def _run(self, asked: _Asked, call: Callable[..., Any], given: Any, named: Any) -> Any:
        if asked.known is not None:
            return self._value(asked, call)
        result = call(*given, **named)
        if inspect.isawaitable(result):
            result = await result
        return await self._record(asked, call, result)

    async def _record(self, asked: _Asked, call: Callable[..., Any], result: object) -> Any:
        value = b"null" if result is None else self._codec.encode(result)
        await self._send(asked.name, position=asked.position, value=Raw(value))
        # What later deliveries get, so that the first one sees no other value.
        return self._read(asked.name, value, call)

    async def _waited(self, asked: _Asked, wait: dict[str, object]) -> Signal | None:
        step = asked.known
        if step is None or step.open:
            step = await self._park(asked.name, position=asked.position, **wait)
        elif step.until is None:
            raise StepsChanged(f"step {asked.name!r} is recorded as one that does not wait")
        if step.open:
            raise Parked(asked.name)
        if isinstance(step.value, Raw):
            return Signal(self._codec.decoder(object)(bytes(step.value)))
        return None

    def _value(self, asked: _Asked, call: Callable[..., Any]) -> Any:
        assert asked.known is not None
        if asked.known.until is not None:
            raise StepsChanged(f"step {asked.name!r} is recorded as one that waits")
        value = asked.known.value
        return self._read(asked.name, b"null" if value is UNSET else bytes(value), call)

    def _read(self, name: str, value: bytes, call: Callable[..., Any]) -> Any:
        try:
            return _decoder(self._codec, call)(value)
        except Exception as error:
            raise StepsChanged(
                f"the recorded value of step {name!r} cannot be read: {error}"
            ) from error

    def _wait(self, request: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(request, self._loop).result()


@dataclass(frozen=True, slots=True)
class _Asked:
    """A step that the function asks for; None if it is not recorded."""

    name: str
    position: int
    known: StepRecord | None


def wait_of(
    *, until: datetime | None, for_: Duration | None, signal: str, keep_key: bool
) -> dict[str, object]:
    """Return a wait as the fields of its request.

    Raises:
        ValueError: Both an instant and a duration are given, or neither for no signal; the instant
            has no time zone, or the duration is below 0.
    """
    fields: dict[str, object] = {"signal": signal} if signal else {}
    if until is not None and for_ is not None:
        raise ValueError("a wait has an end or a duration, not both")
    if until is not None:
        if until.tzinfo is None:
            raise ValueError(f"{until} has no time zone")
        fields["until"] = until.isoformat()
    elif for_ is not None:
        seconds = whole_seconds(for_)
        if seconds < 0:
            raise ValueError(f"a wait of {seconds} s is below 0")
        fields["forSeconds"] = seconds
    elif not signal:
        raise ValueError("say how long to sleep")
    if keep_key:
        fields["keepKey"] = True
    return fields


def _decoder(codec: Codec, call: Callable[..., Any]) -> Callable[[bytes], Any]:
    """Return the reader of a step's value: of the type that its function says it returns."""
    try:
        wanted = get_type_hints(call).get("return", Any)
        return codec.decoder(wanted)
    except Exception:  # noqa: BLE001, a hint may be anything, and a codec is its owner's
        return codec.decoder(object)
