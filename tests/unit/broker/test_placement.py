"""Placement: a new task goes where it saves a way, as long as no shard fills up alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from codeq_cluster.broker.producer import AHEAD_MAX, TOGETHER, Producer
from codeq_cluster.broker.requests import NewTask
from codeq_cluster.core.operations import Create, Operation
from codeq_cluster.core.outcomes import Outcome, Rejected, Rejection
from codeq_cluster.core.sharding import shard_of


@dataclass
class Replica:
    """One shard on this node."""

    leads: bool
    waiting: int = 0

    def ready(self, tenant: str, queue: str) -> int:
        """Return what waits in the one queue there is."""
        assert (tenant, queue) == ("t", "work")
        return self.waiting


@dataclass
class Node:
    """The shards of a cluster, of which this node leads some."""

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
        """Count what is asked, and keep whose id names another shard; nothing comes of it."""
        self.asked[shard] += len(operations)
        creates = [each for each in operations if isinstance(each, Create)]
        self.lost += [each.id for each in creates if shard_of(each.id, self.count) != shard]
        return [Rejected(Rejection.NOT_FOUND) for _ in operations]


async def placed(node: Node, *, tasks: int = 100, batch: int = 1, key: str = "") -> Counter[int]:
    """Return on which shards new tasks would be."""
    producer = Producer(node)  # type: ignore[arg-type]
    item = NewTask(command="Work", payload="{}", idempotency_key=key)
    node.asked.clear()
    for _ in range(tasks // batch):
        await producer.create("t", [item] * batch, timeout_s=1)
    return Counter(node.asked)


async def test_a_new_task_goes_to_a_shard_that_the_node_leads() -> None:
    """It is decided where it arrived."""
    node = Node([Replica(leads=False), Replica(leads=True), Replica(leads=False)])

    assert await placed(node) == {1: 100}


async def test_the_id_of_a_task_names_its_shard() -> None:
    """By the id alone every node finds the task later."""
    node = Node([Replica(leads=False), Replica(leads=True), Replica(leads=False)])

    assert await placed(node) == {1: 100}
    assert node.lost == []


async def test_a_node_that_leads_several_shards_fills_them_in_turn() -> None:
    """Tasks that come together share entries; none of the shards is left out."""
    node = Node([Replica(leads=True), Replica(leads=True), Replica(leads=False)])

    assert await placed(node, tasks=TOGETHER) == {0: TOGETHER}
    assert await placed(node, tasks=4 * TOGETHER) == {0: 2 * TOGETHER, 1: 2 * TOGETHER}


async def test_tasks_of_one_request_stay_together() -> None:
    """A batch is one entry."""
    node = Node([Replica(leads=True), Replica(leads=True), Replica(leads=False)])

    assert await placed(node, tasks=100, batch=100) == {0: 100}


async def test_a_queue_that_is_too_long_is_spread_over_all_shards() -> None:
    """Producers that all ask one node fill no shard alone."""
    node = Node([Replica(leads=False), Replica(leads=True, waiting=AHEAD_MAX + 1)])

    assert set(await placed(node)) == {0, 1}
    node.replicas[0].waiting = 1
    assert await placed(node) == {1: 100}


async def test_a_key_decides_its_shard_wherever_it_arrives() -> None:
    """One log decides about it, so a replay finds it."""
    mine = Node([Replica(leads=True), *(Replica(leads=False) for _ in range(3))])
    other = Node([*(Replica(leads=False) for _ in range(3)), Replica(leads=True)])

    assert await placed(mine, key="k") == await placed(other, key="k")
    assert len(mine.asked) == 1
