"""Asides: tasks and items that are set aside, because the broker failed at them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.routes.audit import put_on_record
from codeq_cluster.api.routes.listing import PAGE, caller, listed
from codeq_cluster.api.routes.task_views import NOON_MS, TASK_ID
from codeq_cluster.api.routes.webhooks import IDS_REQUIRED, REPLAY, read_replay
from codeq_cluster.auth import Access
from codeq_cluster.codec import keyspace
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.items import NO_OWNER, TASK, Aside, aside_id

ROUTES = Routes(__name__, __doc__, Access.ADMIN)


class AsideView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """Something set aside at `since`; it was due at `dueAt`, or ready if that is missing.

    `kind` is `task`, `hook` for a delivery, `sweep`, `sub` or `audit`, and `item` the id of the
    thing.
    """

    id: str
    kind: str
    item: str
    reason: str
    since: str
    due_at: str = ""


class AsidePage(Struct):
    """A page of a list; the cursor is missing at its end."""

    asides: Sequence[AsideView]
    cursor: str | UnsetType = UNSET


class Retried(Struct):
    """How many things are due again."""

    retried: int


_ASIDE = AsideView(
    id=aside_id(TASK, TASK_ID),
    kind=TASK,
    item=TASK_ID,
    reason="OperationTooLarge: the operation writes more than an entry of the log can carry",
    since=rfc3339(NOON_MS + 5),
    due_at=rfc3339(NOON_MS),
)
_LISTED = Answer("A page.", AsidePage([_ASIDE]))
_RETRIED = Answer("The number of things that are due again.", Retried(3))
_SELECTION = {"ids": [_ASIDE.id]}


@ROUTES("GET", "/admin/aside", _LISTED, parameters=PAGE)
async def asides(call: Call) -> HttpAnswer[AsidePage]:
    """Return the tenant's tasks and items that are set aside, by id.

    The broker acts on them no more, until an admin retries them or a request changes them.
    """
    return await _page(call, call.identity.tenant)


@ROUTES(
    "POST", "/admin/aside/retry", _RETRIED, body=REPLAY, example=_SELECTION, errors=(IDS_REQUIRED,)
)
async def retry(call: Call) -> HttpAnswer[Retried]:
    """Make things that are set aside due again: those named, or all.

    What fails again is set aside again.
    """
    return reply(Retried(await _retry(call, call.identity.tenant)))


@ROUTES("GET", "/admin/cluster/aside", _LISTED, access=Access.OPERATOR, parameters=PAGE)
async def ownerless(call: Call) -> HttpAnswer[AsidePage]:
    """Return the tasks that are set aside and whose owner nobody knows, by id.

    Their records cannot be read: they are damaged, or of a later release. No tenant sees them.
    """
    return await _page(call, NO_OWNER)


@ROUTES(
    "POST",
    "/admin/cluster/aside/retry",
    _RETRIED,
    access=Access.OPERATOR,
    body=REPLAY,
    example=_SELECTION,
    errors=(IDS_REQUIRED,),
)
async def retry_ownerless(call: Call) -> HttpAnswer[Retried]:
    """Make tasks without a known owner due again: those named, or all.

    This helps after an upgrade to a release that can read them.
    """
    retried = await _retry(call, NO_OWNER)
    if retried:
        await put_on_record(call, "aside.retry", "tasks without a known owner", detail=str(retried))
    return reply(Retried(retried))


async def _page(call: Call, tenant: str) -> HttpAnswer[AsidePage]:
    found, cursor = await listed(call, Aside, tenant=tenant)
    return reply(AsidePage([_view(each) for each in found], cursor))


async def _retry(call: Call, tenant: str) -> int:
    ids = read_replay(call)
    return await call.services.broker.operators.retry(caller(call, tenant=tenant), ids)


def _view(aside: Aside) -> AsideView:
    due_ms = keyspace.due_ms(aside.timer)
    return AsideView(
        id=aside.id,
        kind=aside.kind,
        item=aside.subject,
        reason=aside.reason,
        since=rfc3339(aside.since_ms),
        due_at=rfc3339(due_ms) if due_ms else "",
    )
