"""Faults: those in force in a simulated run, and what the simulators draw alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from tests.simulator.brokers import SimBrokers
from tests.simulator.clock import SimClock
from tests.simulator.cluster import SimCluster
from tests.simulator.network import Wire


@dataclass(eq=False, slots=True)
class Fault:
    """A fault in force: its name, the nodes it strikes, when it ends, and the call that ends it."""

    name: str
    nodes: tuple[str, ...]
    due: float
    heal: Callable[[], None]


class Faults:
    """The faults in force; each ends by itself.

    Args:
        clock: The virtual time.
        tell: Called with the name, the nodes and whether it begins, for each change.
    """

    def __init__(self, clock: SimClock, tell: Callable[[str, tuple[str, ...], bool], None]) -> None:
        self._clock = clock
        self._tell = tell
        self._in_force: list[Fault] = []

    def begin(
        self, name: str, nodes: tuple[str, ...], seconds: float, heal: Callable[[], None]
    ) -> None:
        """Take up a fault that has just struck, until its seconds are over."""
        self._tell(name, nodes, True)
        self._in_force.append(Fault(name, nodes, self._clock.now + seconds, heal))

    def strikes(self, name: str, *nodes: str) -> bool:
        """Return whether a fault of this name is in force on one of the nodes, or on any."""
        return any(
            each.name == name and set(each.nodes) & set(nodes or each.nodes)
            for each in self._in_force
        )

    def end_due(self, *names: str) -> None:
        """End the faults whose time is over, in the order in which they began.

        Args:
            names: Only faults of these names; none for all.
        """
        for fault in list(self._in_force):
            if fault.due <= self._clock.now and (not names or fault.name in names):
                self._end(fault)

    def end_all(self) -> None:
        """End every fault in force."""
        for fault in list(self._in_force):
            self._end(fault)

    def forget(self) -> None:
        """Leave the faults in force without an end."""
        self._in_force.clear()

    def _end(self, fault: Fault) -> None:
        self._in_force.remove(fault)
        fault.heal()
        self._tell(fault.name, fault.nodes, False)


def draw_times(
    cluster: SimCluster | SimBrokers, random: Random, *, outages: Random, slow_disk: bool
) -> None:
    """Draw the seconds of flushes, snapshots and outages; a slow disk may need half a second."""

    def flush_s() -> float:
        if not slow_disk:
            return random.choice((0.0002, 0.001, 0.004))
        if random.random() < 0.02:
            return random.uniform(0.05, 0.5)
        return random.choice((0.001, 0.004, 0.02))

    cluster.flush_s = flush_s
    cluster.snapshot_s = lambda: random.choice((0.001, 0.02, 0.2, 1.5))
    cluster.outage_s = lambda: outages.choice((0.05, 0.5, 3.0))


def halves(nodes: Sequence[str], random: Random) -> tuple[Sequence[str], set[Wire]]:
    """Return some of the nodes, and the links to cut: from these to the others, or both ways."""
    size = random.randint(1, len(nodes) - 1)
    here, there = nodes[:size], nodes[size:]
    cut = {(one, other) for one in here for other in there}
    if random.random() < 0.7:
        cut |= {(other, one) for one, other in cut}
    return here, cut
