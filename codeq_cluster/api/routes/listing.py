"""Listing: the requested page of a tenant's items or tasks, and the cursor to the next one.

A cursor is only valid for the list it came from. It carries a digest of that list and its position,
so a truncated or foreign cursor is refused instead of continuing at a wrong place.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from codeq_cluster.api.declared.parameters import query, whole
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import bad_request
from codeq_cluster.api.routes.task_views import TaskView, task_view
from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.questions import Browse, BrowseTags, ListItems
from codeq_cluster.broker.values import Caller
from codeq_cluster.codec.keyspace import QueuePlace
from codeq_cluster.core.error_kinds import error_kind
from codeq_cluster.core.groups import Group
from codeq_cluster.core.items import KIND_OF, Aside, Audit, Delivery, Subscription, Topic
from codeq_cluster.core.limit import Limit
from codeq_cluster.core.schedules import Schedule
from codeq_cluster.core.selecting import ALL_TASKS, TaskFilter
from codeq_cluster.core.tags import shown_tag

INVALID_CURSOR = bad_request("invalid 'cursor'", "invalid-cursor").because(
    "use the one of the previous page of this list, with the same filters"
)
COUNT_DEFAULT = 50
COUNT_MAX = 500  # A page of tasks is rendered on the loop: 500 take about 5 ms.

LIMIT = whole("limit", "Maximum number of entries.", least=1, most=COUNT_MAX, default=COUNT_DEFAULT)
PAGE = (
    LIMIT,
    query(
        "cursor", "The `cursor` of the previous page; absent for the first page.", INVALID_CURSOR
    ),
)
ERROR = query("error", "Only those with exactly this error.")
KIND = query(
    "kind",
    "Only those whose error is of this kind: an error, or its kind as `groupBy=kind` shows it.",
)

_DIGEST_BYTES = 6
_CHARS_MAX = 1024  # A position is at most a queue's name, two numbers and an id.

T = TypeVar("T", Aside, Audit, Delivery, Group, Limit, Schedule, Subscription, Topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPage:
    """The requested page of a list.

    Attributes:
        count: Entries at most, 1 to `COUNT_MAX`.
        after: Position after which to begin; empty for the start.
        name: Of the list, including filters that change its order.
    """

    count: int
    after: bytes
    name: bytes

    def cursor(self, edge: bytes) -> str | UnsetType:
        """Return the cursor that continues after `edge`, UNSET if that is empty: the end."""
        if not edge:
            return UNSET
        return base64.urlsafe_b64encode(self._digest(edge) + edge).rstrip(b"=").decode()

    def _digest(self, position: bytes) -> bytes:
        return blake2b(self.name + b"\0" + position, digest_size=_DIGEST_BYTES).digest()


def caller(call: Call, *, tenant: str | None = None) -> Caller:
    """Return who asks, to be answered within a request's time; a tenant replaces the caller's."""
    of = call.identity.tenant if tenant is None else tenant
    return Caller(of, call.identity.subject, deadline_in(call.timeout_s))


async def listed(
    call: Call,
    kind: type[T],
    *,
    order: str = "",
    dead_only: bool = False,
    tenant: str | None = None,
    owner: str = "",
) -> tuple[list[T], str | UnsetType]:
    """Return the next items of a kind, and the cursor to those after them; UNSET at the end.

    Args:
        call: The request; `limit` and `cursor` of its query select the page.
        order: Tells lists apart whose positions differ.
        dead_only: Dead deliveries, the latest death first.
        tenant: The owner; None for the caller's tenant.
        owner: Only the schedules of this set; empty for all.

    Raises:
        ApiError: 400 for a limit out of bounds, or a cursor that is not of this list.
    """
    asked = asked_page(call, order=order)
    asking = caller(call, tenant=tenant)
    wanted = ListItems(
        tenant=asking.tenant,
        kind=KIND_OF[kind],
        after=asked.after,
        count=asked.count,
        dead_only=dead_only,
        owner=owner,
    )
    found, edge = await call.services.broker.operators.items(wanted, deadline=asking.deadline)
    return [each for each in found if isinstance(each, kind)], asked.cursor(edge)


async def listed_tasks(
    call: Call,
    *,
    queue: str,
    places: tuple[QueuePlace, ...],
    tags: tuple[tuple[str, str], ...] = (),
    only: TaskFilter = ALL_TASKS,
) -> tuple[list[TaskView], str | UnsetType]:
    """Return the next tasks that the query's `error` and `kind` select; the rest as `listed`.

    Args:
        queue: In lower case; empty for every queue.
        places: The parts of a queue to read.
        tags: Only tasks with all of these, the newest first.
        only: Selects among them.

    Raises:
        ApiError: 400 for a limit out of bounds, or a cursor of another list or another queue.
    """
    asked = asked_page(call, order=shown_tag(*tags[0]) if tags else "")
    if queue and not tags and asked.after and not asked.after.startswith(b"%b\0" % queue.encode()):
        raise INVALID_CURSOR
    asking = caller(call)
    wanted = browse(
        tenant=asking.tenant,
        queue=queue,
        places=places,
        tags=tags,
        error=call.query_text("error"),
        after=asked.after,
        count=asked.count,
        only=only,
    )
    found, edge = await call.services.broker.operators.tasks(wanted, deadline=asking.deadline)
    shards = call.services.settings.shards
    kind = kind_of(call.query_text("kind"))
    views = [
        task_view(each.task, each.payload, shards=shards)
        for each in found
        if not kind or error_kind(each.task.error) == kind
    ]
    return views, asked.cursor(edge)


def browse(*, tags: tuple[tuple[str, str], ...], **asked: Any) -> Browse | BrowseTags:
    """Return the question for tasks with all of these tags, or for tasks by queue without any."""
    return BrowseTags(tags=tags, **asked) if tags else Browse(**asked)


def kind_of(text: str) -> str:
    """Return the kind of an error, or of its kind; empty for an empty one, which selects any."""
    return error_kind(text) if text else ""


def asked_page(call: Call, *, order: str = "") -> AskedPage:
    """Read `limit` and `cursor` of the query.

    Args:
        call: The request; its path names the list.
        order: Tells lists apart whose positions differ.

    Raises:
        ApiError: 400 for a limit out of bounds, or a cursor that is not of this list.
    """
    count = LIMIT.read(call) or COUNT_DEFAULT
    name = f"{call.identity.tenant}\0{call.request.path}\0{order}".encode()
    start = AskedPage(count=count, after=b"", name=name)
    cursor = call.query_text("cursor")
    if not cursor:
        return start
    after = _position(cursor)
    if start.cursor(after) != cursor:
        raise INVALID_CURSOR
    return AskedPage(count=count, after=after, name=name)


def _position(cursor: str) -> bytes:
    """Return the position in a cursor after checking its digest; empty if the digest is wrong."""
    if len(cursor) > _CHARS_MAX:
        return b""
    try:
        raw = base64.b64decode(
            cursor.encode() + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True
        )
    except (binascii.Error, UnicodeError):
        return b""
    return raw[_DIGEST_BYTES:]
