"""Dead letters: a queue's dead tasks, and an operator's actions on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from codeq_cluster.api.declared.bodies import Body, Schema, field, raw_field
from codeq_cluster.api.declared.operations import COMMAND_SCHEMA, Answer, Routes
from codeq_cluster.api.declared.parameters import query, whole
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call, is_task_id
from codeq_cluster.api.http.errors import bad_request, from_rejection
from codeq_cluster.api.http.refusals import INVALID_COMMAND, TASK_NOT_FOUND, too_many, unknown_name
from codeq_cluster.api.routes.listing import ERROR, KIND, PAGE, caller, kind_of, listed_tasks
from codeq_cluster.api.routes.revising import (
    NO_PATCH,
    PATCH_BYTES_MAX,
    PATCH_TOO_LARGE,
    PAYLOAD_OF_ONE,
    payload_too_large,
    revising,
)
from codeq_cluster.api.routes.task_views import (
    CURSOR,
    DEAD,
    DEAD_RESULT,
    TaskAndResult,
    TaskView,
    result_view,
    task_view,
)
from codeq_cluster.api.routes.uniques import CONFLICT, DECIDED_ELSEWHERE
from codeq_cluster.auth import Access
from codeq_cluster.broker.requests.dead_letters import BULK_MAX, DeadLetterSelection
from codeq_cluster.broker.requests.triage import Acted, ErrorKind, Revising
from codeq_cluster.broker.values import FoundTask
from codeq_cluster.codec.keyspace import QueuePlace
from codeq_cluster.core.bounds import COMMAND, COMMAND_WORDS
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.task import State

ROUTES = Routes(__name__, __doc__, Access.ADMIN)

IDS_MAX = 1000  # In one request: read at once, 1000 x about 400 bytes.
PATCHED_MAX = 1000  # In one request: each is an operation of its own.

INVALID_GROUP_BY = bad_request("invalid 'groupBy' (use error or kind)", "invalid-query")
INVALID_IDS = bad_request("invalid 'ids' (name at least one)", "invalid-ids")
EMPTY_ERROR = bad_request("invalid 'error' (must not be empty)", "out-of-range")
EMPTY_KIND = bad_request("invalid 'kind' (must not be empty)", "out-of-range")

_DRY_RUN = query(
    "dryRun", "`true` counts the tasks and changes nothing.", type="boolean", default=False
)
_BY_LIMIT = whole("limit", "Maximum number of tasks; the newest are taken.", least=1, most=BULK_MAX)
_SELECTED_BY = (
    query(
        "ids",
        "Ids separated by commas. A field of the body overrides its parameter.",
        pattern=f"^{COMMAND.pattern}(,{COMMAND.pattern})*$",
    ),
    query("error", ERROR.text, minLength=1),
    query("kind", KIND.text, minLength=1),
    _BY_LIMIT,
    _DRY_RUN,
)


def ids_field(text: str) -> Any:
    """Return a field of ids, which `read_ids` checks; a task's command has the form of any."""
    refused = (INVALID_IDS, too_many("ids", IDS_MAX))
    return field(text, refused=refused, minItems=1, maxItems=IDS_MAX, items=COMMAND_SCHEMA)


class SelectionBody(Body):
    """A selection of dead letters, and whether only to count them."""

    ids: list[str] | None = ids_field("Only these tasks; absent for all.")
    error: str | None = field(ERROR.text, min_length=1, refused=(EMPTY_ERROR,))
    kind: str | None = field(KIND.text, min_length=1, refused=(EMPTY_KIND,))
    limit: int | None = field(
        f"Maximum number of tasks, {BULK_MAX} when absent; the newest are taken.", ge=1, le=BULK_MAX
    )
    dry_run: bool | None = field("Count the tasks and change nothing.")


