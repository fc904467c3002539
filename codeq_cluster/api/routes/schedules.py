"""Schedules: when tasks are created by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

from msgspec import Struct

from codeq_cluster.api.declared.bodies import chosen, instant_ms
from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.declared.parameters import query
from codeq_cluster.api.declared.wide import Int64
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, bad_request, from_failure, from_rejection
from codeq_cluster.api.http.refusals import NOT_ALLOWED, NOT_FOUND, too_many
from codeq_cluster.api.routes.listing import PAGE, caller, listed
from codeq_cluster.api.routes.schedule_bodies import (
    BACKFILL,
    BAD_ID,
    COUNT_DEFAULT,
    INVALID_FROM,
    INVALID_SCHEDULE,
    INVALID_TO,
    ITEM,
    PREVIEW,
    RESUME,
    SCHEDULE,
    SET,
    TRIGGER,
    plan_of,
    timing_of,
)
from codeq_cluster.api.routes.schedule_calls import (
    BACKFILL_RUNS,
    OTHER_OWNER,
    OVER_BUDGET,
    STALE,
    TOO_EARLY,
    TOO_MANY,
    accepted,
    asked,
    computed,
    of_another,
    stale,
    timed,
)
from codeq_cluster.api.routes.schedule_views import (
    EXAMPLE,
    InstantView,
    SchedulePage,
    ScheduleView,
    instant_view,
    schedule_view,
)
from codeq_cluster.api.routes.task_views import TASK_ID
from codeq_cluster.auth import Access
from codeq_cluster.broker.requests.producer import too_many_queues
from codeq_cluster.broker.requests.schedules import Timed
from codeq_cluster.broker.values import new_request
from codeq_cluster.core.bounds import COMMAND
from codeq_cluster.core.outcomes import Changed, Rejected, Rejection, ScheduleStands
from codeq_cluster.core.schedules import Backfill, Overlap, Plan, Schedule
from codeq_cluster.schedules.calendar import Instant, instants
from codeq_cluster.schedules.due import BACKFILL_MAX, calendar_of, instants_between, next_after
from codeq_cluster.schedules.zones import zone_rules

SCOPE = "codeq:schedule"

ROUTES = Routes(__name__, __doc__, Access.ADMIN)

OWNER_REQUIRED = bad_request("invalid 'owner' (use 1 to 128 of A-Za-z0-9._:-)", "invalid-owner")
ID_TWICE = ApiError(409, "two schedules of the set have one id", "duplicate-id")
_AT_ONCE = 32  # Schedules of a set that share entries of the log.


class _Wanted(NamedTuple):
    """The set of an owner, as it is to be: its plans by their ids."""

    owner: str
    revision: Int64
    dry_run: bool
    schedules: dict[str, tuple[Plan, Timed]]


class PreviewView(Struct, rename="camel"):
    """The next instants of a schedule; `zoneRules` is the release of the rules of time zones."""

    instants: Sequence[InstantView]
    zone_rules: str


class TriggeredView(Struct, rename="camel", omit_defaults=True):
    """What became of the run: `created`, `queued` or `skipped`."""

    outcome: str
    task_id: str = ""


class BackfillStarted(Struct, rename="camel"):
    """How many instants are to fire, and the first of them."""

    count: int
    instants: Sequence[InstantView]
    dry_run: bool


class SetView(Struct, rename="camel"):
    """The ids of the schedules that were created, changed, left as they were, and removed."""

    created: list[str]
    changed: list[str]
    unchanged: list[str]
    removed: list[str]
    dry_run: bool


_INSTANTS = [
    InstantView("2026-03-27T01:30:00.000Z", "2026-03-27T02:30:00", 0),
    InstantView("2026-03-30T00:30:00.000Z", "2026-03-30T02:30:00", 0),
]
_ASKED = {
    "cron": "30 2 * * MON-FRI",
    "zone": "Europe/Berlin",
    "task": {"command": "report", "payload": {"region": "eu"}, "priority": 5},
}
_ASKED_SET = {"schedules": [{"id": "nightly-report", **_ASKED}], "revision": 7}
_OF_SET = (
    query(
        "owner",
        "The set's name.",
        OWNER_REQUIRED,
        required=True,
        pattern=f"^{COMMAND.pattern}$",
    ),
)
_SET_STANDS = Answer(
    "What was changed.", SetView(["nightly-report"], [], ["hourly"], ["old"], False)
)
_SET_REFUSED = (ID_TWICE, BAD_ID, STALE, OTHER_OWNER, TOO_MANY, TOO_EARLY)
_NAMED = (BAD_ID, NOT_FOUND)
_STANDS = Answer("The schedule.", EXAMPLE)


@ROUTES(
    "POST",
    "/admin/schedules/preview",
    Answer("The instants, in order.", PreviewView(_INSTANTS, EXAMPLE.zone_rules)),
    body=PREVIEW,
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
    body = PREVIEW.decode(call.text)
    after_ms = call.services.now_ms()
    if body.from_ is not None:
        after_ms = instant_ms(body.from_, error=INVALID_FROM)
    if after_ms < 0:
        raise INVALID_FROM
    count = COUNT_DEFAULT if body.count is None else body.count
    timing = timing_of(body)
    with call.services.shares.previews.one(call.identity.tenant):
        found = await asked(lambda: instants(calendar_of(timing), after_ms, count))
    return reply(PreviewView(list(map(instant_view, found)), zone_rules()))


@ROUTES(
    "GET",
    "/admin/schedules",
    Answer("A page.", SchedulePage([EXAMPLE])),
    parameters=(*PAGE, query("owner", "Only those of this set.")),
)
async def schedules(call: Call) -> HttpAnswer[SchedulePage]:
    """Return the tenant's schedules by id, each with its next instant; a page may be short."""
    found, cursor = await listed(call, Schedule, owner=call.query_text("owner"))
    return reply(SchedulePage(list(map(schedule_view, found)), cursor))


