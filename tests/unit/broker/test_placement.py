"""Placement: a new task goes where it saves a way, as long as no shard fills up alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from codeq_cluster.broker.producer import AHEAD_MAX, Producer
from codeq_cluster.broker.requests import NewTask


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

    @property
    def count(self) -> int:
        """Return the number of shards."""
        return len(self.replicas)

    def local(self, shard: int) -> Replica:
        """Return this node's replica."""
        return self.replicas[shard]


def placed(node: Node, *, key: str = "") -> Counter[int]:
    """Return on which shards a hundred new tasks would be."""
    producer = Producer(node)  # type: ignore[arg-type]
    item = NewTask(command="Work", payload="{}", idempotency_key=key)
    return Counter(producer._place("t", item)[0] for _ in range(100))


def test_a_new_task_goes_to_a_shard_that_the_node_leads() -> None:
    """It is decided where it arrived."""
    node = Node([Replica(leads=False), Replica(leads=True), Replica(leads=False)])

    assert {1: 100} == placed(node)


def test_a_node_that_leads_several_shards_fills_them_all() -> None:
    """None of them is left out."""
    node = Node([Replica(leads=True), Replica(leads=True), Replica(leads=False)])

    assert {0, 1} == set(placed(node))


def test_a_queue_that_is_too_long_is_spread_over_all_shards() -> None:
    """Producers that all ask one node fill no shard alone."""
    node = Node([Replica(leads=False), Replica(leads=True, waiting=AHEAD_MAX + 1)])

    assert {0, 1} == set(placed(node))
    node.replicas[0].waiting = 1
    assert {1: 100} == placed(node)


def test_a_key_decides_its_shard_wherever_it_arrives() -> None:
    """One log decides about it, so a replay finds it."""
    mine = Node([Replica(leads=True), *(Replica(leads=False) for _ in range(3))])
    other = Node([*(Replica(leads=False) for _ in range(3)), Replica(leads=True)])

    assert placed(mine, key="k") == placed(other, key="k")
    assert len(placed(mine, key="k")) == 1
