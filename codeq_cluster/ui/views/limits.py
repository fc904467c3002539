"""Limits: the bounds that the tenant's queues share, and what these queues do now."""

from __future__ import annotations

from msgspec import UNSET, Struct

from codeq_cluster.api.http.call import Call
from codeq_cluster.api.routes.limits import LimitView, limit_view
from codeq_cluster.api.routes.listing import caller
from codeq_cluster.broker.questions import ListItems
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.limit import Limit
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.ui.sources import Sources

LIMITS_SHOWN_MAX = 200  # A row is about 300 bytes, and the names of up to 64 queues.
_LISTED_S = 2


class LimitsLook(Struct, rename="camel", kw_only=True):
    """The tenant's first limits by name.

    Attributes:
        limits: Each with its queues and what they do, by this node's replicas.
        more: Whether there are others.
    """

    limits: list[LimitView]
    more: bool


async def look(call: Call, sources: Sources) -> LimitsLook:
    """Return the tenant's limits."""
    asking = caller(call)

    async def listed() -> tuple[list[Limit], bool]:
        wanted = ListItems(
            tenant=asking.tenant, kind=ItemKind.LIMIT, after=b"", count=LIMITS_SHOWN_MAX
        )
        found, edge = await call.services.broker.operators.items(wanted, deadline=asking.deadline)
        return [each for each in found if isinstance(each, Limit)], bool(edge)

    limits, more = await sources.shared.of(asking.tenant, "limits", _LISTED_S, listed)
    now_ms = sources.now_ms()
    return LimitsLook(limits=[_row(each, sources, now_ms) for each in limits], more=more)


def _row(limit: Limit, sources: Sources, now_ms: int) -> LimitView:
    view, queues = limit_view(limit), sources.depths.sharers(limit.tenant, limit.id)
    shared = sources.depths.shared_limit(limit.tenant, queues[0]) if queues else None
    view.queues, view.running = queues, shared.running if shared is not None else 0
    if shared is not None:
        opens_ms, held_ms = shared.limited_until_ms, shared.held_until_ms
        view.limited_until = rfc3339(opens_ms) if opens_ms > now_ms else UNSET
        view.held_until = rfc3339(held_ms) if held_ms > now_ms else UNSET
    return view
