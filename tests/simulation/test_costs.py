"""Costs: how much work one operation causes on three nodes of one shard.

Each bound is a count. Lower it when an operation gets cheaper; raise it only for a good reason.
"""

from __future__ import annotations

import sys
from asyncio import Task
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import pytest

import codeq_cluster
from codeq_cluster.broker.service import Broker
from codeq_cluster.broker.values import NewResult
from codeq_cluster.codec import levels
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.outcomes import Claimed, Created, Submitted
from codeq_cluster.core.sharding import shard_of
from tests.simulator.brokers import SimBrokers
from tests.simulator.scenes import settled_brokers

_T = TypeVar("_T")

PACKAGE = str(Path(codeq_cluster.__file__).parent)

# Long enough for an operation, the announcement of its commit and the spill of its rows. Shorter
# than the time between two heartbeats.
SETTLED_S = 0.4


@pytest.fixture
def brokers() -> Iterator[SimBrokers]:
    """Yield three quiet nodes with one shard that A leads.

    Its heartbeats are regular, so they can be subtracted: at this level no group rests.
    """
    brokers = settled_brokers(shards=1, level=levels.RESTS_FROM - 1)
    brokers.run(1.0)
    assert "A" == brokers.leader(0)
    shard_of("", 1)  # The table for hashes is made at its first use.
    yield brokers
    brokers.close()


class Costs:
    """Counts what the nodes do, by (what, node)."""

    def __init__(self, brokers: SimBrokers) -> None:
        self._brokers = brokers
        self.counts: Counter[tuple[str, str]] = Counter()
        brokers.network.observers.append(self._sent)
        for node_id, node in brokers.nodes.items():
            [group], [database] = node.groups, node.databases
            self._count(group._schedule, "_turn", "turns", node_id)
            self._count(database, "write", "spills", node_id)
            self._count(node.syncs, "run", "syncs", node_id)
            self._count(node.executor, "run", "jobs of the disk thread", node_id)
            self._count(node.loop, "create_task", "tasks", node_id)
            self._count(node.loop, "call_soon", "deferred calls", node_id)

    def _count(self, owner: object, name: str, what: str, node_id: str) -> None:
        done = getattr(owner, name)

        @wraps(done)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.counts[what, node_id] += 1
            return done(*args, **kwargs)

        setattr(owner, name, counted)

    def _sent(self, sender: str, _receiver: str, message: Mapping[str, object]) -> None:
        raft = message.get("raft")
        entries = raft.get("ec") if isinstance(raft, Mapping) else None
        kind = "calls" if raft is None else "appends" if entries else "other Raft messages"
        self.counts[kind, sender] += 1

    def _called(self, frame: FrameType, event: str, _argument: object) -> None:
        """Count a call of one of the product's functions, or its resumption after a wait."""
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self.counts["Python calls", ""] += 1

    def of(self, ask: Callable[[Broker], Awaitable[_T]], node_id: str) -> tuple[_T, Counter[str]]:
        """Run one action on a node's broker; return its result and the work of all nodes for it.

        The work of a quiet cluster in the same time, its heartbeats, is subtracted.
        """
        brokers = self._brokers
        idle = self.during(lambda: brokers.run(SETTLED_S))
        work = brokers.outside.create_task(brokers.request(node_id, ask, give_up_s=5))
        busy = self.during(lambda: brokers.run(SETTLED_S))
        busy.subtract(idle)
        return work.result(), busy

    def during(self, run: Callable[[], None]) -> Counter[str]:
        """Return the work that a function causes on all nodes."""
        self.counts.clear()
        sys.setprofile(self._called)
        try:
            run()
        finally:
            sys.setprofile(None)
        total: Counter[str] = Counter()
        for (what, _node), count in self.counts.items():
            total[what] += count
        return total


CREATE = {
    "turns": 7,
    "appends": 2,
    "other Raft messages": 4,
    "syncs": 3,
    "jobs of the disk thread": 0,
    "spills": 3,
    "calls": 0,
    "Python calls": 640,
    "tasks": 1,  # This one is the simulated client's own.
    # A turn counts as one, together with the log write and the frames that it asks for. The
    # simulated link has no frames.
    "deferred calls": 11,
}


