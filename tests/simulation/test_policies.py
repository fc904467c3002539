"""Policies: a change is answered once every shard's leader applies it, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import TypeVar

import pytest

from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.service import Broker
from codeq_cluster.broker.values import Caller
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import PutTopic
from codeq_cluster.core.outcomes import Claimed
from codeq_cluster.core.sharding import home_shard
from tests.simulator.brokers import SimBrokers, drawn_names
from tests.simulator.scenes import settled_brokers

_T = TypeVar("_T")
_TENANT = "acme"
# A key decides the shard, so that both shards have tasks.
_TASKS = tuple(
    Create(command="work", payload="{}", idempotency_key=f"key {number}") for number in range(24)
)
_HOME = home_shard(_TENANT, 2)  # The home shard keeps the tenant's policies.
_OTHER = 1 - _HOME
# A change takes milliseconds. A node that hears nothing for this long does not campaign in the home
# shard yet.
_WHILE_S = 0.3


def _caller() -> Caller:
    return Caller(_TENANT, "op", deadline_in(4))


async def _pause(broker: Broker) -> object:
    return await broker.queue_policies.pause(_caller(), "work")


async def _allow_one_at_a_time(broker: Broker) -> object:
    asked = PutTopic(tenant=_TENANT, name="work", by="op", max_consumers=1)
    return await broker.queue_policies.put_topic(_caller(), asked)


async def _claim(broker: Broker) -> Claimed:
    return await broker.claim(
        _TENANT, "ann", commands=("work",), count=3, lease_ms=60_000, wait_s=0, timeout_s=4
    )


@pytest.fixture
def brokers() -> Iterator[SimBrokers]:
    """Yield three nodes, two shards led by two of them, and a queue with tasks on both shards."""
    brokers = settled_brokers(shards=2)
    assert brokers.leader(_HOME) != brokers.leader(_OTHER)
    with drawn_names(Random(7)):
        made = _begin(brokers, "A", lambda broker: broker.create(_TENANT, _TASKS, timeout_s=4))
        assert brokers.run_until(made.done, seconds=5)
        brokers.run(_WHILE_S)
        yield brokers
    brokers.close()


def _begin(
    brokers: SimBrokers, node_id: str, ask: Callable[[Broker], Awaitable[_T]]
) -> asyncio.Task[_T]:
    return brokers.outside.create_task(brokers.request(node_id, ask, give_up_s=5))


@contextmanager
def _without_news(brokers: SimBrokers, node_id: str) -> Iterator[None]:
    """Drop the home shard's messages to a node; all others arrive."""
    receivers = brokers.network.receivers
    receive = receivers[node_id]

    def filtered(sender: str, message: Mapping[str, object]) -> None:
        if message.get("shard") != _HOME:
            receive(sender, message)

    receivers[node_id] = filtered
    yield
    receivers[node_id] = receive


@pytest.mark.parametrize("change", [_pause, _allow_one_at_a_time])
def test_a_policy_is_answered_when_every_leader_goes_by_it(
    change: Callable[[Broker], Awaitable[object]], brokers: SimBrokers
) -> None:
    """Until a leader has received a change, it applies the old policy and the change waits."""
    home, other = brokers.leader(_HOME) or "", brokers.leader(_OTHER) or ""
    with _without_news(brokers, other):
        changing = _begin(brokers, home, change)
        brokers.run(_WHILE_S)
        before = _begin(brokers, other, _claim)
        brokers.run(_WHILE_S)
        answered_early = changing.done()
    assert brokers.run_until(changing.done, seconds=5, step_s=0.001)
    after = _begin(brokers, other, _claim)
    assert brokers.run_until(after.done, seconds=5)

    assert not answered_early
    assert len(before.result().tasks) > 1
    assert changing.result() is not None
    assert () == after.result().tasks
