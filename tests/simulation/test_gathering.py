"""Gathering: an entry waits briefly for callers who were just answered."""

from __future__ import annotations

from codeq_cluster.broker.engine.group_commit import GATHER_S_MAX
from codeq_cluster.core.new_task import Create
from tests.simulator.scenes import settled_brokers

# Longer than an entry takes on three quiet nodes; shorter than the time between two heartbeats.
_ENTRY_S = 0.01
_NEW = (Create(command="work", payload='{"n": 1}'),)


def test_callers_who_do_not_come_again_are_not_waited_for() -> None:
    """Of twenty callers answered together, one asks again; the entry goes within its bound."""
    brokers = settled_brokers(shards=1)
    brokers.run(1.0)
    leader = brokers.leader(0)
    assert leader

    async def create() -> None:
        await brokers.request(
            leader, lambda broker: broker.create("", _NEW, timeout_s=4), give_up_s=5
        )

    async def create_twice() -> None:
        await create()
        await create()

    together = [brokers.outside.create_task(create()) for _ in range(19)]
    again = brokers.outside.create_task(create_twice())
    answered = brokers.run_until(lambda: all(each.done() for each in together), seconds=1)
    brokers.run(GATHER_S_MAX + _ENTRY_S)
    there = again.done()
    brokers.close()

    assert answered
    assert there
