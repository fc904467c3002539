"""Delivery: one claimed task from its handler's start to the report of its end."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from codeq_cluster.client.handling import (
    Ended,
    Ending,
    Handler,
    HandlerUnfit,
    JsonText,
    TaskFailed,
    TaskReturned,
)
from codeq_cluster.client.leases import Leases, Task
from codeq_cluster.client.refusals import Refused, Unreachable
from codeq_cluster.client.retrying import may_succeed, retried
from codeq_cluster.errors import CodeqError

log = logging.getLogger(__name__)

T = TypeVar("T")

# A heartbeat that fails leaves time for another before the lease ends.
HEARTBEATS_A_LEASE: Final = 3

_ABANDON_S_MAX: Final = 5.0  # Then the end of the lease gives the task back.
_REASON_CHARS_MAX: Final = 1024  # The broker keeps no more of it.
_ERROR_CHARS_MAX: Final = 8192  # At most 32 KiB of UTF-8, half of the broker's bound.
_NO_LONGER_OURS: Final = frozenset({"not-found", "not-owner", "not-in-progress", "lease-lost"})


@dataclass(frozen=True, slots=True)
class _Completed:
    result: str


@dataclass(frozen=True, slots=True)
class _Failed:
    error: str


@dataclass(frozen=True, slots=True)
class _Returned:
    reason: str
    delay_s: int = 0


@dataclass(frozen=True, slots=True)
class _Unfit:
    error: HandlerUnfit


@dataclass(frozen=True, slots=True)
class _Lost:
    reason: str


_Outcome = _Completed | _Failed | _Returned | _Unfit | _Lost


class Delivery:
    """A task that was just claimed, and what is to be done with it."""

    def __init__(self, leases: Leases, task: Task, handler: Handler, *, lease_s: int) -> None:
        """Prepare it; the lease runs from now on."""
        self._leases = leases
        self._task = task
        self._handler = handler
        self._lease_s = lease_s
        self._begun = time.monotonic()

    async def run(self) -> Ended:
        """Handle the task and report how it ended; cancelled, give it back and say that."""
        try:
            return await self._report(await self._outcome())
        except asyncio.CancelledError:
            return await self._abandon("the worker stopped")

    async def _outcome(self) -> _Outcome:
        """Run the handler until it ends, or until its lease is lost."""
        async with asyncio.TaskGroup() as both:
            handling = both.create_task(_handled(self._handler, self._task))
            holding = both.create_task(self._hold())
            await asyncio.wait({handling, holding}, return_when=asyncio.FIRST_COMPLETED)
            if not handling.done():
                handling.cancel()
            holding.cancel()
        if not handling.cancelled():
            return handling.result()
        if holding.cancelled():
            return _Returned("the handler was cancelled")
        return _Lost(holding.result())

    async def _hold(self) -> str:
        """Extend the lease until it is lost, and say why."""
        ends = self._begun + self._lease_s
        while True:
            await asyncio.sleep(self._lease_s / HEARTBEATS_A_LEASE)
            asked = time.monotonic()
            try:
                async with asyncio.timeout(ends - asked):
                    await retried(self._extend, within_s=ends - asked, what="heartbeat")
            except TimeoutError:
                return "the lease ended without an answer to its heartbeat"
            except (Refused, Unreachable) as error:
                return str(error)
            ends = asked + self._lease_s

    async def _extend(self) -> None:
        await self._leases.heartbeat(self._task, extend_s=self._lease_s)

    async def _report(self, outcome: _Outcome) -> Ended:
        try:
            return await self._reported(outcome)
        except Refused as error:
            if isinstance(outcome, _Completed) and error.status in (400, 413):
                return await self._report(_Returned(f"the result was refused: {error}"))
            return self._untold(error)
        except Unreachable as error:
            return self._untold(error)

    async def _reported(self, outcome: _Outcome) -> Ended:
        leases, task = self._leases, self._task
        match outcome:
            case _Completed(result):
                await self._told(lambda: leases.complete(task, result))
                return self._ended(Ending.COMPLETED)
            case _Failed(error):
                await self._told(lambda: leases.fail(task, error))
                return self._ended(Ending.FAILED, error)
            case _Returned(reason, delay_s):
                died = await self._told(lambda: leases.nack(task, reason, delay_s=delay_s))
                return self._ended(Ending.DEAD if died else Ending.RETURNED, reason)
            case _Unfit(unfit):
                return await self._abandon(str(unfit), failure=unfit)
            case _Lost(reason):
                return self._ended(Ending.LOST, reason)

    async def _told(self, report: Callable[[], Awaitable[T]]) -> T:
        # Reports are safe to repeat: the lease token lets each take effect once.
        return await retried(report, within_s=self._lease_s, what="report")

    def _untold(self, error: Refused | Unreachable) -> Ended:
        """Say what is known of a delivery whose report was not taken."""
        if isinstance(error, Refused) and error.code in _NO_LONGER_OURS:
            return self._ended(Ending.LOST, str(error))
        failure = None if may_succeed(error) else error
        return self._ended(Ending.UNKNOWN, str(error), failure)

    async def _abandon(self, note: str, failure: CodeqError | None = None) -> Ended:
        """Give the task back, within a bound."""

        async def abandon() -> bool:
            return await self._leases.abandon(self._task)

        try:
            async with asyncio.timeout(_ABANDON_S_MAX):
                died = await retried(abandon, within_s=_ABANDON_S_MAX, what="abandon")
        except (Refused, Unreachable, TimeoutError) as error:
            lost = isinstance(error, Refused) and error.code in _NO_LONGER_OURS
            note = f"{note}; it could not be given back: {error or 'no answer'}"
            return self._ended(Ending.LOST if lost else Ending.UNKNOWN, note, failure)
        return self._ended(Ending.DEAD if died else Ending.ABANDONED, note, failure)

    def _ended(self, ending: Ending, note: str = "", failure: CodeqError | None = None) -> Ended:
        return Ended(
            task=self._task,
            ending=ending,
            note=note,
            seconds=time.monotonic() - self._begun,
            failure=failure,
        )


async def _handled(handler: Handler, task: Task) -> _Outcome:
    """Run the handler; whatever it raises is an outcome."""
    try:
        result = await handler(task)
    except TaskFailed as failed:
        return _Failed(str(failed)[:_ERROR_CHARS_MAX].strip() or "the handler failed the task")
    except TaskReturned as returned:
        return _Returned(str(returned)[:_REASON_CHARS_MAX], returned.delay_s)
    except HandlerUnfit as unfit:
        return _Unfit(unfit)
    except Exception as error:
        # A handler is not ours: all it raises is a reason; where, is for its author to know.
        log.warning(
            "the handler raised %s; the task goes back", type(error).__name__, exc_info=True
        )
        return _Returned(f"{type(error).__name__}: {error}"[:_REASON_CHARS_MAX])
    try:
        text = result if isinstance(result, JsonText) else json.dumps(result, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return _Returned(f"the result is no JSON: {error}"[:_REASON_CHARS_MAX])
    # The broker takes null for no result at all.
    return _Completed("{}" if text.strip() == "null" else text)
