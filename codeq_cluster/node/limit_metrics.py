"""Limit metrics: what limits that queues share let run now, and what they keep waiting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from codeq_cluster.broker.engine.engine import Engine
from codeq_cluster.core.explaining import Reason, by_limit
from codeq_cluster.core.gating import shared_limit
from codeq_cluster.core.sharding import shard_of_queue
from codeq_cluster.core.task import Counters
from codeq_cluster.telemetry import Metrics, ScrapedMetric

_Sample = tuple[str, Sequence[str], float]

_RUNNING = ScrapedMetric(
    name="codeq_limit_running",
    text="Tasks in progress of the queues that share a limit.",
    labels=("limit",),
)
_RUNNING_MAX = ScrapedMetric(
    name="codeq_limit_running_max",
    text="Most of these tasks in progress at once; missing for any number.",
    labels=("limit",),
)
_WAITING = ScrapedMetric(
    name="codeq_limit_waiting",
    text="Ready tasks that a limit keeps waiting, by its reason.",
    labels=("limit", "reason"),
)
_NONE = Counters()
_REASONS = (Reason.LIMIT_HELD, Reason.CONSUMER_LIMIT, Reason.RATE_LIMITED)


def register_limits(metrics: Metrics, engines: Sequence[Engine]) -> None:
    """Register the metrics of limits that any queue shares; the leader of a limit's shard has them.

    A scrape counts each of these queues once, about 4 us.
    """

    def samples() -> Iterator[_Sample]:
        for engine in engines:
            if engine.leads:
                for (tenant, scope), queues in engine.view.sharers.items():
                    if queues and shard_of_queue(tenant, scope, len(engines)) == engine.shard:
                        yield from _of_limit(engine, tenant, queues=sorted(queues))

    metrics.read_together_at_scrape((_RUNNING, _RUNNING_MAX, _WAITING), samples)


def _of_limit(engine: Engine, tenant: str, *, queues: Sequence[str]) -> Iterator[_Sample]:
    view = engine.view
    limit = shared_limit(view, tenant, queues[0])
    if limit is None:
        return
    yield _RUNNING.name, (limit.name,), limit.running
    if limit.running_max:
        yield _RUNNING_MAX.name, (limit.name,), limit.running_max
    waits = by_limit(limit, view.now_ms)
    counters = engine.replica.counters
    ready = sum(counters.get((queue, tenant), _NONE).ready for queue in queues)
    for reason in _REASONS:
        here = ready if waits is not None and waits.reason is reason else 0
        yield _WAITING.name, (limit.name, reason.value), here
