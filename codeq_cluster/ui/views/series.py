"""Series: the data of charts, slot by slot, without the slots the page already has."""

from __future__ import annotations

from msgspec import Struct

from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import bad_request
from codeq_cluster.telemetry.history import FINE_S, STEPS_S, Depth, Flow
from codeq_cluster.ui.sources import Sources


class SeriesView(Struct, rename="camel", kw_only=True):
    """Consecutive slots; numbers per slot, not rates.

    Attributes:
        step: Seconds per slot.
        first: Number of the first slot: Unix seconds divided by the step.
    """

    step: int
    first: int
    created: list[int]
    started: list[int]
    completed: list[int]
    failed: list[int]
    ready: list[int]
    delayed: list[int]
    in_progress: list[int]
    dlq: list[int]

    @property
    def last(self) -> int:
        """Return the number of the last slot; if there is none, the number before the first."""
        return self.first + len(self.created) - 1


async def series(
    call: Call, sources: Sources, *, tenant: str | None, queue: str, since: int
) -> SeriesView:
    """Return the slots after `since` at the step that the query names.

    Args:
        tenant: None for the whole cluster.
        queue: Empty for all queues of the tenant.
        since: Number of a slot of that step; 0 for all there are.
    """
    step_s = call.query_integer("step") or FINE_S
    if step_s not in STEPS_S:
        raise bad_request(f"invalid 'step' (use {STEPS_S[0]} or {STEPS_S[1]})", "out-of-range")
    found = await sources.slots(tenant, queue, step_s=step_s, since=since)
    return SeriesView(
        step=step_s,
        first=found.first,
        created=found.flows[Flow.CREATED],
        started=found.flows[Flow.STARTED],
        completed=found.flows[Flow.COMPLETED],
        failed=found.flows[Flow.FAILED],
        ready=found.depths[Depth.READY],
        delayed=found.depths[Depth.DELAYED],
        in_progress=found.depths[Depth.IN_PROGRESS],
        dlq=found.depths[Depth.DEAD],
    )