class RequeueBody(SelectionBody):
    """A selection of dead letters, and the change to their payloads."""

    patch: Raw = raw_field(
        f"A JSON object of at most {PATCH_BYTES_MAX} bytes, merged into each payload (RFC 7396) "
        f"before the requeue; at most {PATCHED_MAX} tasks in one request then. A payload that it "
        "does not fit is left alone.",
        type=["object", "null"],
        refused=(NO_PATCH, PATCH_TOO_LARGE),
    )
    payload: Raw = raw_field(
        "JSON that replaces the payload of the only task that `ids` names; null keeps it.",
        refused=(PAYLOAD_OF_ONE, lambda node: payload_too_large(node.limits)),
    )


_SELECTION = Schema(SelectionBody, unknown=unknown_name)
_REQUEUE = Schema(RequeueBody, unknown=unknown_name)


class ErrorGroup(Struct):
    """The number of dead letters with one error."""

    error: str
    count: int


class ErrorKindRow(Struct, rename="camel", kw_only=True):
    """Dead letters with the same kind of error, and one of their errors in full."""

    kind: str
    sample: str
    count: int
    newest_at: str
    oldest_at: str


class DeadLetters(Struct):
    """A page of a list, whose cursor is missing at its end; or the causes of the dead letters.

    Groups come with the most frequent first, and `more` says that not all `matched` were examined.
    """

    tasks: list[TaskView] | UnsetType = UNSET
    cursor: str | UnsetType = UNSET
    groups: list[ErrorGroup] | UnsetType = UNSET
    kinds: list[ErrorKindRow] | UnsetType = UNSET
    matched: int | UnsetType = UNSET
    more: bool | UnsetType = UNSET


class Requeued(Struct, rename="camel", kw_only=True):
    """The result of requeueing dead letters; a dry run only counts them.

    Of several, those stay dead whose unique key another task holds. With a patch or a payload,
    `leftAlone` counts those whose payload it does not fit; a dry run shows the payload of the
    newest one `before` and `after` it, which is null if it does not fit.
    """

    matched: int
    requeued: int
    left_alone: int | UnsetType = UNSET
    by_error: Mapping[str, int]
    more: bool
    dry_run: bool
    before: str | UnsetType = UNSET
    after: str | UnsetType | None = UNSET


class Deleted(Struct, rename="camel"):
    """The result of deleting dead letters; a dry run only counts them."""

    matched: int
    deleted: int
    by_error: Mapping[str, int]
    more: bool
    dry_run: bool


# The selection of dead letters, and whether only to count them.
_Wanted = tuple[DeadLetterSelection, bool]

_TOLD = "How many were found and how many of them were {}; `more` if some are left."
_BY_ERROR = {DEAD.error: 2}
_REQUEUED = Answer(
    _TOLD.format("requeued"),
    Requeued(matched=2, requeued=2, by_error=_BY_ERROR, more=False, dry_run=False),
)
_DELETED = Answer(
    _TOLD.format("deleted"),
    Deleted(matched=2, deleted=2, by_error=_BY_ERROR, more=False, dry_run=False),
)
_SELECTION_REFUSED = (INVALID_COMMAND, unknown_name("id", _SELECTION.names))
_ONE_REFUSED = (INVALID_COMMAND, TASK_NOT_FOUND)


@ROUTES(
    "GET",
    "/admin/queues/{command}/dlq",
    Answer("A page, or the groups.", DeadLetters(tasks=[DEAD], cursor=CURSOR)),
    parameters=(
        query(
            "groupBy",
            "`error` or `kind` returns the causes with counts instead. Errors that differ only in "
            "numbers and ids are of one kind.",
            INVALID_GROUP_BY,
            enum=["error", "kind"],
        ),
        ERROR,
        KIND,
        *PAGE,
    ),
    errors=(INVALID_COMMAND,),
)
async def dead_letters(call: Call) -> HttpAnswer[DeadLetters]:
    """Return the dead letters of a queue, the newest first, or their causes with counts.

    A page may be short and still have a cursor, because entries that a filter drops count toward
    it.
    """
    queue = call.command().lower()
    group_by = call.query_text("groupBy")
    if group_by:
        return await _causes(call, queue, group_by)
    views, cursor = await listed_tasks(call, queue=queue, places=(QueuePlace.DLQ,))
    return reply(DeadLetters(tasks=views, cursor=cursor))


