"""Placement: a new task goes where it saves a hop or an entry, and no shard fills up alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from codeq_cluster.broker.requests.pins import Pins
from codeq_cluster.broker.requests.placement import (
    AHEAD_MAX,
    CARRIED_BYTES_MAX,
    MEET_MAX,
    MEET_MIN,
    MET_AHEAD_MAX,
    SLOT_MS,
    TOGETHER,
    WINDOW_MS,
)
from codeq_cluster.broker.requests.producer import Producer
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import Operation
from codeq_cluster.core.outcomes import Outcome, Rejected, Rejection
from codeq_cluster.core.sharding import shard_of
from tests.unit.broker.conftest import TestClock


@dataclass
class Replica:
    """One shard on this node."""

    leads: bool
    waiting: int = 0
    leader: str | None = "n1"

    def ready(self, tenant: str, queue: str) -> int:
        """Return the depth of the only queue."""
        assert ("t", "work") == (tenant, queue)
        return self.waiting


@dataclass
class Node:
    """The shards of a cluster, some of which this node leads."""

    replicas: list[Replica] = field(default_factory=list)

    asked: Counter[int] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Return the number of shards."""
        return len(self.replicas)

    def local(self, shard: int) -> Replica:
        """Return this node's replica."""
        return self.replicas[shard]

    async def operate(
        self, shard: int, operations: Sequence[Operation], *, deadline: float
    ) -> list[Outcome]:
        """Count the operations and check that each id names its shard; carry nothing out."""
        self.asked[shard] += len(operations)
        creates = [each for each in operations if isinstance(each, Create)]
        self.lost += [each.id for each in creates if shard_of(each.id, self.count) != shard]
        await asyncio.sleep(0)
        return [Rejected(Rejection.NOT_FOUND) for _ in operations]


