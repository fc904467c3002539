"""Scenes: common starts of scripted scenarios on a simulated cluster, and their observers."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from codeq_cluster.codec.levels import LEVEL
from codeq_cluster.raft.safety_switches import ALL_RULES, SafetySwitches
from codeq_cluster.settings import NodeSettings, RaftSettings
from tests.simulator.broker import simulated_settings
from tests.simulator.brokers import SimBrokers
from tests.simulator.cluster import SimCluster


def settled(
    node_ids: str = "ABC",
    *,
    rules: SafetySwitches = ALL_RULES,
    settings: RaftSettings | None = None,
    level: int = LEVEL,
    rests: bool = False,
) -> SimCluster:
    """Return a running cluster led by node A, all of whose nodes have applied everything."""
    cluster = SimCluster(
        node_ids,
        random=Random(1),
        rules=rules,
        settings=settings,
        level=level,
        rests=rests,
    )
    cluster.start()
    cluster.elect("A")
    cluster.run(0.3)
    return cluster


def settled_brokers(
    *, shards: int, settings: NodeSettings | None = None, level: int = LEVEL
) -> SimBrokers:
    """Return three running nodes, A to C, that agree on the leader of each shard."""
    brokers = SimBrokers(
        ("A", "B", "C"),
        random=Random(7),
        settings=settings or simulated_settings(shards=shards),
        level=level,
    )
    for node_id in brokers.ids:
        brokers.start(node_id)
    assert brokers.run_until(brokers.converged, seconds=5)
    return brokers


def propose(cluster: SimCluster, count: int, *, prefix: str = "v") -> None:
    """Propose `count` values and give them half a second to be acknowledged."""
    for number in range(count):
        assert cluster.propose(f"{prefix}{number}".encode()), "nobody leads"
    cluster.run(0.5)


class Wiretap:
    """Records every message sent from now on, with its wire, in order."""

    def __init__(self, cluster: SimCluster) -> None:
        self.sent: list[tuple[str, str, Mapping[str, object]]] = []
        cluster.network.observers.append(self._note)

    def of(self, kind: int, sender: str, receiver: str) -> list[Mapping[str, object]]:
        """Return the messages of one kind on one wire."""
        return [m for s, r, m in self.sent if (s, r) == (sender, receiver) and m["t"] == kind]

    def _note(self, sender: str, receiver: str, message: Mapping[str, object]) -> None:
        self.sent.append((sender, receiver, message))
