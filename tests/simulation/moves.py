"""Moves: what stories about tasks do with three simulated nodes and two shards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from codeq_cluster.broker.service import Broker
from tests.simulator.brokers import SimBrokers

_T = TypeVar("_T")

SHARDS = 2
PATIENCE_S = 20.0
# Shorter than the way of a message, so that a story can act between any two.
STEP_S = 0.0002


def asked(
    brokers: SimBrokers,
    node_id: str,
    ask: Callable[[Broker], Awaitable[_T]],
    *,
    step_s: float = 0.02,
) -> _T:
    """Run one action on a node's broker and return its result; time goes on by steps."""
    work = brokers.outside.create_task(brokers.request(node_id, ask, give_up_s=PATIENCE_S))
    assert brokers.run_until(work.done, seconds=PATIENCE_S, step_s=step_s)
    return work.result()


def asked_closely(brokers: SimBrokers, node_id: str, ask: Callable[[Broker], Awaitable[_T]]) -> _T:
    """Run one action on a node's broker; no message arrives between its end and the return."""
    return asked(brokers, node_id, ask, step_s=STEP_S)


def lead(brokers: SimBrokers, shard: int, node_id: str) -> None:
    """Make a node lead a shard."""
    leader = brokers.leader(shard)
    assert leader is not None
    if leader != node_id:
        node = brokers.nodes[leader]
        node.loop.enter(node.groups[shard].transfer, node_id)
    assert brokers.run_until(lambda: brokers.leader(shard) == node_id, seconds=PATIENCE_S)
    brokers.run(0.2)


def kill_leader(brokers: SimBrokers, shard: int = 0) -> None:
    """Crash the leader of a shard, wait for the next one, and start it again."""
    leader = brokers.leader(shard)
    assert leader is not None
    brokers.crash(leader, power=True)
    assert brokers.run_until(
        lambda: brokers.leader(shard) not in (None, leader), seconds=PATIENCE_S
    )
    brokers.start(leader)
    brokers.run(0.5)


def at_rest(brokers: SimBrokers) -> None:
    """Heal all links, and let every relay and every replica arrive."""
    brokers.cut(set())
    assert brokers.run_until(
        lambda: not brokers.relays.waiting and brokers.converged(), seconds=3 * PATIENCE_S
    )
    brokers.check_converged()
