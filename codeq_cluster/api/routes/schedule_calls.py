"""Schedule calls: what the routes of schedules share: their refusals, and asking calendars."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, from_failure, from_rejection
from codeq_cluster.api.http.levels import TooEarly
from codeq_cluster.api.routes.listing import caller
from codeq_cluster.api.routes.schedule_bodies import refused
from codeq_cluster.broker.requests.producer import over_budget, too_many_queues
from codeq_cluster.broker.requests.schedules import Timed
from codeq_cluster.codec.levels import SCHEDULES_FROM
from codeq_cluster.core.outcomes import Rejected, Rejection
from codeq_cluster.core.schedules import SCHEDULES_MAX, Timing
from codeq_cluster.errors import InvalidSchedule, InvalidZone, Overloaded, TooMany
from codeq_cluster.schedules.calendar import instants
from codeq_cluster.schedules.due import calendar_of
from codeq_cluster.schedules.zones import zone_rules

TOO_EARLY = TooEarly(SCHEDULES_FROM, "schedules need")
TOO_MANY = from_failure(TooMany("schedules", SCHEDULES_MAX))
STALE = ApiError(409, "a later revision of the set stands", "stale-revision")
OTHER_OWNER = ApiError(409, "the schedule belongs to another owner", "other-owner")
BACKFILL_RUNS = ApiError(409, "a backfill is under way", "backfill-running")

# What a run that is asked for may be refused for, beside its schedule.
_OF_RUNS = "trigger_schedule"
OVER_BUDGET = from_failure(over_budget(Rejected(Rejection.BUDGET_EXCEEDED, "readyTasks"), _OF_RUNS))

T = TypeVar("T")


def accepted(outcome: T | Rejected) -> T:
    """Return the outcome; raise the answer to a refusal."""
    if isinstance(outcome, Rejected):
        raise _refusal(outcome)
    return outcome


def stale(stands: object) -> ApiError:
    """Return the 409 for a set whose later revision stands."""
    return STALE.because(f"revision {stands} stands")


def of_another(owner: str) -> ApiError:
    """Return the 409 for a schedule that is not the set's."""
    return OTHER_OWNER.because(f"its owner is {owner or 'nobody'}")


async def timed(call: Call, timing: Timing) -> Timed:
    """Return where a calendar begins now; raises ApiError if it is refused."""
    at_ms = call.services.now_ms()

    def first() -> int:
        # Without an instant it is refused, but not because its end has passed.
        begins_ms = max(at_ms, timing.start_ms - 1)
        [coming] = instants(calendar_of(timing), begins_ms, 1)
        return 0 if timing.end_ms and coming.ms >= timing.end_ms else coming.ms

    return Timed(at_ms=at_ms, next_ms=await computed(call, first), zone_rules=zone_rules())


async def computed(call: Call, compute: Callable[[], T]) -> T:
    """Ask a calendar when it is the tenant's turn, which comes within the request's time.

    Raises:
        ApiError: 400 for the calendar; 503 if the turn did not come.
    """
    previews, tenant = call.services.shares.previews, call.identity.tenant
    try:
        async with asyncio.timeout_at(caller(call).deadline):
            await previews.take_in_time(tenant)
    except TimeoutError:
        raise from_failure(Overloaded(previews.name)) from None
    try:
        return await asked(compute)
    finally:
        previews.give_back(tenant)


async def asked(compute: Callable[[], T]) -> T:
    """Ask a calendar, apart from the loop: some questions take many milliseconds.

    Raises:
        ApiError: 400; it is refused.
    """
    try:
        return await asyncio.to_thread(compute)
    except (InvalidSchedule, InvalidZone) as error:
        raise refused(error) from error


def _refusal(rejected: Rejected) -> ApiError:
    match rejected.rejection:
        case Rejection.STALE_REVISION:
            return stale(rejected.limit)
        case Rejection.OTHER_OWNER:
            return of_another(rejected.limit)
        case Rejection.BACKFILL_RUNNING:
            return BACKFILL_RUNS
        case Rejection.TOO_MANY:
            # A run may also begin one queue too many.
            is_queue = rejected.limit.isdecimal()
            return from_failure(too_many_queues(int(rejected.limit))) if is_queue else TOO_MANY
        case Rejection.BUDGET_EXCEEDED:
            return from_failure(over_budget(rejected, _OF_RUNS))
        case _:
            return from_rejection(rejected)
