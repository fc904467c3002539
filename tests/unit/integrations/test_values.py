"""Values: what was written under a key last, over days, against a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import pytest

from codeq_cluster.integrations.values import Values
from codeq_cluster.testing.broker import LocalBroker

QUEUE: Final = "celery:results"
HOUR_S: Final = 3600
HALF_WEEK_S: Final = 84 * HOUR_S


def _clock_of(broker: LocalBroker) -> Callable[[], float]:
    def now_s() -> float:
        return broker.now.timestamp()

    return now_s


async def test_the_last_value_counts_however_long_ago_the_first_was(broker: LocalBroker) -> None:
    """The first groups are forgotten after seven days; a new write is not taken for theirs."""
    seen = list[str | bytes | None]()
    async with broker.client() as client:
        values = Values(client, queue=QUEUE, clock=_clock_of(broker))
        for day in range(10):
            await values.set("days", f"{day}")
            seen.append(await values.get("days"))
            await asyncio.to_thread(broker.advance, hours=23)
            seen.append(await values.get("days"))
            await asyncio.to_thread(broker.advance, hours=1)

    assert [f"{day}" for day in range(10) for _ in range(2)] == seen


async def test_a_value_is_found_as_long_as_its_retention_says(broker: LocalBroker) -> None:
    """For seven days at most, which is longer than two spans."""
    queue = "taskiq:results"
    with broker.sync_operator() as operator:
        operator.put_topic(queue, {"retentionSeconds": 14 * 24 * HOUR_S})
    async with broker.client() as client:
        values = Values(client, queue=queue, clock=_clock_of(broker))
        await values.set("kept", "1")
        await asyncio.to_thread(broker.advance, hours=7 * 24 - 1)
        before = await values.get("kept")
        await asyncio.to_thread(broker.advance, hours=2)

        assert ("1", None) == (before, await values.get("kept"))


@pytest.mark.parametrize("behind_s", [1, HOUR_S - 1])
async def test_a_write_by_a_clock_that_is_behind_is_the_last_one(
    broker: LocalBroker, behind_s: int
) -> None:
    """A reader finds it by either clock, on both sides of the begin of a span."""
    key = f"behind-{behind_s}"
    begin_s = 4000 * HALF_WEEK_S
    async with broker.client() as client:
        late = Values(client, queue=QUEUE, clock=lambda: begin_s - behind_s)
        ahead = Values(client, queue=QUEUE, clock=lambda: begin_s)
        await ahead.set(key, "1")
        await late.set(key, "2")
        found = [await each.get(key) for each in (ahead, late)]

    assert ["2", "2"] == found
