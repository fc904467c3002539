"""Tasks: search by known fields, and one task with all its details."""

from __future__ import annotations

from msgspec import Struct

from codeq_cluster.api.declared.bodies import instant_ms
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call, is_task_id
from codeq_cluster.api.http.errors import ApiError, bad_request
from codeq_cluster.api.http.refusals import INVALID_COMMAND, TASK_NOT_FOUND
from codeq_cluster.api.routes import cancels
from codeq_cluster.api.routes.audit import put_on_record
from codeq_cluster.api.routes.cancels import CancelledTask
from codeq_cluster.api.routes.listing import AskedPage, asked_page, browse, caller
from codeq_cluster.api.routes.reads import PREFIX, ExplanationView, explanation_view
from codeq_cluster.api.routes.tags import asked_tags
from codeq_cluster.api.routes.task_views import ArtifactView, FollowUpView, follow_up_view
from codeq_cluster.broker.questions import Browse, BrowseDelayed, BrowseTags
from codeq_cluster.codec.keyspace import QueuePlace
from codeq_cluster.core.bounds import COMMAND
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.selecting import TaskFilter
from codeq_cluster.core.tags import shown_tag
from codeq_cluster.ui.sources import Sources
from codeq_cluster.ui.views.graph import NodeView, around
from codeq_cluster.ui.views.rows import PLACES, TaskDetail, TaskRows, task_detail, task_row

_INVALID_INSTANT = bad_request("invalid instant (use RFC3339)", "invalid-query")
_TEXT_CHARS_MAX = 1024


class TaskLook(Struct, rename="camel", kw_only=True):
    """A task, with the reason for its state in words, and its graph if it has one."""

    task: TaskDetail
    explanation: ExplanationView
    graph: list[NodeView]


class TaskContent(Struct, rename="camel", kw_only=True):
    """A task's payload and result, as JSON text exactly as sent.

    Attributes:
        result: None while there is none, and for a result without a body.
        next: The tasks that the result has made.
    """

    payload: str
    result: str | None
    artifacts: list[ArtifactView]
    next: list[FollowUpView]
    completed_at: str


async def search(call: Call) -> HttpAnswer[TaskRows]:
    """Return the tenant's tasks that match, by queue and state; with tags the newest first."""
    tags = asked_tags(call)
    order = shown_tag(*tags[0]) if tags else call.query_text("state")
    asked = asked_page(call, order=order)
    wanted = browse(
        tags=tags,
        tenant=call.identity.tenant,
        queue=_queue(call),
        places=_places(call),
        after=asked.after,
        count=asked.count,
        only=_filter(call),
    )
    return await _page(call, asked, wanted)


async def delayed(call: Call) -> HttpAnswer[TaskRows]:
    """Return the tenant's delayed tasks of all queues, those due first at the front."""
    asked = asked_page(call)
    wanted = BrowseDelayed(
        tenant=call.identity.tenant,
        queue=_queue(call),
        after=asked.after,
        count=asked.count,
        only=_filter(call),
    )
    return await _page(call, asked, wanted)


async def look(call: Call, sources: Sources) -> TaskLook:
    """Return the task that the query names."""
    task_id = call.query_text("id")
    if not is_task_id(task_id):
        raise TASK_NOT_FOUND
    asking, broker = caller(call), call.services.broker
    task = await broker.searching.task(asking, task_id)
    if task is None and PREFIX.fullmatch(task_id):
        task_id = await _whole_id(call, task_id)
        task = await broker.searching.task(asking, task_id)
    explained = await broker.operators.explain(asking, task_id)
    if task is None or explained is None:
        raise TASK_NOT_FOUND
    return TaskLook(
        task=task_detail(task, call.identity, shards=call.services.settings.shards),
        explanation=explanation_view(task_id, explained),
        graph=await around(broker.graphs, sources, asking, task),
    )


async def _whole_id(call: Call, prefix: str) -> str:
    """Return the id of the only task whose id begins so."""
    ids, more = await call.services.broker.searching.ids(caller(call), prefix)
    if not ids:
        raise TASK_NOT_FOUND
    if len(ids) > 1 or more:
        raise ApiError(404, f"several ids begin with {prefix}: {', '.join(ids)}", "ambiguous-id")
    return ids[0]


async def content(call: Call) -> HttpAnswer[TaskContent]:
    """Return a task's payload and result."""
    answer = await call.services.broker.result(
        call.identity.tenant, call.task_id(not_found=TASK_NOT_FOUND), timeout_s=call.timeout_s
    )
    if answer is None:
        raise TASK_NOT_FOUND
    found, ended = answer
    artifacts, following = ((), ()) if ended is None else (ended.artifacts, ended.next)
    shown = TaskContent(
        payload=found.payload,
        result=(ended.body or None) if ended is not None else None,
        artifacts=[ArtifactView(each.name, each.url) for each in artifacts],
        next=list(map(follow_up_view, following)),
        completed_at=rfc3339(ended.completed_ms) if ended is not None else "",
    )
    return reply(shown)


async def cancel(call: Call) -> HttpAnswer[CancelledTask]:
    """Cancel a task, and record in the audit who did it."""
    answer = await cancels.cancel(call)
    await put_on_record(call, "task.cancel", call.task_id(not_found=TASK_NOT_FOUND))
    return answer


async def _page(
    call: Call, asked: AskedPage, wanted: Browse | BrowseDelayed | BrowseTags
) -> HttpAnswer[TaskRows]:
    found, edge = await call.services.broker.searching.found(wanted, deadline=caller(call).deadline)
    return reply(TaskRows(tasks=list(map(task_row, found)), cursor=asked.cursor(edge)))


def _queue(call: Call) -> str:
    command = call.query_text("command")
    if command and not COMMAND.fullmatch(command):
        raise INVALID_COMMAND
    return command.lower()


def _places(call: Call) -> tuple[QueuePlace, ...]:
    state = call.query_text("state")
    if not state:
        return tuple(QueuePlace)
    if state not in PLACES:
        raise bad_request(f"invalid 'state' (use {', '.join(PLACES)})", "invalid-query")
    return (PLACES[state],)


def _filter(call: Call) -> TaskFilter:
    return TaskFilter(
        error_part=call.query_text("error")[:_TEXT_CHARS_MAX],
        created_from_ms=_instant_ms(call, "createdFrom"),
        created_before_ms=_instant_ms(call, "createdBefore"),
        worker=call.query_text("worker")[:_TEXT_CHARS_MAX],
    )


def _instant_ms(call: Call, name: str) -> int:
    text = call.query_text(name)
    return instant_ms(text, error=_INVALID_INSTANT) if text else 0
