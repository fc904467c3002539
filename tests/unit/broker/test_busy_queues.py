"""Busy queues: a queue with work is found again, for whatever reason it was left out."""

from __future__ import annotations

import pytest

from codeq_cluster.core.operations import PauseQueue, ResumeQueue
from codeq_cluster.core.outcomes import Claimed, Created

from .conftest import Shard, claim, create

pytestmark = pytest.mark.asyncio


async def _claimed(shard: Shard, request: str) -> list[str]:
    """Claim one task of any command; return the claimed tasks."""
    [outcome] = await shard.engine.operate([claim(request, commands=())])
    assert isinstance(outcome, Claimed)
    return [task.id for task in outcome.tasks]


async def test_a_queue_that_is_resumed_is_served_again(shard: Shard) -> None:
    """Claims left the queue out while it was paused; other queues had work all the time."""
    await shard.engine.operate([create("one", command="left"), create("two", command="other")])
    await shard.engine.operate(
        [PauseQueue(request="p", tenant="acme", queue="left", by="operator")]
    )
    got = await _claimed(shard, "first") + await _claimed(shard, "second")
    await shard.engine.operate(
        [ResumeQueue(request="r", tenant="acme", queue="left", by="operator")]
    )

    assert ["two"] == got
    assert ["one"] == await _claimed(shard, "third")


async def test_what_a_node_knew_before_it_led_is_not_what_it_goes_by_afterwards(
    shard: Shard,
) -> None:
    """A deleted task would hide the existing one from every look."""
    await shard.engine.operate([create("one")])
    shard.log.depose("n2")
    assert shard.engine.head("acme", ()) is not None
    shard.log.lead()
    [created] = await shard.engine.operate([create("two")])
    got = await _claimed(shard, "first")
    shard.log.depose("n2")
    head = shard.engine.head("acme", ())

    assert ["one"] == got
    assert isinstance(created, Created)
    assert head is not None
    assert created.task.seq == head.seq


async def test_a_task_of_a_higher_priority_brings_its_queue_forward(shard: Shard) -> None:
    """The queue already had a place behind another one."""
    await shard.engine.operate(
        [create(each, command=each[0]) for each in ("a1", "a2", "a3", "b1", "b2")]
    )
    first = await _claimed(shard, "first")
    await shard.engine.operate([create("b9", command="b", priority=9)])

    assert ["a1"] == first
    assert ["b9"] == await _claimed(shard, "second")
