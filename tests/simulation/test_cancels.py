"""Cancels with a grace over the deaths of leaders, on virtual time and network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from codeq_cluster.broker.requests.leases import HeldLease
from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.outcomes import Cancelled, Claimed, Created, Extended, Rejected, Rejection
from codeq_cluster.core.task import State, Task, cancelling_of
from codeq_cluster.core.transitions import CANCELLED
from tests.simulator.brokers import SimBrokers
from tests.simulator.scenes import settled_brokers

from .moves import asked, kill_leader

GRACE_MS = 15_000
LEASE_MS = 60_000


@pytest.fixture
def brokers() -> Iterator[SimBrokers]:
    """Yield three nodes with one shard."""
    brokers = settled_brokers(shards=1)
    yield brokers
    brokers.close()


def follower(brokers: SimBrokers) -> str:
    """Return a node that does not lead."""
    return next(each for each in "ABC" if each != brokers.leader(0))


def leased(brokers: SimBrokers) -> str:
    """Create a task and claim it; return its id."""
    new = [Create(command="mail", payload="{}")]
    [made] = asked(brokers, follower(brokers), lambda broker: broker.create("", new, timeout_s=4))
    got = asked(
        brokers,
        follower(brokers),
        lambda broker: broker.claim(
            "", "ann", commands=("mail",), count=1, lease_ms=LEASE_MS, wait_s=0, timeout_s=4
        ),
    )
    assert isinstance(made, Created)
    assert isinstance(got, Claimed)
    return made.task.id


def beat(brokers: SimBrokers, task_id: str) -> Extended | Rejected:
    """Ask for a lease that goes beyond the grace."""
    return asked(
        brokers,
        follower(brokers),
        lambda broker: broker.heartbeat(
            "", "ann", HeldLease(id=task_id, token=0, extend_ms=LEASE_MS), timeout_s=4
        ),
    )


def shown(brokers: SimBrokers, task_id: str) -> Task:
    """Return a task as node A has it."""
    row = brokers.nodes["A"].states[0].get(keyspace.task(task_id))
    assert row is not None
    return records.decode_task(row)


def test_a_grace_stands_over_the_deaths_of_its_leaders(brokers: SimBrokers) -> None:
    """Each next leader tells the worker of the same deadline, and ends the task then."""
    task_id = leased(brokers)
    begun_s = brokers.clock.now
    answer = asked(
        brokers,
        follower(brokers),
        lambda broker: broker.cancel("", task_id, grace_ms=GRACE_MS, reason="why", timeout_s=4),
    )
    assert isinstance(answer, Cancelled)
    cancelling = cancelling_of(answer.task)
    assert cancelling is not None
    for _ in range(2):
        kill_leader(brokers)
        beaten = beat(brokers, task_id)
        assert Extended(cancelling.deadline_ms, cancelling) == beaten
    waited_s = brokers.clock.now - begun_s
    assert brokers.run_until(
        lambda: shown(brokers, task_id).state is State.FAILED, seconds=2 * GRACE_MS / 1000
    )
    took_s = brokers.clock.now - begun_s
    late = beat(brokers, task_id)

    assert waited_s < GRACE_MS / 1000 <= took_s < GRACE_MS / 1000 + 5
    assert CANCELLED == shown(brokers, task_id).error
    assert Rejected(Rejection.LEASE_LOST) == late
