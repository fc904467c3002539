"""Tasks: the producer's routes."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import UNSET, Raw, Struct, UnsetType

from codeq_cluster.api.declared.bodies import Body, Schema
from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.declared.parameters import header
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, from_failure
from codeq_cluster.api.http.refusals import (
    NOT_FOUND,
    batch_too_large,
    budget_exceeded,
    rate_limited,
)
from codeq_cluster.api.routes import uniques
from codeq_cluster.api.routes.graph_calls import create_dependent
from codeq_cluster.api.routes.group_calls import TOO_MANY_MEMBERS, create_member
from codeq_cluster.api.routes.task_bodies import (
    CONFLICT,
    INVALID,
    TASK_SCHEMA,
    TaskBody,
    new_task,
    refused_webhooks,
)
from codeq_cluster.api.routes.task_views import TASK, TaskView, items_field, task_view
from codeq_cluster.auth import Access
from codeq_cluster.broker.requests.producer import too_many_queues
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.outcomes import Created, Rejected
from codeq_cluster.errors import CodeqError
from codeq_cluster.ratelimit.token_bucket import Scope

ROUTES = Routes(__name__, __doc__, Access.PRODUCER)

CREATING = (Scope.PRODUCER, "create_task")


class TasksBody(Body):
    """Tasks to create; each item is decoded on its own."""

    tasks: list[Raw] | None = items_field(TASK_SCHEMA)


_TASKS = Schema(TasksBody)


class CreatedItem(Struct, rename="camel"):
    """The outcome of one item of a batch: a task, or an error with its code.

    `retryable` says whether to send the item again, `detail` what is wrong, as in an `Error`.
    """

    task: TaskView | UnsetType = UNSET
    error: str | UnsetType = UNSET
    code: str | UnsetType = UNSET
    retryable: bool | UnsetType = UNSET
    detail: str | UnsetType = UNSET


class CreatedBatch(Struct, rename="camel"):
    """One entry per item, in the items' order."""

    results: list[CreatedItem]


_KEYED = {
    "command": TASK.command,
    "payload": {"image": "cat.png", "width": 640},
    "idempotencyKey": "cat-640",
}
_TRACE = tuple(header(name, "W3C Trace Context.") for name in ("traceparent", "tracestate"))
_LIMITED = rate_limited(*CREATING)


@ROUTES(
    "POST",
    "/tasks",
    Answer(
        "The task: a new one, or an earlier one with the same idempotency key or unique key.",
        TASK,
        status=202,
        headers={"X-CodeQ-Idempotent-Replay": "`true` for an earlier task."},
    ),
    body=TASK_SCHEMA,
    example=_KEYED | {"priority": TASK.priority},
    parameters=_TRACE,
    errors=(
        _LIMITED,
        budget_exceeded("readyTasks", "create_task"),
        budget_exceeded("storedBytes", "create_task"),
        lambda node: from_failure(too_many_queues(node.limits.queues_max)),
        NOT_FOUND,
        TOO_MANY_MEMBERS,
    ),
    whole=True,
)
async def create(call: Call) -> HttpAnswer[TaskView]:
    """Create one task: 202, replayed or not."""
    await call.spend(*CREATING)
    body = TASK_SCHEMA.decode(call.text)
    refused = await refused_webhooks(call, (body,)) if body.webhook else ()
    new = new_task(call, body, refused=refused, may_join=True, may_depend=True, alone=True)
    if body.depends_on:
        outcome = await create_dependent(call, new, body.depends_on, group=body.group)
    elif body.group:
        return reply(_view(call, await create_member(call, body.group, new)), status=202)
    else:
        broker, tenant = call.services.broker, call.identity.tenant
        [outcome] = await broker.create(tenant, (new,), timeout_s=call.timeout_s)
    match outcome:
        case Created():
            headers = {"X-CodeQ-Idempotent-Replay": "true"} if outcome.replay else {}
            return reply(_view(call, outcome), status=202, headers=headers)
        case Rejected():
            raise uniques.refused_create(call, outcome)
        case CodeqError():
            raise outcome


@ROUTES(
    "POST",
    "/tasks/batch",
    Answer(
        "The outcome of each item, in order.",
        CreatedBatch(
            [
                CreatedItem(TASK),
                CreatedItem(**CONFLICT.as_item()),
            ]
        ),
    ),
    body=_TASKS,
    example={"tasks": [_KEYED, _KEYED | {"payload": {"image": "dog.png"}}]},
    parameters=_TRACE,
    errors=(_LIMITED,),
    whole=True,
)
async def create_batch(call: Call) -> HttpAnswer[CreatedBatch]:
    """Create tasks independently of each other; the answer keeps their order."""
    items = _TASKS.decode(call.text).tasks
    most = call.services.settings.limits.batch_max
    # A bucket never holds more than its burst: a larger batch could retry for ever.
    batch_max = min(most, call.most(Scope.PRODUCER) or most)
    if not items:
        raise INVALID.because("tasks is missing or empty")
    if len(items) > batch_max:
        raise batch_too_large(batch_max)
    await call.spend(*CREATING, len(items))
    call.weigh(len(items))
    bodies = [_decoded(item) for item in items]
    refused = await refused_webhooks(call, (body for body in bodies if isinstance(body, TaskBody)))
    read = [_read_item(call, body, refused=refused) for body in bodies]
    wanted = [each for each in read if isinstance(each, Create)]
    outcomes = iter(
        await call.services.broker.create(call.identity.tenant, wanted, timeout_s=call.timeout_s)
        if wanted
        else ()
    )
    results = []
    for each in read:
        outcome = next(outcomes) if isinstance(each, Create) else each
        match outcome:
            case Created():
                results.append(CreatedItem(_view(call, outcome)))
            case Rejected():
                results.append(CreatedItem(**uniques.refused_create(call, outcome).as_item()))
            case ApiError():
                results.append(CreatedItem(**outcome.as_item()))
            case CodeqError():
                results.append(CreatedItem(**from_failure(outcome).as_item()))
    return reply(CreatedBatch(results))


def _decoded(item: Raw) -> TaskBody | ApiError:
    try:
        return TASK_SCHEMA.decode(item)
    except ApiError as unreadable:
        return unreadable.with_traceback(None)


def _read_item(
    call: Call, body: TaskBody | ApiError, *, refused: Collection[str]
) -> Create | ApiError:
    if isinstance(body, ApiError):
        return body
    try:
        return new_task(call, body, refused=refused, alone=True)
    except ApiError as error:
        return error.with_traceback(None)


def _view(call: Call, created: Created) -> TaskView:
    view = task_view(created.task, created.payload, shards=call.services.settings.shards)
    return uniques.shown(call, view, created.unique) if created.unique else view
