"""Task lists: listing a tenant's tasks, and deleting ended ones."""

from __future__ import annotations

from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import COMMAND, Call
from codeq_cluster.api.http.errors import bad_request, invalid_body
from codeq_cluster.api.http.refusals import INVALID_COMMAND, INVALID_STATUS
from codeq_cluster.api.routes.listing import listed_tasks
from codeq_cluster.api.schemas import reading, requests
from codeq_cluster.api.schemas.task_views import CleanedUp, TaskPage
from codeq_cluster.codec.keyspace import QueuePlace
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.ratelimit.token_bucket import Scope

CLEANUP_DEFAULT = 1000
CLEANUP_MAX = 10_000

PLACES = {
    "": tuple(QueuePlace),
    "PENDING": (QueuePlace.PENDING, QueuePlace.DELAYED),
    "IN_PROGRESS": (QueuePlace.INPROG,),
    "COMPLETED": (QueuePlace.DONE,),
    "FAILED": (QueuePlace.FAILED, QueuePlace.DLQ),
}

CLEANING = (Scope.ADMIN, "cleanup")
_INVALID = invalid_body()
INVALID_BEFORE = bad_request("invalid 'before' (use RFC3339)", "invalid-before")
BEFORE_IN_FUTURE = bad_request("invalid 'before' (must not be in the future)", "invalid-before")


async def tasks(call: Call) -> HttpAnswer[TaskPage]:
    """Return the tenant's tasks by queue: waiting ones in claim order, ended ones newest first.

    A task that changes during a walk may appear twice or not at all; one that does not change
    appears once. A page may be short and still have a cursor, because entries that a filter drops
    count toward it.
    """
    command = call.query_text("command")
    if command and not COMMAND.fullmatch(command):
        raise INVALID_COMMAND
    places = PLACES.get(call.query_text("status"))
    if places is None:
        raise INVALID_STATUS
    views, cursor = await listed_tasks(call, queue=command.lower(), places=places)
    return reply(TaskPage(views, cursor))


async def cleanup(call: Call) -> HttpAnswer[CleanedUp]:
    """Delete ended tasks except dead letters: those whose retention is over, or older ones.

    Without `before`, tasks within their retention stay; with it, all tasks that ended before go.
    """
    await call.spend(*CLEANING)
    body = requests.CLEANUP.decode_any(call.text, error=_INVALID.text)
    limit = reading.whole(body.limit, error=_INVALID)
    limit = min(limit, CLEANUP_MAX) if limit > 0 else CLEANUP_DEFAULT
    now_ms = call.services.now_ms()
    if body.before:
        before_ms, retained_until_ms = reading.instant_ms(body.before, error=INVALID_BEFORE), 0
        if before_ms > now_ms:
            raise BEFORE_IN_FUTURE
    else:
        before_ms = now_ms - call.services.settings.lifecycle.retention_seconds * 1000
        retained_until_ms = now_ms
    deleted = 0
    # Keys have no instant before 1970, and no task is that old.
    if before_ms > 0:
        deleted = await call.services.broker.operators.cleanup(
            call.identity.tenant,
            before_ms=before_ms,
            limit=limit,
            by=call.identity.subject,
            timeout_s=call.timeout_s,
            retained_until_ms=retained_until_ms,
        )
    return reply(CleanedUp(deleted, rfc3339(before_ms), limit))
