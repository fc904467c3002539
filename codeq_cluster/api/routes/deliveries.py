"""Deliveries: result callbacks that are pending, or that failed for good."""

from __future__ import annotations

from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call, is_task_id
from codeq_cluster.api.http.errors import ApiError, bad_request, invalid_body
from codeq_cluster.api.http.refusals import INVALID_STATUS
from codeq_cluster.api.routes.dead_letters import read_ids
from codeq_cluster.api.routes.listing import listed
from codeq_cluster.api.schemas import requests
from codeq_cluster.api.schemas.item_views import DeliveryPage, Replayed, delivery_view
from codeq_cluster.core.items import Delivery

_INVALID = invalid_body()
IDS_REQUIRED = bad_request("ids or all required", "ids-required")
DELIVERY_NOT_FOUND = ApiError(404, "delivery not found", "not-found")


async def deliveries(call: Call) -> HttpAnswer[DeliveryPage]:
    """Return the tenant's deliveries by id, or the dead ones, the latest death first.

    A page may be short and still have a cursor, because entries that a filter drops count toward
    it.
    """
    status = call.query_text("status")
    if status not in ("", "dead", "pending"):
        raise INVALID_STATUS
    dead_only = status == "dead"
    found, cursor = await listed(
        call, Delivery, order="death" if dead_only else "id", dead_only=dead_only
    )
    views = [delivery_view(each) for each in found if not (status == "pending" and each.died_ms)]
    return reply(DeliveryPage(views, cursor))


async def replay(call: Call) -> HttpAnswer[Replayed]:
    """Retry dead deliveries from the first attempt: those named, or all."""
    body = requests.REPLAY.decode_any(call.text, error=_INVALID.text)
    if body.ids is None and not body.all:
        raise IDS_REQUIRED
    ids = () if body.ids is None else read_ids(body.ids)
    return reply(Replayed(await _replay(call, ids)))


async def replay_one(call: Call) -> HttpAnswer[Replayed]:
    """Retry one dead delivery from the first attempt."""
    delivery_id = call.request.match_info["id"]
    replayed = await _replay(call, (delivery_id,)) if is_task_id(delivery_id) else 0
    if not replayed:
        raise DELIVERY_NOT_FOUND
    return reply(Replayed(replayed))


async def _replay(call: Call, ids: tuple[str, ...]) -> int:
    return await call.services.broker.operators.replay(
        call.identity.tenant, ids, by=call.identity.subject, timeout_s=call.timeout_s
    )
