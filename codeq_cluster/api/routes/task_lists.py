"""Task lists: listing a tenant's tasks, and deleting ended ones."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from codeq_cluster.api.declared.bodies import Body, Schema, field, instant_ms, whole
from codeq_cluster.api.declared.operations import COMMAND_SCHEMA, Answer, Routes
from codeq_cluster.api.declared.parameters import query
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import bad_request
from codeq_cluster.api.http.levels import TooEarly
from codeq_cluster.api.http.refusals import INVALID_COMMAND, INVALID_STATUS, rate_limited
from codeq_cluster.api.routes.listing import ERROR, KIND, PAGE, caller, listed_tasks
from codeq_cluster.api.routes.tags import TAG, asked_tags
from codeq_cluster.api.routes.task_views import CURSOR, DEAD, TaskView
from codeq_cluster.auth import Access
from codeq_cluster.codec.keyspace import QueuePlace
from codeq_cluster.codec.levels import BULK_FROM
from codeq_cluster.core.bounds import COMMAND, COMMAND_WORDS
from codeq_cluster.core.groups import GROUP_NAME, GROUP_NAME_WORDS
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.selecting import ALL_TASKS, TaskFilter
from codeq_cluster.ratelimit.token_bucket import Scope

CLEANUP_DEFAULT = 1000
CLEANUP_MAX = 10_000

ROUTES = Routes(__name__, __doc__, Access.ADMIN)

PLACES = {
    "": tuple(QueuePlace),
    "PENDING": (QueuePlace.PENDING, QueuePlace.DELAYED, QueuePlace.HELD),
    "IN_PROGRESS": (QueuePlace.INPROG,),
    "COMPLETED": (QueuePlace.DONE,),
    "FAILED": (QueuePlace.FAILED, QueuePlace.DLQ),
    # No status of a task: its dead letters alone, over all queues.
    "DEAD": (QueuePlace.DLQ,),
}

INVALID_SCHEDULE = bad_request("invalid 'schedule'", "invalid-schedule-id").because(
    f"use {COMMAND_WORDS}"
)
INVALID_GROUP = bad_request("invalid 'group'", "invalid-group-id").because(
    f"use {GROUP_NAME_WORDS}"
)
FILTERS_TOO_EARLY = TooEarly(BULK_FROM, "'schedule' and 'group' need")
CLEANING = (Scope.ADMIN, "cleanup")
AFTER, BEFORE = "createdAfter", "createdBefore"
INVALID_CREATED = {
    name: bad_request(f"invalid '{name}' (use RFC3339)", "invalid-query")
    for name in (AFTER, BEFORE)
}
UNBOUND_CREATED = bad_request(
    "'createdAfter' and 'createdBefore' need a 'tag' or a 'command'", "tag-or-command-required"
)
INVALID_BEFORE = bad_request("invalid 'before' (use RFC3339)", "invalid-before")
BEFORE_IN_FUTURE = bad_request("invalid 'before' (must not be in the future)", "invalid-before")


class CleanupBody(Body):
    """A selection of finished tasks to delete."""

    limit: int | None = field(
        f"Maximum number of tasks: {CLEANUP_DEFAULT} for 0 or less, never more than {CLEANUP_MAX}."
    )
    before: str | None = field(
        "Delete tasks that ended before this instant, even within their "
        "retention; RFC 3339, not in the future. Absent: only tasks whose retention is "
        "over.",
        format="date-time",
        refused=(INVALID_BEFORE, BEFORE_IN_FUTURE),
    )


_CLEANUP = Schema(CleanupBody)
_TAGS_WEIGH = 60  # A look of 250 leaps takes about as long as so many creates.


class TaskPage(Struct):
    """A page of a list of tasks; the cursor is missing at its end."""

    tasks: Sequence[TaskView]
    cursor: str | UnsetType = UNSET


class CleanedUp(Struct):
    """How many tasks were deleted, and the bounds in force."""

    deleted: int
    before: str
    limit: int


@ROUTES(
    "GET",
    "/admin/tasks",
    Answer("A page.", TaskPage([DEAD], CURSOR)),
    parameters=(
        query(
            "command",
            "Only tasks of this queue.",
            INVALID_COMMAND,
            pattern=COMMAND_SCHEMA["pattern"],
        ),
        query(
            "status",
            "Only tasks in this state.",
            INVALID_STATUS,
            enum=[status for status in PLACES if status],
        ),
        TAG,
        query(
            AFTER,
            "Only tasks created at this instant or later; RFC 3339. Without a `tag` it needs a "
            "`command`, as does `createdBefore`.",
            INVALID_CREATED[AFTER],
            UNBOUND_CREATED,
            format="date-time",
        ),
        query(
            BEFORE,
            "Only tasks created before this instant; RFC 3339.",
            INVALID_CREATED[BEFORE],
            UNBOUND_CREATED,
            format="date-time",
        ),
        query(
            "schedule",
            "Only tasks that this schedule made.",
            INVALID_SCHEDULE,
            FILTERS_TOO_EARLY,
            pattern=COMMAND_SCHEMA["pattern"],
        ),
        query(
            "group",
            "Only members of this group.",
            INVALID_GROUP,
            FILTERS_TOO_EARLY,
            pattern=f"^{GROUP_NAME.pattern}$",
        ),
        ERROR,
        KIND,
        *PAGE,
    ),
)
async def tasks(call: Call) -> HttpAnswer[TaskPage]:
    """Return the tenant's tasks by queue: waiting ones in claim order, ended ones newest first.

    With a `tag` the list goes over all queues and states by the time of creation, the newest first.
    A task that changes during a walk may appear twice or not at all; one that does not change
    appears once. A page may be short and still have a cursor, because entries that a filter drops
    count toward it.
    """
    command = call.query_text("command")
    if command and not COMMAND.fullmatch(command):
        raise INVALID_COMMAND
    places = PLACES.get(call.query_text("status"))
    if places is None:
        raise INVALID_STATUS.because(f"use {', '.join(filter(None, PLACES))}")
    tags = asked_tags(call)
    only = TaskFilter(
        created_from_ms=created_ms(AFTER, call.query_text(AFTER)),
        created_before_ms=created_ms(BEFORE, call.query_text(BEFORE)),
    )
    if only != ALL_TASKS and not tags and not command:
        raise UNBOUND_CREATED
    if call.request.query_string:
        only = made_by(
            call, only, schedule=call.query_text("schedule"), group=call.query_text("group")
        )
    if tags:
        call.weigh(_TAGS_WEIGH)
    views, cursor = await listed_tasks(
        call, queue=command.lower(), places=places, tags=tags, only=only
    )
    return reply(TaskPage(views, cursor))


def made_by(call: Call, only: TaskFilter, *, schedule: str, group: str) -> TaskFilter:
    """Return a filter that also asks for a schedule and a group; empty for any.

    Raises:
        ApiError: One of these can be no name, or a shard's leader may not know such a filter.
    """
    if not schedule and not group:
        return only
    if schedule and not COMMAND.fullmatch(schedule):
        raise INVALID_SCHEDULE
    if group and not GROUP_NAME.fullmatch(group):
        raise INVALID_GROUP
    FILTERS_TOO_EARLY.check(call)
    return replace(only, schedule=schedule, group=group)


def created_ms(name: str, text: str) -> int:
    """Return the instant of `createdAfter` or `createdBefore`, Unix milliseconds; 0 for none.

    Raises:
        ApiError: 400; the text is no instant.
    """
    # Before 1970 is as early as any task; 0 would mean "not set".
    return max(1, instant_ms(text, error=INVALID_CREATED[name])) if text else 0


@ROUTES(
    "POST",
    "/admin/tasks/cleanup",
    Answer(
        "The number of deleted tasks, and the bounds in force.",
        CleanedUp(deleted=17, before="2026-01-31T12:00:00.000Z", limit=100),
    ),
    body=_CLEANUP,
    example={"limit": 100, "before": "2026-01-31T12:00:00Z"},
    may_miss=True,
    errors=(rate_limited(*CLEANING),),
)
async def cleanup(call: Call) -> HttpAnswer[CleanedUp]:
    """Delete ended tasks except dead letters: those whose retention is over, or older ones.

    Without `before`, tasks within their retention stay; with it, all tasks that ended before go.
    """
    await call.spend(*CLEANING)
    body = _CLEANUP.decode_any(call.text)
    limit = whole("limit", body.limit, error=_CLEANUP.unreadable)
    limit = min(limit, CLEANUP_MAX) if limit > 0 else CLEANUP_DEFAULT
    now_ms = call.services.now_ms()
    if body.before:
        before_ms, retained_until_ms = instant_ms(body.before, error=INVALID_BEFORE), 0
        if before_ms > now_ms:
            raise BEFORE_IN_FUTURE
    else:
        before_ms = now_ms - call.services.settings.lifecycle.retention_seconds * 1000
        retained_until_ms = now_ms
    deleted = 0
    # Keys have no instant before 1970, and no task is that old.
    if before_ms > 0:
        deleted = await call.services.broker.operators.cleanup(
            caller(call), before_ms=before_ms, limit=limit, retained_until_ms=retained_until_ms
        )
    return reply(CleanedUp(deleted, rfc3339(before_ms), limit))
