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
            background=background,
            fired=partial(_count, base),
            failed=partial(base.metrics.item_failures.inc, Loop.SCHEDULES),
        )
        engine.on_rows(firer.rows, Family.FIRE)
        engine.on_reload(firer.look)
        engine.on_leader(firer.look)
        firer.look()
        base.stack.callback(firer.stop)


def _count(base: NodeBase, operation: Fire) -> None:
    name = f"{operation.tenant}/{operation.id}"
    if operation.runs:
        lag_s = base.now_s() - operation.runs[-1].at_ms / 1000
        base.metrics.schedule_fired(len(operation.runs), max(0.0, lag_s))
    missed = operation.missed + sum(due.missed for due in operation.runs)
    if missed:
        log.warning("instants missed", extra={"schedule": name, "count": missed})
        base.metrics.schedule_missed(name, missed)