@ROUTES(
    "PUT",
    "/admin/schedules",
    _SET_STANDS,
    body=SET,
    example=_ASKED_SET,
    parameters=_OF_SET,
    errors=_SET_REFUSED,
)
async def put_set(call: Call) -> HttpAnswer[SetView]:
    """Make an owner's schedules those of the body: create, change and remove.

    Nothing is changed if one of them is refused. Repeating the request changes nothing; one that
    ends half way may be repeated.
    """
    return await _put_set(call, await _wanted(call))


@ROUTES(
    "PUT",
    "/workers/schedules",
    _SET_STANDS,
    access=Access.WORKER,
    scope=SCOPE,
    body=SET,
    example=_ASKED_SET,
    parameters=_OF_SET,
    errors=(NOT_ALLOWED, *_SET_REFUSED),
)
async def put_own_set(call: Call) -> HttpAnswer[SetView]:
    """Do the same for a worker: its token must allow each command, of those it removes too."""
    return await _put_set(call, await _wanted(call), own=True)


@ROUTES("GET", "/admin/schedules/{name}", _STANDS, errors=_NAMED)
async def schedule(call: Call) -> HttpAnswer[ScheduleView]:
    """Return a schedule, with its next ten instants and its last ten runs."""
    return await _shown(call, await _known(call))


@ROUTES(
    "PUT",
    "/admin/schedules/{name}",
    Answer("The schedule, changed or already the same.", EXAMPLE),
    Answer("The schedule is new.", EXAMPLE, status=201),
    body=SCHEDULE,
    example=_ASKED,
    errors=(BAD_ID, TOO_MANY, TOO_EARLY),
)
async def put(call: Call) -> HttpAnswer[ScheduleView]:
    """Create or change a schedule; repeating the request changes nothing.

    What has fired never fires again, whatever changes. A new calendar begins at once: instants of
    the old one that have not fired yet do not.
    """
    TOO_EARLY.check(call)
    schedule_id = _id(call)
    plan = await plan_of(call, SCHEDULE.decode(call.text))
    begins = await timed(call, plan.timing)
    stands = accepted(
        await call.services.broker.schedules.put(caller(call), schedule_id, plan, begins)
    )
    return await _shown(call, stands.schedule, status=201 if stands.made else 200)


@ROUTES(
    "DELETE",
    "/admin/schedules/{name}",
    Answer("The schedule is deleted.", status=204),
    errors=(BAD_ID,),
)
async def delete(call: Call) -> HttpAnswer[None]:
    """Delete a schedule; its runs go on. A missing one counts as deleted."""
    accepted(await call.services.broker.schedules.delete(caller(call), _id(call)))
    return HttpAnswer(status=204)


