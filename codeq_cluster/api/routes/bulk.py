"""Bulk: one action on all tasks of a selection, by a job that goes on without its caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from msgspec import Raw, Struct

from codeq_cluster.api.declared.bodies import Body, Schema, field, raw_field
from codeq_cluster.api.declared.operations import COMMAND_SCHEMA, Answer, Routes
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import bad_request, from_failure, from_rejection
from codeq_cluster.api.http.levels import TooEarly
from codeq_cluster.api.http.refusals import (
    INVALID_COMMAND,
    INVALID_STATUS,
    NOT_FOUND,
    accepted,
    rate_limited,
)
from codeq_cluster.api.routes.listing import caller
from codeq_cluster.api.routes.tags import INVALID_TAG, INVALID_TAGS, named_tags
from codeq_cluster.api.routes.task_lists import (
    AFTER,
    BEFORE,
    INVALID_CREATED,
    INVALID_GROUP,
    INVALID_SCHEDULE,
    PLACES,
    created_ms,
    made_by,
)
from codeq_cluster.api.routes.task_views import NOON_MS
from codeq_cluster.auth import Access
from codeq_cluster.broker.requests.bulk_jobs import Counts, Job
from codeq_cluster.broker.values import new_request
from codeq_cluster.codec.keyspace import PLACE_OF
from codeq_cluster.codec.levels import BULK_FROM
from codeq_cluster.core.bounds import COMMAND, REASON_CHARS_MAX
from codeq_cluster.core.bulk import (
    JOB_NAME,
    JOB_NAME_WORDS,
    JOBS_MAX,
    KEPT_JOBS,
    LIVE_JOBS,
    LIVE_MAX,
    ActionKind,
    BulkAction,
)
from codeq_cluster.core.groups import GROUP_NAME
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.outcomes import Rejected, Rejection
from codeq_cluster.core.selecting import Selection, TaskFilter
from codeq_cluster.core.tags import TAGS_MAX, in_order, removed_fault, shown_tag, tags_fault
from codeq_cluster.core.task import PRIORITY_MAX, PRIORITY_MIN, State
from codeq_cluster.errors import TooMany
from codeq_cluster.ratelimit.token_bucket import Scope

ROUTES = Routes(__name__, __doc__, Access.ADMIN)

STARTING = (Scope.ADMIN, "bulk")
BAD_ID = bad_request("invalid bulk job id", "invalid-bulk-id").because(f"use {JOB_NAME_WORDS}")
INVALID_SELECT = bad_request("invalid 'select'", "invalid-select")
SELECTION_REQUIRED = bad_request(
    "'select' needs a 'tag', 'command', 'status', 'schedule' or 'group'", "selection-required"
)
INVALID_ACTION = bad_request("invalid 'action'", "invalid-action").because(
    f"use {', '.join(ActionKind)}"
)
INVALID_ARGUMENT = bad_request("invalid bulk action", "invalid-action")
TOO_EARLY = TooEarly(BULK_FROM, "bulk jobs need")
_COUNT_WEIGHS = 240  # It has many looks at as many records as a list by tag.
_CONFLICT = from_rejection(Rejected(Rejection.IDEMPOTENCY_CONFLICT))
_TOO_MANY = {
    what: from_failure(TooMany(what, most, advice=advice))
    for what, most, advice in (
        (LIVE_JOBS, LIVE_MAX, "wait until one has ended, or stop it"),
        (KEPT_JOBS, JOBS_MAX, "begin fewer of them, with larger selections"),
    )
}
_STATES = {
    status: tuple(state for state in State if PLACE_OF[state] in places)
    for status, places in PLACES.items()
    if status
}


class SelectBody(Body):
    """The tasks that a job is about: those that fit all that is named."""

    tag: list[str] | None = field(
        "Only tasks with all of these tags, each as `name:value`.",
        max_length=TAGS_MAX,
        refused=(INVALID_TAG,),
    )
    command: str | None = field(
        "Only tasks of this queue.", pattern=COMMAND_SCHEMA["pattern"], refused=(INVALID_COMMAND,)
    )
    status: str | None = field(
        "Only tasks in this state.", enum=[*_STATES, None], refused=(INVALID_STATUS,)
    )
    schedule: str | None = field(
        "Only tasks that this schedule made.",
        pattern=COMMAND_SCHEMA["pattern"],
        refused=(INVALID_SCHEDULE,),
    )
    group: str | None = field(
        "Only members of this group.", pattern=f"^{GROUP_NAME.pattern}$", refused=(INVALID_GROUP,)
    )
    created_after: str | None = field(
        "Only tasks created at this instant or later; RFC 3339.",
        format="date-time",
        refused=(INVALID_CREATED[AFTER],),
    )
    created_before: str | None = field(
        "Only tasks created before this instant; RFC 3339.",
        format="date-time",
        refused=(INVALID_CREATED[BEFORE],),
    )


_SELECT = Schema(
    SelectBody,
    refusal="invalid 'select'",
    unknown=lambda name, known: INVALID_SELECT.because(
        f"{name[:64]} is unknown; use {', '.join(known)}"
    ),
)


class BulkBody(Body):
    """An action, and the tasks it is for."""

    select: Raw = raw_field(
        "The tasks. At least one of its fields but the instants must be there.",
        required=True,
        inner=_SELECT,
        refused=(INVALID_SELECT, SELECTION_REQUIRED),
    )
    action: str | None = field(
        "`cancel` ends tasks that have not ended, `requeue` makes dead letters ready again, "
        "`delete` deletes ended tasks, `priority` gives waiting tasks another priority, `runNow` "
        "makes delayed tasks ready, `tag` changes tags. A task that it does not fit is left alone.",
        enum=[*(each.value for each in ActionKind)],
        required=True,
        refused=(INVALID_ACTION,),
    )
    dry_run: bool | None = field("`true` counts the tasks and changes nothing.", default=False)
    id: str | None = field(
        "Name of the job; drawn when absent. A repeated request of the same name changes nothing.",
        pattern=f"^{JOB_NAME.pattern}$",
        refused=(BAD_ID, _CONFLICT),
    )
    idempotency_key: str | None = field(
        "The same as `id`.", pattern=f"^{JOB_NAME.pattern}$", refused=(BAD_ID,)
    )
    reason: str | None = field(
        f"Of a `cancel`, for people; at most {REASON_CHARS_MAX} characters.",
        refused=(INVALID_ARGUMENT,),
    )
    priority: int | None = field(
        "Of `priority`. Tasks whose topic does not allow it are left alone.",
        refused=(INVALID_ARGUMENT,),
        minimum=PRIORITY_MIN,
        maximum=PRIORITY_MAX,
    )
    set: dict[str, str] | None = field(
        "Of `tag`: tags that each task has afterwards. A task that would have more than "
        f"{TAGS_MAX} is left alone.",
        refused=(INVALID_TAGS,),
    )
    remove: list[str] | None = field(
        "Of `tag`: names of tags that it has no more.", refused=(INVALID_TAGS,)
    )


_BULK = Schema(BulkBody)


class CountsView(Struct, rename="camel", kw_only=True):
    """What a selection is about now; `more` is true if not all rows were read.

    `changes` is how many of the tasks the action would change. `byStatus` counts dead letters as
    DEAD, not as FAILED. `byError` leaves tasks without an error out.
    """

    dry_run: bool = True
    selected: int
    changes: int
    by_status: Mapping[str, int]
    by_error: Mapping[str, int]
    more: bool


class SelectView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """The tasks that a job is about, as they were asked for."""

    tag: list[str] = []
    command: str = ""
    status: str = ""
    schedule: str = ""
    group: str = ""
    created_after: str = ""
    created_before: str = ""


class JobView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A bulk job: `status` is RUNNING, then DONE or STOPPED.

    `looked` counts the rows that it has come to, `selected` the tasks among them that it is about,
    `changed` those that the action has changed. It has a part on each of `shards`, of which
    `shardsEnded` have ended. It is `incomplete` if a shard has no part: repeat the request within
    half an hour, or stop the job. `unreadable` counts tasks that it has left alone because their
    records cannot be read: the tenant's with these tags, or without a tag those of all tenants.
    """

    id: str
    status: str
    action: str
    select: SelectView
    reason: str = ""
    priority: int | None = None
    set: Mapping[str, str] | None = None
    remove: Sequence[str] = ()
    looked: int
    selected: int
    changed: int
    unreadable: int = 0
    shards: int
    shards_ended: int
    incomplete: bool = False
    by: str
    created_at: str
    ended_at: str = ""
    stopped_by: str = ""


