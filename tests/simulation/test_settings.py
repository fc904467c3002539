"""Settings: a simulated cluster decides by the same settings as a real one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from typing import TypeVar

from codeq_cluster.broker.service import Broker
from codeq_cluster.broker.values import FoundTask, NewResult
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.outcomes import Claimed
from codeq_cluster.settings import BudgetSettings
from tests.simulator.broker import simulated_settings
from tests.simulator.brokers import SimBrokers, drawn_names
from tests.simulator.scenes import settled_brokers

_T = TypeVar("_T")
_TENANT = "acme"
_RETENTION_S = 5


def _answered(brokers: SimBrokers, ask: Callable[[Broker], Awaitable[_T]]) -> _T:
    asked: asyncio.Task[_T] = brokers.outside.create_task(brokers.request("A", ask, give_up_s=5))
    assert brokers.run_until(asked.done, seconds=5)
    return asked.result()


async def _claim(broker: Broker) -> Claimed:
    return await broker.claim(
        _TENANT, "ann", commands=("work",), count=3, lease_ms=60_000, wait_s=0, timeout_s=4
    )


def test_budgets_and_retention_hold_in_a_simulated_cluster() -> None:
    """A tenant leases no more than its budget, and an ended task is deleted when its time comes."""
    settings = simulated_settings(shards=1)
    brokers = settled_brokers(
        shards=1,
        settings=replace(
            settings,
            budgets=BudgetSettings(in_flight=1),
            lifecycle=replace(settings.lifecycle, retention_seconds=_RETENTION_S),
        ),
    )
    tasks = (Create(command="work", payload="{}"),) * 3
    with drawn_names(Random(7)):
        _answered(brokers, lambda broker: broker.create(_TENANT, tasks, timeout_s=4))
        [task] = _answered(brokers, _claim).tasks
        result = (NewResult(task_id=task.id, status="COMPLETED"),)
        _answered(brokers, lambda broker: broker.submit(_TENANT, "ann", result, timeout_s=4))

        async def found(broker: Broker) -> FoundTask | None:
            return await broker.task(_TENANT, task.id, stale=False, timeout_s=4)

        ended = _answered(brokers, found)
        brokers.run(_RETENTION_S + 1)
        later = _answered(brokers, found)
    brokers.close()

    assert ended is not None
    assert later is None