@ROUTES("POST", "/admin/schedules/{name}/pause", _STANDS, errors=_NAMED)
async def pause(call: Call) -> HttpAnswer[ScheduleView]:
    """Let a schedule fire no more; its runs go on."""
    stands = await call.services.broker.schedules.pause(caller(call), _id(call))
    return await _shown(call, accepted(stands).schedule)


@ROUTES(
    "POST",
    "/admin/schedules/{name}/resume",
    _STANDS,
    body=RESUME,
    may_miss=True,
    example={"catchUp": True},
    errors=_NAMED,
)
async def resume(call: Call) -> HttpAnswer[ScheduleView]:
    """Let a paused schedule fire again."""
    body = RESUME.decode_any(call.text)
    known = await _known(call)
    begins = await timed(call, known.plan.timing)
    catch_up, version = body.catch_up or False, known.version
    stands = await call.services.broker.schedules.resume(
        caller(call), known.id, begins, catch_up=catch_up, version=version
    )
    return await _shown(call, accepted(stands).schedule)


@ROUTES(
    "POST",
    "/admin/schedules/{name}/trigger",
    Answer("What became of the run.", TriggeredView("created", TASK_ID)),
    body=TRIGGER,
    may_miss=True,
    example={"idempotencyKey": "once", "overlap": "allow"},
    errors=(
        *_NAMED,
        OVER_BUDGET,
        from_rejection(Rejected(Rejection.INVALID_PRIORITY, "0, 5, 9")),
        lambda node: from_failure(too_many_queues(node.limits.queues_max)),
    ),
)
async def trigger(call: Call) -> HttpAnswer[TriggeredView]:
    """Make a run now, whatever the calendar says, even if the schedule is paused."""
    body = TRIGGER.decode_any(call.text)
    outcome = await call.services.broker.schedules.trigger(
        caller(call),
        _id(call),
        name=f"t.{_name(body.idempotency_key)}",
        at_ms=call.services.now_ms(),
        overlap=chosen(Overlap, "overlap", body.overlap, INVALID_SCHEDULE.one_of),
    )
    run = accepted(outcome)
    return reply(TriggeredView(run.how.value, run.task_id))


@ROUTES(
    "POST",
    "/admin/schedules/{name}/backfill",
    Answer(
        "The instants, of which at most ten are shown.",
        BackfillStarted(2, _INSTANTS, False),
        status=202,
    ),
    body=BACKFILL,
    example={"from": "2026-03-27T00:00:00Z", "to": "2026-03-31T00:00:00Z"},
    errors=(
        *_NAMED,
        BACKFILL_RUNS,
        too_many("instants", BACKFILL_MAX),
    ),
)
async def backfill(call: Call) -> HttpAnswer[BackfillStarted]:
    """Fire the instants of a time that has passed; the runs are made one after the other.

    An instant whose task is still kept does not fire again, unless the body says `force`.
    """
    body = BACKFILL.decode(call.text)
    from_ms = instant_ms(body.from_ or "", error=INVALID_FROM)
    to_ms = instant_ms(body.to or "", error=INVALID_TO)
    if from_ms < 1:
        raise INVALID_FROM
    if not from_ms <= to_ms <= call.services.now_ms():
        raise INVALID_TO.because("'to' must be after 'from', and not after now")
    overlap = chosen(Overlap, "overlap", body.overlap, INVALID_SCHEDULE.one_of) or Overlap.QUEUE
    known = await _known(call)
    timing = known.plan.timing
    found = await computed(
        call, lambda: instants_between(timing, from_ms - 1, to_ms, BACKFILL_MAX + 1)
    )
    if len(found) > BACKFILL_MAX:
        raise too_many("instants", BACKFILL_MAX)
    dry_run = body.dry_run or False
    if found and not dry_run:
        walk = Backfill(
            name=_name(body.idempotency_key),
            done_ms=from_ms - 1,
            to_ms=to_ms,
            overlap=overlap,
            force=body.force or False,
        )
        accepted(await call.services.broker.schedules.backfill(caller(call), known.id, walk))
    shown = [instant_view(each) for each in found[:COUNT_DEFAULT]]
    return reply(BackfillStarted(len(found), shown, dry_run), status=202)


