"""Deliveries: the requests and answers of the handlers of result callbacks."""

from __future__ import annotations

from codeq_cluster.api.http.refusals import INVALID_STATUS
from codeq_cluster.api.openapi.dead_letters import IDS, IDS_REFUSED
from codeq_cluster.api.openapi.examples import COMMAND, NOON_MS, TASK_ID
from codeq_cluster.api.openapi.parameters import PAGE, PAGED, query
from codeq_cluster.api.openapi.types import (
    BodyFields,
    DescribedAnswer,
    DescribedBody,
    DescribedOperation,
    Fields,
    Operations,
    said,
)
from codeq_cluster.api.routes import deliveries
from codeq_cluster.api.schemas import requests
from codeq_cluster.api.schemas.item_views import DeliveryPage, Replayed, delivery_view
from codeq_cluster.core.items import Delivery

_DEAD = Delivery(
    tenant="acme",
    id=f"{TASK_ID}.1",
    task_id=TASK_ID,
    command=COMMAND,
    url="https://example.com/done",
    attempts=5,
    error="HTTP 500",
    created_ms=NOON_MS + 9_000,
    died_ms=NOON_MS + 60_000,
)
_REPLAYED = DescribedAnswer("The number of deliveries that are pending again.", Replayed(3))

OPERATIONS: Operations = {
    deliveries.deliveries: DescribedOperation(
        DescribedAnswer("A page.", DeliveryPage([delivery_view(_DEAD)])),
        parameters=(
            query("status", "Only deliveries in this state.", enum=["dead", "pending"]),
            *PAGE,
        ),
        errors=(INVALID_STATUS, *PAGED),
    ),
    deliveries.replay: DescribedOperation(
        _REPLAYED,
        body=DescribedBody(requests.ReplayBody, {"ids": [_DEAD.id]}),
        errors=(deliveries.IDS_REQUIRED, *IDS_REFUSED),
    ),
    deliveries.replay_one: DescribedOperation(_REPLAYED, errors=(deliveries.DELIVERY_NOT_FOUND,)),
}

FIELDS: BodyFields = {
    requests.ReplayBody: Fields(
        known={
            "ids": said("Ids of dead deliveries.", **IDS),
            "all": said("Retry every dead delivery; required without `ids`."),
        }
    )
}
