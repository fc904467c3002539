"""Dead letters: a queue's dead tasks, and an operator's actions on them."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from msgspec.structs import replace

from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call, is_task_id
from codeq_cluster.api.http.errors import ApiError, bad_request, invalid_body
from codeq_cluster.api.http.refusals import TASK_NOT_FOUND, bounded, no_flag, too_many
from codeq_cluster.api.routes.listing import listed_tasks
from codeq_cluster.api.schemas import requests
from codeq_cluster.api.schemas.dead_letter_views import DeadLetters, Deleted, ErrorGroup, Requeued
from codeq_cluster.api.schemas.task_views import TaskAndResult, result_view, task_view
from codeq_cluster.broker.requests.dead_letters import BULK_MAX, DeadLetterSelection
from codeq_cluster.broker.requests.operators import Done
from codeq_cluster.broker.values import FoundTask
from codeq_cluster.codec.keyspace import QueuePlace
from codeq_cluster.core.task import State

IDS_MAX = 1000  # In one request: read at once, 1000 x about 400 bytes.

_INVALID = invalid_body()
_NAMES = requests.SELECTION.names
INVALID_GROUP_BY = bad_request("invalid 'groupBy' (use error)", "invalid-query")
INVALID_IDS = bad_request("invalid 'ids' (name at least one)", "invalid-ids")
EMPTY_ERROR = bad_request("invalid 'error' (must not be empty)", "out-of-range")
_WORDS = {"false": False, "0": False, "true": True, "1": True}

# The selection of dead letters, and whether only to count them.
_Wanted = tuple[DeadLetterSelection, bool]


class _Acts(Protocol):
    def __call__(
        self, tenant: str, wanted: DeadLetterSelection, *, by: str, dry_run: bool, timeout_s: float
    ) -> Awaitable[Done]: ...


async def dead_letters(call: Call) -> HttpAnswer[DeadLetters]:
    """Return the dead letters of a queue, the newest first, or their causes with counts.

    A page may be short and still have a cursor, because entries that a filter drops count toward
    it.
    """
    queue = call.command().lower()
    group_by = call.query_text("groupBy")
    if group_by:
        return await _groups(call, queue, group_by)
    views, cursor = await listed_tasks(call, queue=queue, places=(QueuePlace.DLQ,))
    return reply(DeadLetters(tasks=views, cursor=cursor))


async def dead_letter(call: Call) -> HttpAnswer[TaskAndResult]:
    """Return one dead letter of a queue, and the result it died with."""
    queue = call.command().lower()
    answer = await call.services.broker.result(
        call.identity.tenant,
        call.task_id(not_found=TASK_NOT_FOUND),
        wait_s=0,
        stale=False,
        timeout_s=call.timeout_s,
    )
    if answer is None or not _died_in(answer[0], queue):
        raise TASK_NOT_FOUND
    found, ended = answer
    assert ended is not None, "a dead letter stands without its result"
    task = task_view(found.task, found.payload, shards=call.services.settings.shards)
    return reply(TaskAndResult(task, result_view(ended)))


async def requeue(call: Call) -> HttpAnswer[Requeued]:
    """Requeue dead letters of a queue: the selected ones, or all.

    Their attempts start again from 1, and their errors stay in their history. A task returns to the
    queue of its own command.
    """
    return await _requeue(call, _selected(call))


async def delete(call: Call) -> HttpAnswer[Deleted]:
    """Delete dead letters of a queue: the selected ones, by body or by query, or all."""
    return await _delete(call, _selected(call))


async def requeue_one(call: Call) -> HttpAnswer[Requeued]:
    """Make one dead letter ready again."""
    return await _requeue(call, _one(call))


async def delete_one(call: Call) -> HttpAnswer[Deleted]:
    """Delete one dead letter."""
    return await _delete(call, _one(call))


async def _groups(call: Call, queue: str, group_by: str) -> HttpAnswer[DeadLetters]:
    if group_by != "error":
        raise INVALID_GROUP_BY
    done = await call.services.broker.operators.requeue(
        call.identity.tenant,
        DeadLetterSelection(queue=queue, error=call.query_text("error")),
        by=call.identity.subject,
        dry_run=True,
        timeout_s=call.timeout_s,
    )
    groups = sorted(done.by_error.items(), key=lambda group: (-group[1], group[0]))
    views = [ErrorGroup(error, count) for error, count in groups]
    return reply(DeadLetters(groups=views, matched=done.matched, more=done.more))


async def _requeue(call: Call, wanted: _Wanted) -> HttpAnswer[Requeued]:
    done = await _act(call, call.services.broker.operators.requeue, wanted)
    return reply(Requeued(done.matched, done.changed, done.by_error, done.more, wanted[1]))


async def _delete(call: Call, wanted: _Wanted) -> HttpAnswer[Deleted]:
    done = await _act(call, call.services.broker.operators.delete, wanted)
    return reply(Deleted(done.matched, done.changed, done.by_error, done.more, wanted[1]))


async def _act(call: Call, act: _Acts, wanted: _Wanted) -> Done:
    selection, dry_run = wanted
    one = "id" in call.request.match_info
    done = await act(
        call.identity.tenant,
        selection,
        by=call.identity.subject,
        dry_run=dry_run,
        timeout_s=call.timeout_s,
    )
    if one and not done.matched:
        raise TASK_NOT_FOUND
    return done


def _one(call: Call) -> _Wanted:
    task_id = call.task_id(not_found=TASK_NOT_FOUND)
    return DeadLetterSelection(queue=call.command().lower(), ids=(task_id,)), flag(call, "dryRun")


def _selected(call: Call) -> _Wanted:
    """Read the selection from the body and, for fields it lacks, from the query."""
    queue = call.command().lower()
    body = requests.SELECTION.decode_any(call.text, error=_INVALID.text)
    _refuse_unknown(call)
    ids, limit, dry_run = body.ids, body.limit, body.dry_run
    if ids is None and "ids" in call.request.query:
        ids = [each for each in call.query_text("ids").split(",") if each]
    if limit is None and call.query_text("limit"):
        limit = call.query_integer("limit")
    if dry_run is None:
        dry_run = flag(call, "dryRun")
    error = body.error
    if error is None and "error" in call.request.query:
        error = call.query_text("error")
    if error == "":
        # An empty error must not select every error.
        raise EMPTY_ERROR
    wanted = DeadLetterSelection(queue=queue, error=error or "")
    if limit is not None:
        wanted = replace(wanted, limit=bounded("limit", limit, least=1, most=BULK_MAX))
    if ids is not None:
        wanted = replace(wanted, ids=read_ids(ids))
    return wanted, dry_run


def unknown_name(name: str) -> ApiError:
    """Return the error for an empty selector, which would otherwise select everything."""
    shown = f"invalid '{name[:64]}' (unknown: use {', '.join(_NAMES)})"
    return bad_request(shown, "unknown-name")


def _refuse_unknown(call: Call) -> None:
    unknown = next((name for name in call.request.query if name not in _NAMES), None)
    if unknown is None:
        unknown = requests.SELECTION.unknown(call.text)
    if unknown is not None:
        raise unknown_name(unknown)


def read_ids(ids: list[str]) -> tuple[str, ...]:
    """Return the ids exactly as sent.

    An empty list must not select everything: a caller may have computed it.

    Raises:
        ApiError: 400 for no ids, for too many, or for an invalid one.
    """
    if not ids or not all(map(is_task_id, ids)):
        raise INVALID_IDS
    if len(ids) > IDS_MAX:
        raise too_many("ids", IDS_MAX)
    return tuple(ids)


def flag(call: Call, name: str) -> bool:
    """Return a flag of the query; an empty value does not mean false: it may guard a deletion."""
    if name not in call.request.query:
        return False
    said = call.query_text(name)
    if said not in _WORDS:
        raise no_flag(name)
    return _WORDS[said]


def _died_in(found: FoundTask, queue: str) -> bool:
    return found.task.state is State.DEAD and found.task.dead_queue == queue
