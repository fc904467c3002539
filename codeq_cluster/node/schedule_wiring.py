"""Schedule wiring: lets the schedules of the shards led here fire."""

from __future__ import annotations

import logging
from functools import partial

from codeq_cluster.broker.background import Background
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.core.loops import Loop
from codeq_cluster.core.schedules import Fire
from codeq_cluster.firing.firer import ScheduleFirer
from codeq_cluster.node.base import NodeBase
from codeq_cluster.node.parts import NodeParts
from codeq_cluster.ratelimit.limiter import RateLimiter
from codeq_cluster.ratelimit.token_bucket import Scope

log = logging.getLogger(__name__)


def start_schedules(base: NodeBase, parts: NodeParts) -> None:
    """Start a firer for each shard; the parts run."""
    background = Background()
    base.stack.push_async_callback(background.stop)
    for engine, store in zip(parts.replicas.engines, parts.storage.shards, strict=True):
        firer = ScheduleFirer(
            engine,
            store.state,
            wall_ms=base.clock.wall_ms,
            wait_s=partial(_wait_s, parts.calls.quotas),
            background=background,
            fired=partial(_count, base),
            failed=partial(base.metrics.item_failures.inc, Loop.SCHEDULES),
        )
        engine.on_rows(firer.rows, Family.FIRE)
        engine.on_reload(firer.look)
        engine.on_leader(firer.look)
        firer.look()
        base.stack.callback(firer.stop)


async def _wait_s(quotas: RateLimiter, tenant: str, count: int) -> float:
    """Take what firings create from the rate of the tenant's creates; a crowd takes all of it."""
    most = quotas.most(Scope.PRODUCER, tenant)
    if most is None:
        return 0.0
    return await quotas.wait_s(Scope.PRODUCER, "fire_schedule", tenant, min(count, most))


def _count(base: NodeBase, operation: Fire, due_ms: int, missed: int) -> None:
    name = f"{operation.tenant}/{operation.id}"
    if operation.runs:
        lag_s = base.now_s() - due_ms / 1000
        base.metrics.schedule_fired(len(operation.runs), max(0.0, lag_s))
    if missed > 0:  # It may have been deleted meanwhile.
        log.warning("instants missed", extra={"schedule": name, "count": missed})
        base.metrics.schedule_missed(name, missed)
