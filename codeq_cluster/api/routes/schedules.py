"""Schedules: when tasks are created by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from codeq_cluster.api.declared.bodies import Body, Schema, field, instant_ms
from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import bad_request
from codeq_cluster.auth import Access
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.errors import InvalidSchedule, InvalidZone
from codeq_cluster.schedules.calendar import NAMED, Instant, instants, parse
from codeq_cluster.schedules.zones import zone_rules

COUNT_DEFAULT = 10
COUNT_MAX = 100
UTC = "UTC"

ROUTES = Routes(__name__, __doc__, Access.ADMIN)

INVALID_SCHEDULE = bad_request("invalid schedule", "invalid-schedule")
INVALID_ZONE = bad_request("invalid zone", "invalid-zone")
INVALID_FROM = bad_request("invalid 'from' (use RFC3339, from 1970 on)", "invalid-from")


class PreviewBody(Body):
    """A schedule that need not exist, and the part of its instants to show."""

    cron: str | None = field(
        "Five fields: minute, hour, day of the month, month, day of the week. Six have seconds "
        "first. Or one of " + ", ".join(f"`{name}`" for name in NAMED) + ".",
        refused=(INVALID_SCHEDULE,),
    )
    zone: str | None = field(
        "The time zone of `cron`, by its IANA name; UTC when absent.", refused=(INVALID_ZONE,)
    )
    every: str | None = field(
        "Instead of `cron`: an interval of 1 second to 366 days, such as `1h30m`, aligned to the "
        "Unix epoch.",
        refused=(INVALID_SCHEDULE,),
    )
    offset: str | None = field(
        "How far each instant is behind a multiple of `every`; shorter than it.",
        refused=(INVALID_SCHEDULE,),
    )
    from_: str | None = field(
        "Only instants after this one; now when absent. RFC 3339.",
        refused=(INVALID_FROM,),
        format="date-time",
    )
    count: int | None = field("How many instants.", ge=1, le=COUNT_MAX, default=COUNT_DEFAULT)


_PREVIEW = Schema(PreviewBody)


class InstantView(Struct):
    """An instant of a schedule.

    `local` is its nominal time: what the zone's clock shows then or, if a change of the clock skips
    the time, was to show. `fold` is 1 if the clock shows it for the second time.
    """

    at: str
    local: str
    fold: int


class PreviewView(Struct, rename="camel"):
    """The next instants of a schedule; `zoneRules` is the release of the rules of time zones."""

    instants: Sequence[InstantView]
    zone_rules: str


_SHOWN = PreviewView(
    [
        InstantView("2026-03-27T01:30:00.000Z", "2026-03-27T02:30:00", 0),
        InstantView("2026-03-30T00:30:00.000Z", "2026-03-30T02:30:00", 0),
    ],
    "2026f",
)


@ROUTES(
    "POST",
    "/admin/schedules/preview",
    Answer("The instants, in order.", _SHOWN),
    body=_PREVIEW,
    example={"cron": "30 2 * * MON-FRI", "zone": "Europe/Berlin", "count": 2},
    replicated=False,
)
async def preview(call: Call) -> HttpAnswer[PreviewView]:
    """Return the next instants of a schedule, which need not exist.

    When clocks change, a cron expression follows the cron of Vixie and Debian. If neither minute
    nor hour begins with `*`, it fires once a nominal day: a time that is skipped fires at the end
    of the gap, one that comes twice fires the first time. Otherwise it follows elapsed time. A
    schedule without an instant within ten years is refused; `detail` has the field, and the
    character where the wrong part begins.
    """
    body = _PREVIEW.decode(call.text)
    after_ms = call.services.now_ms()
    if body.from_ is not None:
        after_ms = instant_ms(body.from_, error=INVALID_FROM)
    if after_ms < 0:
        raise INVALID_FROM
    # Some take many milliseconds, which the loop must not wait for.
    with call.services.shares.previews.one(call.identity.tenant):
        found = await asyncio.to_thread(_instants, body, after_ms)
    views = [InstantView(rfc3339(each.ms), each.local, each.fold) for each in found]
    return reply(PreviewView(views, zone_rules()))


def _instants(body: PreviewBody, after_ms: int) -> list[Instant]:
    """Return the instants that a body asks for, at least one.

    Raises:
        ApiError: 400; there are none, or the calendar cannot be read.
    """
    try:
        calendar = parse(
            cron=body.cron, every=body.every, offset=body.offset, zone=body.zone or UTC
        )
        return instants(calendar, after_ms, COUNT_DEFAULT if body.count is None else body.count)
    except InvalidSchedule as refused:
        raise INVALID_SCHEDULE.about(refused.field).because(str(refused)) from refused
    except InvalidZone as refused:
        raise INVALID_ZONE.about("zone").because(str(refused)) from refused