@ROUTES(
    "DELETE",
    "/admin/queues/{command}/dlq",
    _DELETED,
    body=_SELECTION,
    example={"error": DEAD.error, "limit": 100, "dryRun": True},
    may_miss=True,
    parameters=_SELECTED_BY,
    errors=_SELECTION_REFUSED,
)
async def delete(call: Call) -> HttpAnswer[Deleted]:
    """Delete dead letters of a queue: the selected ones, by body or by query, or all."""
    return await _delete(call, _selected(call, _SELECTION.decode_any(call.text)))


@ROUTES(
    "POST",
    "/admin/queues/{command}/dlq/requeue",
    _REQUEUED,
    body=_REQUEUE,
    example={"kind": DEAD.error, "patch": {"retries": 3}, "dryRun": True},
    may_miss=True,
    parameters=_SELECTED_BY,
    errors=_SELECTION_REFUSED,
)
async def requeue(call: Call) -> HttpAnswer[Requeued]:
    """Requeue dead letters of a queue: the selected ones, or all.

    Their attempts start again from 1, and their errors stay in their history. A task returns to the
    queue of its own command. With a patch or a payload, their payloads are changed first.
    """
    body = _REQUEUE.decode_any(call.text)
    wanted = _selected(call, body)
    change = revising(call, patch=body.patch, payload=body.payload, ids=wanted[0].ids)
    return await _requeue(call, wanted, change=change)


@ROUTES(
    "GET",
    "/admin/queues/{command}/dlq/{id}",
    Answer("The dead letter.", TaskAndResult(DEAD, DEAD_RESULT)),
    errors=_ONE_REFUSED,
)
async def dead_letter(call: Call) -> HttpAnswer[TaskAndResult]:
    """Return one dead letter of a queue, and the result it died with."""
    queue = call.command().lower()
    answer = await call.services.broker.result(
        call.identity.tenant, call.task_id(not_found=TASK_NOT_FOUND), timeout_s=call.timeout_s
    )
    if answer is None or not _died_in(answer[0], queue):
        raise TASK_NOT_FOUND
    found, ended = answer
    assert ended is not None, "a dead letter has no result"
    task = task_view(found.task, found.payload, shards=call.services.settings.shards)
    return reply(TaskAndResult(task, result_view(ended)))


@ROUTES(
    "DELETE",
    "/admin/queues/{command}/dlq/{id}",
    _DELETED,
    parameters=(_DRY_RUN,),
    errors=_ONE_REFUSED,
)
async def delete_one(call: Call) -> HttpAnswer[Deleted]:
    """Delete one dead letter."""
    return await _delete(call, _one(call))


@ROUTES(
    "POST",
    "/admin/queues/{command}/dlq/{id}/requeue",
    _REQUEUED,
    parameters=(_DRY_RUN,),
    errors=(*_ONE_REFUSED, CONFLICT, DECIDED_ELSEWHERE),
)
async def requeue_one(call: Call) -> HttpAnswer[Requeued]:
    """Make one dead letter ready again."""
    return await _requeue(call, _one(call))


async def _causes(call: Call, queue: str, group_by: str) -> HttpAnswer[DeadLetters]:
    triage = call.services.broker.triage
    wanted = DeadLetterSelection(
        queue=queue, error=call.query_text("error"), kind=kind_of(call.query_text("kind"))
    )
    match group_by:
        case "error":
            done = await triage.requeue(caller(call), wanted, dry_run=True)
            groups = sorted(done.by_error.items(), key=lambda group: (-group[1], group[0]))
            views = [ErrorGroup(error, count) for error, count in groups]
            return reply(DeadLetters(groups=views, matched=len(done.ids), more=done.more))
        case "kind":
            found, _, more = await triage.preview(caller(call), wanted)
            matched = sum(each.count for each in found)
            return reply(DeadLetters(kinds=kind_rows(found), matched=matched, more=more))
        case _:
            raise INVALID_GROUP_BY