class JobsView(Struct):
    """The jobs of the last day, and those that go on; the newest first."""

    jobs: Sequence[JobView]


COUNTS = CountsView(
    selected=3,
    changes=2,
    by_status={"PENDING": 2, "FAILED": 1},
    by_error={"boom": 1},
    more=False,
)
EXAMPLE = JobView(
    id="stop-user-42",
    status="RUNNING",
    action="cancel",
    select=SelectView(tag=["user:42"], status="PENDING"),
    looked=4096,
    selected=960,
    changed=960,
    shards=4,
    shards_ended=0,
    by="ops",
    created_at=rfc3339(NOON_MS),
)
_NAMED = (NOT_FOUND,)


@ROUTES(
    "POST",
    "/admin/bulk",
    Answer("With `dryRun`: what the job would be about.", COUNTS, body=CountsView),
    Answer("The job, which has begun.", EXAMPLE, status=202, body=JobView),
    body=_BULK,
    example={
        "select": {"tag": ["user:42"], "status": "PENDING"},
        "action": "cancel",
        "dryRun": True,
    },
    errors=(rate_limited(*STARTING), *_TOO_MANY.values(), TOO_EARLY),
)
async def start(call: Call) -> HttpAnswer[CountsView] | HttpAnswer[JobView]:
    """Act on every task of a selection that is there now, or count them.

    The job goes on by itself, a few tasks at a time, whoever is connected and whichever nodes
    fail. It is about the tasks that were created before it, judges each one once, when it comes to
    it, and acts on it by the rules of the single request. `outcome-unknown` means that some shards
    have begun: repeat the request under its `id`.
    """
    body = _BULK.decode(call.text)
    names = {name for name in (body.id, body.idempotency_key) if name is not None}
    if len(names) > 1:
        raise _CONFLICT
    if not all(map(JOB_NAME.fullmatch, names)):
        raise BAD_ID
    TOO_EARLY.check(call)
    select, action = _selection(call, body.select), _action(body)
    await call.spend(*STARTING)
    bulk = call.services.broker.bulk
    if body.dry_run:
        call.weigh(_COUNT_WEIGHS)
        return reply(_counts_view(await bulk.count(caller(call), select, action)))
    [job_id] = names or {new_request()}
    job = await bulk.start(caller(call), job_id, select, action)
    if isinstance(job, Rejected):
        raise _TOO_MANY.get(job.limit) or from_rejection(job)
    return reply(_job_view(job), status=202)