async def placed(node: Node, *, tasks: int = 100, batch: int = 1, key: str = "") -> Counter[int]:
    """Return the shards chosen for new tasks."""
    producer = Producer(node, TestClock(), Pins())  # type: ignore[arg-type]
    item = Create(command="Work", payload="{}", idempotency_key=key)
    node.asked.clear()
    for _ in range(tasks // batch):
        await producer.create("t", [item] * batch, timeout_s=1)
    return Counter(node.asked)


async def test_a_new_task_goes_to_a_shard_that_the_node_leads() -> None:
    """The node decides the create where it arrived, without a hop."""
    node = Node([Replica(leads=False), Replica(leads=True), Replica(leads=False)])

    assert {1: 100} == await placed(node)


async def test_the_id_of_a_task_names_its_shard() -> None:
    """Every node finds the task later by its id alone."""
    node = Node([Replica(leads=False), Replica(leads=True), Replica(leads=False)])

    assert {1: 100} == await placed(node)
    assert [] == node.lost


async def test_a_node_that_leads_several_shards_fills_them_in_turn() -> None:
    """Tasks that arrive together share entries; no shard is left out."""
    node = Node([Replica(leads=True), Replica(leads=True), Replica(leads=False)])

    assert {0: TOGETHER} == await placed(node, tasks=TOGETHER)
    assert {0: 2 * TOGETHER, 1: 2 * TOGETHER} == await placed(node, tasks=4 * TOGETHER)


async def test_tasks_of_one_request_stay_together() -> None:
    """A batch must stay one entry."""
    node = Node([Replica(leads=True), Replica(leads=True), Replica(leads=False)])

    assert {0: 100} == await placed(node, tasks=100, batch=100)


async def test_a_queue_that_is_too_long_is_spread_over_all_shards() -> None:
    """Producers that all ask one node cannot fill one shard alone."""
    node = Node([Replica(leads=False), Replica(leads=True, waiting=AHEAD_MAX + 1)])

    assert {0, 1} == set(await placed(node))
    node.replicas[0].waiting = 1
    assert {1: 100} == await placed(node)


async def test_a_key_decides_its_shard_wherever_it_arrives() -> None:
    """A single log decides about a key, so a retry finds the task."""
    mine = Node([Replica(leads=True), *(Replica(leads=False) for _ in range(3))])
    other = Node([*(Replica(leads=False) for _ in range(3)), Replica(leads=True)])

    assert await placed(other, key="k") == await placed(mine, key="k")
    assert 1 == len(mine.asked)


@dataclass
class Caller:
    """Producers that ask one node, a given number at a time."""

    node: Node
    clock: TestClock = field(default_factory=TestClock)

    def __post_init__(self) -> None:
        self.producer = Producer(self.node, self.clock, Pins())  # type: ignore[arg-type]

    async def ask(self, at_once: int, *, payload: str = "{}") -> Counter[int]:
        """Return the shards of tasks that are created at the same time."""
        self.node.asked.clear()
        item = Create(command="work", payload=payload)
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(self.producer.create("t", [item], timeout_s=1))
        return Counter(self.node.asked)


def _leading(*shards: int) -> Caller:
    """Return producers of a node that leads these of four shards."""
    return Caller(Node([Replica(leads=shard in shards) for shard in range(4)]))


async def test_busy_nodes_send_their_tasks_to_one_shard_at_a_time() -> None:
    """Their tasks share that shard's entries, and each shard has its turn."""
    mine, other = _leading(0, 3), _leading(1)
    for caller in (mine, other):
        await caller.ask(MEET_MIN)
    seen = set()

    for _ in range(4):
        [shard] = await mine.ask(MEET_MIN)
        assert [shard] == list(await other.ask(MEET_MIN))
        seen.add(shard)
        for caller in (mine, other):
            caller.clock.pass_ms(SLOT_MS)
            await caller.ask(MEET_MIN)
    assert {0, 1, 2, 3} == seen


async def test_callers_who_were_all_answered_at_once_are_still_many() -> None:
    """The first of them to ask again is sent to the same shard as the others will be."""
    caller = _leading(1)
    await caller.ask(MEET_MIN)
    caller.clock.pass_ms(SLOT_MS - caller.clock.wall_ms() % SLOT_MS)
    wanted = caller.clock.wall_ms() // SLOT_MS % 4
    await caller.ask(MEET_MIN)
    caller.clock.pass_ms(WINDOW_MS)

    assert {wanted: 1} == await caller.ask(1)

    caller.clock.pass_ms(2 * WINDOW_MS)
    assert {1: 1} == await caller.ask(1)


@pytest.mark.parametrize("at_once", [1, MEET_MIN - 1, MEET_MAX + 2])
async def test_few_and_very_many_tasks_stay_where_they_arrive(at_once: int) -> None:
    """A few tasks find no others to share an entry with; many fill entries of their own."""
    caller = _leading(2)
    await caller.ask(at_once)

    assert {2: at_once} == await caller.ask(at_once)


async def test_a_large_payload_stays_where_it_arrives() -> None:
    """Sending it to another node costs more than the shared entry saves."""
    caller = _leading(2)
    await caller.ask(MEET_MIN)

    assert {2: MEET_MIN} == await caller.ask(MEET_MIN, payload="x" * (CARRIED_BYTES_MAX + 1))


async def test_a_shard_whose_queue_is_too_long_is_passed_over() -> None:
    """The nodes agree on the next one."""
    caller = _leading(2)
    await caller.ask(MEET_MIN)
    [shard] = await caller.ask(MEET_MIN)
    caller.node.replicas[shard].waiting = MET_AHEAD_MAX + 1

    assert {(shard + 1) % 4: MEET_MIN} == await caller.ask(MEET_MIN)


async def test_a_shard_without_a_leader_is_passed_over() -> None:
    """Tasks on it would have to wait for an election; on another shard they need not."""
    caller = _leading(2)
    await caller.ask(MEET_MIN)
    [shard] = await caller.ask(MEET_MIN)
    caller.node.replicas[shard].leader = None

    assert {(shard + 1) % 4: MEET_MIN} == await caller.ask(MEET_MIN)


async def test_nodes_that_know_of_no_leader_meet_nowhere() -> None:
    """Then each node decides alone, and here uses the shard that it led when it was asked."""
    caller = _leading(2)
    await caller.ask(MEET_MIN)
    for replica in caller.node.replicas:
        replica.leader = None

    assert {2: MEET_MIN} == await caller.ask(MEET_MIN)
