"""Dev time: the clock of a node under virtual time, for tests of programs in any language."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from codeq_cluster.api.declared.bodies import Body, Schema, field, instant_ms
from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call, is_task_id
from codeq_cluster.api.http.errors import ApiError, bad_request
from codeq_cluster.api.http.refusals import TASK_NOT_FOUND
from codeq_cluster.api.http.virtual_time import (
    PATIENCE_S_MAX,
    STOPS_MAX,
    AlreadyMoving,
    NoSuchSchedule,
    NotEnded,
    StillPaused,
    TooManyStops,
    VirtualTime,
)
from codeq_cluster.api.http.waits import WaitEnded
from codeq_cluster.api.routes.flows import unknown_field
from codeq_cluster.api.routes.task_views import TASK_ID
from codeq_cluster.auth import Access
from codeq_cluster.core.instants import rfc3339

ROUTES = Routes(__name__, __doc__, Access.ADMIN)

UPCOMING_MAX = 1_000
ONLY_MAX = 1_000
ADVANCE_S_MAX = 10 * 366 * 86_400  # A schedule has an instant within ten years.
_END_MS = int(datetime(9000, 1, 1, tzinfo=UTC).timestamp()) * 1000  # Calendars end in 9999.

INVALID_TIME = bad_request("invalid time", "invalid-time")
NO_GOAL = INVALID_TIME.because("say how far it moves: either advanceSeconds or to")
INVALID_TO = INVALID_TIME.because("'to' must be an instant of RFC 3339")
NO_SCHEDULE = ApiError(404, "schedule not found", "not-found")
TOO_MANY_STOPS = ApiError(409, f"more than {STOPS_MAX:,} stops", "too-many-stops")
NOT_ENDED = ApiError(409, "the task has not ended", "not-ended")
MOVES = ApiError(409, "the clock moves already", "time-moves", retryable=True)
NO_REST = ApiError(503, "workers did not come to rest", "no-rest", retryable=True)
STILL_PAUSED = ApiError(503, "schedules are still paused", "schedules-paused")
STOPPING = ApiError(503, "the node stops", "stopping", retryable=True)


class AdvanceBody(Body):
    """How far the clock moves."""

    advance_seconds: int | None = field(
        "How far; either this or `to`. Ten years at most.",
        ge=1,
        le=ADVANCE_S_MAX,
    )
    to: str | None = field(
        "The instant to which it moves, later than now. RFC 3339.",
        refused=(INVALID_TIME,),
        format="date-time",
    )
    until: str | None = field(
        "The id of a task at whose end it stops; it is an error if the task does not end by then.",
        refused=(TASK_NOT_FOUND,),
    )
    only: list[str] | None = field(
        "The schedules that fire meanwhile; the others are paused, and go on from then. Empty for "
        "none, absent for all.",
        max_length=ONLY_MAX,
        refused=(NO_SCHEDULE,),
    )
    patience_seconds: int | None = field(
        "How long nothing has to change at a stop while a task is ready or in progress, "
        "before the clock moves on; longer than a handler takes. 0, the default, is 50 ms.",
        ge=0,
        le=PATIENCE_S_MAX,
    )


class FiredView(Struct):
    """An instant of a schedule that has made a task."""

    schedule: str
    at: str


class AdvancedView(Struct):
    """What the clock shows now, and the instants of schedules that have fired, in order."""

    now: str
    fired: Sequence[FiredView]


class UpcomingView(Struct):
    """Something that is due at an instant.

    `kind` is `ready` or `dies` of a task, `lease`, `callback`, `schedule`, or `key` or `queue`:
    tasks of it may go on. `id` is the task's or the schedule's; of a key, `QUEUE/KEY`; of a queue,
    its name.
    """

    at: str
    kind: str
    id: str


class TimeView(Struct):
    """What the clock shows, and what it would stop at, the earliest first."""

    now: str
    upcoming: Sequence[UpcomingView]


_NOON = "2026-01-31T12:00:00.000Z"
_ADVANCE = Schema(AdvanceBody, unknown=unknown_field())


@ROUTES(
    "GET",
    "/dev/time",
    Answer("The clock.", TimeView(_NOON, [UpcomingView(_NOON, "lease", TASK_ID)])),
)
async def now(call: Call) -> HttpAnswer[TimeView]:
    """Return what the clock shows, and the next thousand things it would stop at."""
    time = _time(call)
    coming = (await time.coming())[:UPCOMING_MAX]
    views = [UpcomingView(_text(each.at), each.kind, each.id) for each in coming]
    return reply(TimeView(_text(time.now), views))


@ROUTES(
    "POST",
    "/dev/time",
    Answer("The clock has moved.", AdvancedView(_NOON, [FiredView("nightly-report", _NOON)])),
    body=_ADVANCE,
    example={"advanceSeconds": 86_400},
    errors=(NO_GOAL, INVALID_TO, TOO_MANY_STOPS, NOT_ENDED, MOVES, NO_REST, STILL_PAUSED, STOPPING),
)
async def advance(call: Call) -> HttpAnswer[AdvancedView]:
    """Advance the clock, and answer when everything due by then has happened.

    It stops at each instant at which a delayed or parked task is due, a task dies, a lease ends, a
    schedule fires, a key or queue may go on, a throttle ends or a callback is retried, until
    workers have nothing to do or nobody does it. An error may leave the clock on the way: `detail`
    says what it shows.
    """
    body = _ADVANCE.decode(call.text)
    time = _time(call)
    by = _distance(body, time)
    if body.until and not await _known(call, body.until):
        raise TASK_NOT_FOUND
    try:
        with call.services.shares.waits.waiting():
            fired = await time.advance(
                by,
                until=body.until or "",
                only=body.only,
                patience_s=body.patience_seconds or None,
            )
    except NoSuchSchedule as error:
        raise NO_SCHEDULE.because(str(error)) from error
    except AlreadyMoving as error:
        raise MOVES.because(str(error)) from error
    except TooManyStops as error:
        raise _at(TOO_MANY_STOPS, error, time) from error
    except NotEnded as error:
        raise _at(NOT_ENDED, error, time) from error
    except StillPaused as error:
        raise _at(STILL_PAUSED, error, time) from error
    except TimeoutError as error:
        raise _at(NO_REST, error, time) from error
    except WaitEnded as error:
        raise _at(STOPPING, error, time) from error
    views = [FiredView(each.schedule, _text(each.at)) for each in fired]
    return reply(AdvancedView(_text(time.now), views))


async def _known(call: Call, task_id: str) -> bool:
    if not is_task_id(task_id):
        return False
    tenant, timeout_s = call.identity.tenant, call.timeout_s
    return (
        await call.services.broker.task(tenant, task_id, stale=False, timeout_s=timeout_s)
        is not None
    )


def _distance(body: AdvanceBody, time: VirtualTime) -> timedelta:
    """Return how far a body moves the clock."""
    now_ms = _ms(time.now)
    match body.advance_seconds, body.to:
        case int(seconds), None:
            by_ms = seconds * 1000
        case None, str(text):
            by_ms = instant_ms(text, error=INVALID_TO) - now_ms
        case _:
            raise NO_GOAL
    if not 0 < by_ms <= ADVANCE_S_MAX * 1000 or now_ms + by_ms > _END_MS:
        raise INVALID_TIME.because(
            f"now is {rfc3339(now_ms)}: it must move forward, by ten years at most, "
            f"and not beyond {rfc3339(_END_MS)}"
        )
    return timedelta(milliseconds=by_ms)


def _at(refusal: ApiError, error: Exception, time: VirtualTime) -> ApiError:
    """Return the refusal with its cause, and with where the clock was left."""
    return refusal.because("; ".join(filter(None, (f"now is {_text(time.now)}", str(error)))))


def _time(call: Call) -> VirtualTime:
    time = call.services.virtual_time
    assert time is not None, "these routes are served under virtual time alone"
    return time


def _ms(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)


def _text(instant: datetime) -> str:
    return rfc3339(_ms(instant))