async def _wanted(call: Call) -> _Wanted:
    """Return the set of a request; raises ApiError if a part of it is refused."""
    owner = call.query_text("owner")
    if not COMMAND.fullmatch(owner):
        raise OWNER_REQUIRED
    TOO_EARLY.check(call)
    body = SET.decode(call.text)
    if body.schedules is None:  # It must not mean that there are to be none.
        raise SET.unreadable.because("schedules is missing")
    found: dict[str, tuple[Plan, Timed]] = {}
    for number, item in enumerate(body.schedules):
        named = ITEM.decode(item)
        if named.id is None:
            raise BAD_ID
        if named.id in found:
            raise ID_TWICE
        if named.owner not in (None, owner):
            raise INVALID_SCHEDULE.about("owner").because("owner: another one than the set's")
        named.owner = owner
        try:
            plan = await plan_of(call, named)
            found[named.id] = plan, await timed(call, plan.timing)
        except ApiError as error:
            why = f"{named.id}: {error.extra.get('detail', error.text)}"
            raise error.within(f"schedules[{number}]").because(why) from None
    return _Wanted(owner, body.revision or 0, body.dry_run or False, found)


async def _put_set(call: Call, wanted: _Wanted, *, own: bool = False) -> HttpAnswer[SetView]:
    schedules, asking, revision = call.services.broker.schedules, caller(call), wanted.revision
    known = {each.id: each for each in await schedules.all_of(asking, wanted.owner)}
    if own:
        plans = [plan for plan, _ in wanted.schedules.values()]
        plans += [each.plan for each in known.values()]
        _check_allowed(call, {plan.task.command for plan in plans})
    for each in await schedules.named(asking, wanted.schedules.keys() - known.keys()):
        if each.plan.owner != wanted.owner:
            raise of_another(each.plan.owner).about(each.id)
    stands = max((each.revision for each in known.values()), default=0)
    if 0 < revision < stands:
        raise stale(stands)
    made = SetView([], [], [], [], wanted.dry_run)
    doing: list[Callable[[], Awaitable[ScheduleStands | Changed | Rejected]]] = []
    for schedule_id, (plan, begins) in wanted.schedules.items():
        before = known.get(schedule_id)
        is_same = before is not None and before.plan == plan
        said = made.unchanged if is_same else made.changed if before else made.created
        said.append(schedule_id)
        if not (is_same and before and before.revision >= revision):
            put_ = partial(schedules.put, asking, schedule_id, plan, begins)
            doing.append(partial(put_, revision=revision, own=True))
    made.removed += sorted(known.keys() - wanted.schedules.keys())
    doing += [partial(schedules.delete, asking, each, revision=revision) for each in made.removed]
    for start in () if wanted.dry_run else range(0, len(doing), _AT_ONCE):
        some = (each() for each in doing[start : start + _AT_ONCE])
        for outcome in await asyncio.gather(*some):
            accepted(outcome)
    return reply(made)


def _check_allowed(call: Call, commands: set[str]) -> None:
    """Raise ApiError unless the worker's token allows these commands."""
    allowed = call.identity.event_types
    if "*" not in allowed and not commands <= set(allowed):
        raise NOT_ALLOWED


async def _shown(call: Call, found: Schedule, *, status: int = 200) -> HttpAnswer[ScheduleView]:
    def coming() -> list[Instant]:
        timing, after_ms = found.plan.timing, found.done_ms
        instants_: list[Instant] = []
        while len(instants_) < COUNT_DEFAULT and (at := next_after(timing, after_ms)) is not None:
            instants_.append(at)
            after_ms = at.ms
        return instants_

    try:
        shown = [] if found.is_over else await computed(call, coming)
    except ApiError:
        # What was asked for is done: the answer has the first instant alone.
        return reply(schedule_view(found), status=status)
    return reply(schedule_view(found, shown), status=status)


async def _known(call: Call) -> Schedule:
    found = await call.services.broker.schedules.get(caller(call), _id(call))
    if found is None:
        raise NOT_FOUND
    return found


def _id(call: Call) -> str:
    schedule_id = call.request.match_info["name"].removeprefix("~")
    if not COMMAND.fullmatch(schedule_id):
        raise BAD_ID
    return schedule_id


def _name(key: str | None) -> str:
    """Return the name of what a request asks for: the same for the same key."""
    return blake2b((key or new_request()).encode(), digest_size=12).hexdigest()