@ROUTES("GET", "/admin/bulk", Answer("The jobs.", JobsView([EXAMPLE])))
async def jobs(call: Call) -> HttpAnswer[JobsView]:
    """Return the bulk jobs that go on, and those that ended within a day; the newest first."""
    return reply(await all_jobs(call))


async def all_jobs(call: Call) -> JobsView:
    """Return the jobs as an answer shows them."""
    return JobsView([*map(_job_view, await call.services.broker.bulk.all(caller(call)))])


@ROUTES("GET", "/admin/bulk/{id}", Answer("The job.", EXAMPLE), errors=_NAMED)
async def job(call: Call) -> HttpAnswer[JobView]:
    """Return how far a bulk job has come, as of now; it is kept for a day after its end."""
    found = await call.services.broker.bulk.get(caller(call), _id(call))
    if found is None:
        raise NOT_FOUND
    return reply(_job_view(found))


@ROUTES("DELETE", "/admin/bulk/{id}", Answer("The job.", EXAMPLE), errors=_NAMED)
async def stop(call: Call) -> HttpAnswer[JobView]:
    """Stop a bulk job; what it has done stays. One that has ended stays as it is."""
    return reply(_job_view(accepted(await call.services.broker.bulk.stop(caller(call), _id(call)))))


def _selection(call: Call, said: Raw) -> Selection:
    if bytes(said) == b"null":
        raise SELECTION_REQUIRED
    body = _SELECT.decode(said)
    command = body.command or ""
    if command and not COMMAND.fullmatch(command):
        raise INVALID_COMMAND
    if body.status and body.status not in _STATES:
        raise INVALID_STATUS.because(f"use {', '.join(_STATES)}")
    only = TaskFilter(
        created_from_ms=created_ms(AFTER, body.created_after or ""),
        created_before_ms=created_ms(BEFORE, body.created_before or ""),
    )
    select = Selection(
        tags=named_tags(call, body.tag or ()),
        queue=command.lower(),
        states=_STATES[body.status] if body.status else (),
        only=made_by(call, only, schedule=body.schedule or "", group=body.group or ""),
    )
    if select == Selection(only=only):
        raise SELECTION_REQUIRED
    return select


