"""Backoff spread: tasks that fail together do not come back together."""

from __future__ import annotations

import pytest

from codeq_cluster.core.holds import Nack
from codeq_cluster.core.outcomes import Returned

from .conftest import Shard, claim, create

pytestmark = pytest.mark.asyncio


async def test_tasks_given_back_at_one_instant_rest_for_different_times(shard: Shard) -> None:
    """The leader draws a random number for each task, over the whole range of the policy."""
    ids = [f"t{number}" for number in range(100)]
    await shard.engine.operate([create(task_id) for task_id in ids])
    await shard.engine.operate([claim("r", count=len(ids))])
    nacks = [Nack(request=i, id=i, tenant="acme", worker="ann") for i in ids]
    outcomes = await shard.engine.operate(nacks)
    delays_ms = [outcome.delay_ms for outcome in outcomes if isinstance(outcome, Returned)]

    # After one attempt the full jitter is uniform over 0..10 s.
    assert len(delays_ms) == len(ids)
    assert len(set(delays_ms)) > 90
    assert min(delays_ms) < 2_000
    assert max(delays_ms) > 8_000
    assert max(delays_ms) <= 10_000
