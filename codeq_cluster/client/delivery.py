"""Delivery: one claimed task, from the start of its handler to the report of its end."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from functools import partial
from typing import Final

from opentelemetry.trace import Span, StatusCode

from codeq_cluster.client.handlers import HandlerCall, Registered
from codeq_cluster.client.handling import Ended, Ending
from codeq_cluster.client.keeping import NO_LONGER_OURS, Keeper
from codeq_cluster.client.leases import Leases
from codeq_cluster.client.outcomes import (
    Completed,
    Failed,
    GivenBack,
    Lost,
    Outcome,
    Rejects,
    Unfit,
    Waits,
)
from codeq_cluster.client.records import StepRecord, TaskRecord
from codeq_cluster.client.refusals import TOO_EARLY, Refused, Unreachable
from codeq_cluster.client.retrying import may_succeed
from codeq_cluster.client.tracing import handling
from codeq_cluster.errors import CodeqError

log = logging.getLogger(__name__)

_ABANDON_S_MAX: Final = 5.0  # After that the end of the lease returns the task.
_LEVELS: Final = {
    Ending.COMPLETED: logging.INFO,
    Ending.PARKED: logging.INFO,
    Ending.RETURNED: logging.INFO,  # As its handler asked; an unexpected error is a warning.
    Ending.FAILED: logging.ERROR,
    Ending.DEAD: logging.ERROR,
}
# There is nothing that could be held, or not by this token, or not yet.
_UNHELD: Final = frozenset({"nothing-to-hold", "event-type-not-allowed", TOO_EARLY})


class ClaimedDelivery:
    """A task that was just claimed, to be handled and reported."""

    def __init__(
        self,
        leases: Leases,
        keeper: Keeper,
        task: TaskRecord,
        handler: Registered,
        *,
        lease_s: int,
        overtime_s: float,
    ) -> None:
        """Prepare it; the lease runs from now on."""
        self._leases = leases
        self._keeper = keeper
        self._task = task
        self.call = HandlerCall(
            handler,
            task,
            partial(leases.record_step, task, extend_s=lease_s, within_s=float(lease_s)),
            self._park,
            overtime_s=overtime_s,
        )
        self._lease_s = lease_s
        self._begun = time.monotonic()
        self._raised: Exception | None = None
        self._parks = False

    async def run(self) -> Ended:
        """Handle the task and report its end; if cancelled, return the task and report that."""
        task = self._task
        with handling(
            task.command,
            task_id=task.id,
            attempt=task.attempts,
            trace_parent=task.trace_parent,
            trace_state=task.trace_state,
        ) as span:
            try:
                outcome = await self._outcome()
                self._raised = outcome.error if isinstance(outcome, GivenBack) else None
                ended = await self._report(outcome)
            except asyncio.CancelledError:
                ended = await self._abandon("the worker stopped")
            _note(span, ended)
            _log(ended)
        return ended

    async def _outcome(self) -> Outcome:
        """Run the handler until it ends, or until its lease is lost."""
        async with asyncio.TaskGroup() as both:
            running = both.create_task(self.call.run())
            holding = both.create_task(self._keeper.hold(self._task, self.call.said))
            await asyncio.wait({running, holding}, return_when=asyncio.FIRST_COMPLETED)
            if self._parks:  # It has given the lease back itself, and is about to end.
                await asyncio.wait({running})
            if not running.done():
                running.cancel()
            holding.cancel()
        if not running.cancelled():
            return running.result()
        return Lost(holding.result())

    async def _park(self, name: str, *, position: int, **said: object) -> StepRecord:
        self._parks = True
        try:
            await self._keeper.flush(self._task, self.call.said)
            step = await self._leases.park(
                self._task,
                name,
                position=position,
                extend_s=self._lease_s,
                within_s=float(self._lease_s),
                **said,
            )
            self._parks = step.open
        except BaseException:
            self._parks = False
            raise
        return step

    async def _report(self, outcome: Outcome) -> Ended:
        try:
            return await self._reported(outcome)
        except Refused as error:
            if isinstance(outcome, GivenBack) and outcome.hold and error.code in _UNHELD:
                reason = f"{outcome.reason}; its {outcome.hold} was not held: {error}"
                return await self._report(replace(outcome, reason=reason, hold=""))
            if isinstance(outcome, Rejects) and error.code == TOO_EARLY:
                return await self._report(GivenBack(outcome.reason))
            if isinstance(outcome, Completed | Failed) and _is_untaken(error):
                self._raised = error.with_traceback(None)
                return await self._report(GivenBack(f"the result was refused: {error}"))
            return self._unreported(error)
        except Unreachable as error:
            return self._unreported(error)

    async def _reported(self, outcome: Outcome) -> Ended:
        leases, task, within_s = self._leases, self._task, float(self._lease_s)
        if isinstance(outcome, Rejects) or (isinstance(outcome, GivenBack) and outcome.hold):
            within_s /= 2  # Else a nack, while the lease lasts.
        if self.call.said.outlasts and isinstance(outcome, Completed | Failed):
            await self._keeper.flush(task, self.call.said)
        match outcome:
            case Completed(result, following):
                await leases.complete(task, result, following=following, within_s=within_s)
                return self._ended(Ending.COMPLETED)
            case Failed(error, following):
                await leases.fail(task, error, following=following, within_s=within_s)
                return self._ended(Ending.FAILED, error)
            case GivenBack(reason, delay_s, hold=hold):
                await self._keeper.flush(task, self.call.said)
                died = await leases.nack(
                    task, reason, delay_s=delay_s, hold=hold, within_s=within_s
                )
                return self._ended(Ending.DEAD if died else Ending.RETURNED, reason)
            case Rejects(reason):
                await self._keeper.flush(task, self.call.said)
                await leases.reject(task, reason, within_s=within_s)
                return self._ended(Ending.DEAD, reason)
            case Unfit(unfit):
                return await self._abandon(str(unfit), failure=unfit)
            case Lost(reason):
                return self._ended(Ending.LOST, reason)
            case Waits(step):
                return self._ended(Ending.PARKED, f"it waits at step {step}")

    def _unreported(self, error: Refused | Unreachable) -> Ended:
        """Return the end of a delivery whose report was not accepted."""
        if isinstance(error, Refused) and error.code in NO_LONGER_OURS:
            return self._ended(Ending.LOST, str(error))
        failure = None if may_succeed(error) else error
        return self._ended(Ending.UNKNOWN, str(error), failure)

    async def _abandon(self, note: str, failure: CodeqError | None = None) -> Ended:
        """Return the task to its queue, within a time bound."""
        try:
            async with asyncio.timeout(_ABANDON_S_MAX):
                await self._keeper.flush(self._task, self.call.said)
                died = await self._leases.abandon(self._task, within_s=_ABANDON_S_MAX)
        except (Refused, Unreachable, TimeoutError) as error:
            lost = isinstance(error, Refused) and error.code in NO_LONGER_OURS
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
            error=self._raised,
        )


def _is_untaken(error: Refused) -> bool:
    """Return whether a result, or a task that follows it, is refused; the next one may not be."""
    return (
        400 <= error.status < 500
        and error.status != 401
        and error.code not in NO_LONGER_OURS
        and not may_succeed(error)
    )


def _note(span: Span, ended: Ended) -> None:
    """Record in a span how the delivery ended, without the handler's text: it may be private."""
    span.set_attribute("codeq.ending", ended.ending.value)
    if ended.ending is not Ending.COMPLETED:
        span.set_status(StatusCode.ERROR)


def _log(ended: Ended) -> None:
    """Log a delivery: as one line, and as fields; with the traceback of an unexpected error."""
    level = _LEVELS.get(ended.ending, logging.WARNING)
    log.log(
        max(level, logging.WARNING) if ended.error else level,
        "%s",
        ended,
        exc_info=ended.error,
        extra={
            "task_id": ended.task.id,
            "command": ended.task.command,
            "attempt": ended.task.attempts,
            "attempts_max": ended.task.max_attempts,
            "worker": ended.task.worker_name,
            "ending": ended.ending.value,
            "seconds": round(ended.seconds, 3),
            "reason": ended.note,
        },
    )