async def _requeue(
    call: Call, wanted: _Wanted, *, change: Revising | None = None
) -> HttpAnswer[Requeued]:
    selection, dry_run = wanted
    if change is not None:
        selection = replace(selection, limit=min(selection.limit, PATCHED_MAX))
    done = await call.services.broker.triage.requeue(
        caller(call), selection, dry_run=dry_run, revising=change
    )
    if done.refused is not None and len(selection.ids) == 1:
        raise from_rejection(done.refused)
    answer = Requeued(
        matched=_found(call, done),
        requeued=done.changed,
        left_alone=UNSET if change is None else done.left_alone,
        by_error=done.by_error,
        more=done.more,
        dry_run=dry_run,
    )
    if dry_run and change is not None and done.ids:
        shown = await payload_of(call, done.ids[0])
        if shown is not None:
            answer.before, answer.after = shown, change.change(shown)
    return reply(answer)


async def _delete(call: Call, wanted: _Wanted) -> HttpAnswer[Deleted]:
    selection, dry_run = wanted
    done = await call.services.broker.triage.delete(caller(call), selection, dry_run=dry_run)
    matched = _found(call, done)
    return reply(Deleted(matched, done.changed, done.by_error, done.more, dry_run))


def _found(call: Call, done: Acted) -> int:
    """Return how many dead letters were found; 404 if the route names one and there is none."""
    if "id" in call.request.match_info and not done.ids:
        raise TASK_NOT_FOUND
    return len(done.ids)


async def payload_of(call: Call, task_id: str) -> str | None:
    """Return a task's payload; None if it is gone."""
    found = await call.services.broker.task(
        call.identity.tenant, task_id, stale=False, timeout_s=call.timeout_s
    )
    return None if found is None else found.payload


def _one(call: Call) -> _Wanted:
    task_id = call.task_id(not_found=TASK_NOT_FOUND)
    selection = DeadLetterSelection(queue=call.command().lower(), ids=(task_id,))
    return selection, _DRY_RUN.flag(call)


def _selected(call: Call, body: SelectionBody) -> _Wanted:
    """Read the selection from the body and, for fields it lacks, from the query."""
    queue, asked = call.command().lower(), call.request.query
    ids = body.ids
    if ids is None and "ids" in asked:
        ids = [each for each in asked["ids"].split(",") if each]
    limit = _BY_LIMIT.read(call) if body.limit is None else body.limit
    error = asked.get("error") if body.error is None else body.error
    kind = asked.get("kind") if body.kind is None else body.kind
    # An empty error must not select every error.
    if error == "":
        raise EMPTY_ERROR
    if kind == "":
        raise EMPTY_KIND
    wanted = DeadLetterSelection(
        queue=queue,
        ids=() if ids is None else read_ids(ids),
        error=error or "",
        kind=kind_of(kind or ""),
        limit=limit or BULK_MAX,
    )
    return wanted, _DRY_RUN.flag(call) if body.dry_run is None else body.dry_run


def read_ids(ids: list[str]) -> tuple[str, ...]:
    """Return the ids exactly as sent.

    An empty list must not select everything: a caller may have computed it.

    Raises:
        ApiError: 400 for no ids, for too many, or for an invalid one.
    """
    if len(ids) > IDS_MAX:
        raise too_many("ids", IDS_MAX)
    if not ids:
        raise INVALID_IDS
    for each in ids:
        if not is_task_id(each):
            raise INVALID_IDS.because(f"'{each[:128]}' is the id of no task: use {COMMAND_WORDS}")
    return tuple(ids)


def _died_in(found: FoundTask, queue: str) -> bool:
    return found.task.state is State.DEAD and found.task.dead_queue == queue


def kind_rows(found: Sequence[ErrorKind]) -> list[ErrorKindRow]:
    """Render kinds of errors, the most frequent first."""
    return [
        ErrorKindRow(
            kind=each.kind,
            sample=each.sample,
            count=each.count,
            newest_at=rfc3339(each.newest_ms),
            oldest_at=rfc3339(each.oldest_ms),
        )
        for each in sorted(found, key=lambda each: -each.count)
    ]
