"""Listing: the requested page of a tenant's items or tasks."""

from __future__ import annotations

from typing import TypeVar

from msgspec import UnsetType

from codeq_cluster.api.http.call import Call
from codeq_cluster.api.schemas import paging
from codeq_cluster.api.schemas.task_views import TaskView, task_view
from codeq_cluster.codec.keyspace import QueuePlace
from codeq_cluster.core.items import KIND_OF, Audit, Delivery, Subscription, Topic

T = TypeVar("T", Audit, Delivery, Subscription, Topic)


async def listed(
    call: Call, kind: type[T], *, order: str = "", dead_only: bool = False
) -> tuple[list[T], str | UnsetType]:
    """Return the next items of a kind, and the cursor to those after them; UNSET at the end.

    Args:
        call: The request; `limit` and `cursor` of its query select the page.
        kind: The items' type.
        order: Tells lists apart whose positions differ.
        dead_only: Dead deliveries, the latest death first.

    Raises:
        ApiError: 400 for a limit out of bounds, or a cursor that is not of this list.
    """
    asked = paging.asked(call, order=order)
    found, edge = await call.services.broker.operators.items(
        call.identity.tenant,
        KIND_OF[kind],
        after=asked.after,
        count=asked.count,
        timeout_s=call.timeout_s,
        dead_only=dead_only,
    )
    return [each for each in found if isinstance(each, kind)], asked.cursor(edge)


async def listed_tasks(
    call: Call, *, queue: str, places: tuple[QueuePlace, ...]
) -> tuple[list[TaskView], str | UnsetType]:
    """Return the next tasks, only those with the query's `error`; cursor and errors as `listed`.

    Args:
        call: The request.
        queue: In lower case; empty for every queue.
        places: The parts of a queue to read.
    """
    asked = paging.asked(call)
    found, edge = await call.services.broker.operators.tasks(
        call.identity.tenant,
        queue=queue,
        places=places,
        error=call.query_text("error"),
        after=asked.after,
        count=asked.count,
        timeout_s=call.timeout_s,
    )
    shards = call.services.settings.shards
    views = [task_view(each.task, each.payload, shards=shards) for each in found]
    return views, asked.cursor(edge)