def within(costs: Mapping[str, int], bounds: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return the counts above their bounds, with the bounds."""
    return {
        what: (costs.get(what, 0), bound)
        for what, bound in bounds.items()
        if costs.get(what, 0) > bound
    }


def create(brokers: SimBrokers, costs: Costs, node_id: str) -> Counter[str]:
    """Create one task through a node; return the costs."""
    new = (Create(command="work", payload='{"n": 1}'),)
    [made], counted = costs.of(lambda broker: broker.create("", new, timeout_s=4), node_id)
    assert isinstance(made, Created)
    return counted


def test_a_create_at_the_leader(brokers: SimBrokers) -> None:
    """It is one entry: one write and one sync on each node; no call and no asyncio task."""
    counted = create(brokers, Costs(brokers), "A")

    assert {} == within(counted, CREATE)


def test_a_create_at_a_follower(brokers: SimBrokers) -> None:
    """It costs one more call and answer; the leader serves the call without an asyncio task."""
    counted = create(brokers, Costs(brokers), "B")

    assert {} == within(counted, CREATE | {"calls": 2})


def test_a_claim_and_a_result_at_the_leader(brokers: SimBrokers) -> None:
    """Each is one entry, like a create."""
    costs = Costs(brokers)
    create(brokers, costs, "A")

    def claim(broker: Broker) -> Awaitable[Claimed]:
        return broker.claim(
            "", "ann", commands=("work",), count=1, lease_ms=9000, wait_s=0, timeout_s=4
        )

    claimed, claim_costs = costs.of(claim, "A")
    [task] = claimed.tasks
    result = (NewResult(task_id=task.id, status="COMPLETED", body="{}"),)
    [ended], result_costs = costs.of(
        lambda broker: broker.submit("", "ann", result, timeout_s=4), "A"
    )

    assert isinstance(ended, Submitted)
    assert {} == within(claim_costs, CREATE)
    assert {} == within(result_costs, CREATE)


def test_creates_that_arrive_together_share_entries(brokers: SimBrokers) -> None:
    """The first is taken at once; creates that arrive during its commit form the second."""
    costs = Costs(brokers)
    new = (Create(command="work", payload='{"n": 1}'),)
    work = [
        brokers.outside.create_task(
            brokers.request("A", lambda broker: broker.create("", new, timeout_s=4), give_up_s=5)
        )
        for _ in range(20)
    ]
    counted = costs.during(lambda: brokers.run(SETTLED_S))

    assert all(each.done() for each in work)
    assert {} == within(counted, {"appends": 4, "syncs": 6, "spills": 6})


def test_callers_who_ask_again_share_entries(brokers: SimBrokers) -> None:
    """A caller just answered joins those who wait: one entry per round, not two."""
    costs = Costs(brokers)
    lanes, rounds = 16, 10
    new = (Create(command="work", payload='{"n": 1}'),)

    async def lane() -> None:
        for _ in range(rounds):
            await brokers.request(
                "A", lambda broker: broker.create("", new, timeout_s=4), give_up_s=5
            )

    work = [brokers.outside.create_task(lane()) for _ in range(lanes // 2)]
    brokers.run(0.0015)
    # These creates arrive while the entry of the others is in flight.
    work += [brokers.outside.create_task(lane()) for _ in range(lanes // 2)]
    counted = costs.during(lambda: brokers.run_until(lambda: all(map(Task.done, work)), seconds=5))

    assert all(each.done() for each in work)
    assert {} == within(counted, {"appends": 2 * (rounds + 3)})


def test_a_quiet_cluster_does_little(brokers: SimBrokers) -> None:
    """A heartbeat is a turn at the leader and one at each follower; its answers need none."""
    costs = Costs(brokers)

    counted = costs.during(lambda: brokers.run(1.0))

    beats = 10
    assert {} == within(
        counted,
        {
            "turns": 3 * beats + 3,
            "other Raft messages": 4 * beats + 4,
            "syncs": 0,
            "jobs of the disk thread": 0,
            "spills": 0,
            "tasks": 0,
        },
    )


def idle_work(shards: int) -> tuple[Counter[str], Counter[tuple[str, str]]]:
    """Return what three nodes do in ten seconds without a request, and the frames of each pair.

    Messages that a node sends a peer at one instant are one frame.
    """
    brokers = settled_brokers(shards=shards)
    # Leaderships have gone to the preferred nodes, and their first entries are stored.
    brokers.run(8.0)
    done: Counter[str] = Counter()
    frames: set[tuple[float, str, str]] = set()

    def count(owner: object, name: str, what: str) -> None:
        call = getattr(owner, name)

        @wraps(call)
        def counted(*args: Any, **kwargs: Any) -> Any:
            done[what] += 1
            return call(*args, **kwargs)

        setattr(owner, name, counted)

    def sent(sender: str, receiver: str, _message: Mapping[str, object]) -> None:
        done["messages"] += 1
        frames.add((brokers.clock.now, sender, receiver))

    for node in brokers.nodes.values():
        for name in ("call_soon", "call_at", "create_task"):
            count(node.loop, name, name)
        for group in node.groups:
            count(group._schedule, "_turn", "turns")
        for database in node.databases:
            count(database, "write", "spills")
    brokers.network.observers.append(sent)
    brokers.run(IDLE_S)
    total = done.copy()
    brokers.close()
    return total, Counter((sender, receiver) for _, sender, receiver in frames)


IDLE_S = 10.0


@pytest.mark.parametrize("shards", [1, 4, 32])
def test_an_idle_node_does_the_same_however_many_shards_it_has(shards: int) -> None:
    """Each node beats once for all groups at rest; nothing else happens, and nothing by shard."""
    done, frames = idle_work(shards)

    beats = int(IDLE_S * 10)
    senders = 6 if shards > 1 else 4  # The leader of one shard is asked and answered by two.
    assert dict.fromkeys(frames, beats) == frames
    assert senders == len(frames)
    assert {"messages": senders * beats, "call_at": 3 * beats} == done
