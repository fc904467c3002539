"""Flows: how many tasks went through each queue since a given slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from codeq_cluster.api.http.call import Call
from codeq_cluster.telemetry.history import FINE_S, Flow
from codeq_cluster.ui.sources import Sources

QUEUES_MAX = 50  # Queues listed individually, the busiest; a row is about 100 bytes.


class FlowRow(Struct, rename="camel", kw_only=True):
    """The counts of one queue, or of several."""

    created: int
    started: int
    completed: int
    failed: int


class QueueFlow(FlowRow, rename="camel", kw_only=True):
    """The counts of one queue."""

    command: str


class FlowsLook(Struct, rename="camel", kw_only=True):
    """The counts of the slots after `since` in the query.

    Attributes:
        step: Seconds per slot.
        last: Number of the last slot: Unix seconds divided by the step; the next `since`.
        queues: Those with any activity, the busiest first.
        more: The number of further queues, summed in `others`.
    """

    step: int
    last: int
    queues: list[QueueFlow]
    more: int
    others: FlowRow


async def look(call: Call, sources: Sources) -> FlowsLook:
    """Return the flows since a slot; no counts if the query names no slot."""
    since = call.query_integer("since")
    last, counted = await sources.flows(call.identity.tenant, since=since)
    return flows_view(last, counted)


def flows_view(last: int, counted: Mapping[str, Sequence[int]]) -> FlowsLook:
    """Render the counts up to a slot: per queue, one number per `Flow`."""
    busiest = sorted(counted.items(), key=lambda each: (-sum(each[1]), each[0]))
    others = [flows for _, flows in busiest[QUEUES_MAX:]]
    return FlowsLook(
        step=FINE_S,
        last=last,
        queues=[
            QueueFlow(command=queue, **_numbers([flows])) for queue, flows in busiest[:QUEUES_MAX]
        ],
        more=len(others),
        others=FlowRow(**_numbers(others)),
    )


def _numbers(counted: Sequence[Sequence[int]]) -> dict[str, int]:
    return {
        name: sum(flows[flow] for flows in counted)
        for name, flow in (
            ("created", Flow.CREATED),
            ("started", Flow.STARTED),
            ("completed", Flow.COMPLETED),
            ("failed", Flow.FAILED),
        )
    }