def _action(body: BulkBody) -> BulkAction:
    try:
        kind = ActionKind(body.action or "")
    except ValueError as unknown:
        raise INVALID_ACTION from unknown
    own = {"reason": ActionKind.CANCEL, "priority": ActionKind.PRIORITY}
    own |= {"set": ActionKind.TAG, "remove": ActionKind.TAG}
    for name, of in own.items():
        if getattr(body, name) is not None and of is not kind:
            raise INVALID_ARGUMENT.because(f"{name} belongs to {of.value}, not to {kind.value}")
    match kind:
        case ActionKind.CANCEL:
            reason = body.reason or ""
            if len(reason) > REASON_CHARS_MAX:
                raise INVALID_ARGUMENT.because(f"reason: at most {REASON_CHARS_MAX} characters")
            return BulkAction(kind=kind, reason=reason)
        case ActionKind.PRIORITY:
            if body.priority is None or not PRIORITY_MIN <= body.priority <= PRIORITY_MAX:
                raise INVALID_ARGUMENT.because(f"priority: {PRIORITY_MIN} to {PRIORITY_MAX}")
            return BulkAction(kind=kind, priority=body.priority)
        case ActionKind.TAG:
            return _tagging(body)
        case ActionKind.REQUEUE | ActionKind.DELETE | ActionKind.RUN_NOW:
            return BulkAction(kind=kind)
        case _:
            assert_never(kind)


def _tagging(body: BulkBody) -> BulkAction:
    put, remove = in_order(body.set or {}), tuple(dict.fromkeys(body.remove or ()))
    why = tags_fault(put) or removed_fault(remove)
    if {name for name, _ in put} & set(remove):
        why = "a name is in set and in remove"
    if not put and not remove:
        why = "say what to set or to remove"
    if why:
        raise INVALID_TAGS.because(why)
    return BulkAction(kind=ActionKind.TAG, put=put, remove=remove)


def _counts_view(of: Counts) -> CountsView:
    by_status: dict[str, int] = {}
    for state, number in of.by_state.items():
        status = _status(State(state))
        by_status[status] = by_status.get(status, 0) + number
    return CountsView(
        selected=of.selected,
        changes=of.changes,
        by_status=by_status,
        by_error=dict(of.by_error.most_common()),
        more=of.more,
    )


def _status(state: State) -> str:
    """Return the status of a state; DEAD for a dead letter."""
    if state is State.DEAD:
        return "DEAD"
    return next(status for status, states in _STATES.items() if state in states)


def _job_view(of: Job) -> JobView:
    first, parts = of.parts[0], of.parts
    action = first.action
    stopped_by = next((part.stopped_by for part in parts if part.stopped_by), "")
    view = JobView(
        id=first.id,
        status="RUNNING" if of.is_live else "STOPPED" if stopped_by else "DONE",
        action=action.kind.value,
        select=_select_view(first.select),
        reason=action.reason,
        remove=action.remove,
        looked=sum(part.looked for part in parts),
        selected=sum(part.selected for part in parts),
        changed=sum(part.changed for part in parts),
        unreadable=sum(part.unreadable for part in parts),
        shards=of.shards,
        shards_ended=sum(part.ended_ms > 0 for part in parts),
        incomplete=len(parts) < of.shards,
        by=first.by,
        created_at=rfc3339(of.begun_ms),
        ended_at="" if of.is_live else rfc3339(max(part.ended_ms for part in parts)),
        stopped_by=stopped_by,
    )
    if action.kind is ActionKind.PRIORITY:
        view.priority = action.priority
    if action.put:
        view.set = dict(action.put)
    return view


def _select_view(of: Selection) -> SelectView:
    only = of.only
    return SelectView(
        tag=[shown_tag(*tag) for tag in of.tags],
        command=of.queue,
        status=next((name for name, states in _STATES.items() if states == of.states), ""),
        schedule=only.schedule,
        group=only.group,
        created_after=rfc3339(only.created_from_ms) if only.created_from_ms else "",
        created_before=rfc3339(only.created_before_ms) if only.created_before_ms else "",
    )


def _id(call: Call) -> str:
    job_id = call.request.match_info["id"]
    if not JOB_NAME.fullmatch(job_id):
        raise NOT_FOUND  # No job can have it.
    return job_id
