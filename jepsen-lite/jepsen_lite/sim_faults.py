"""Faults of a simulated broker: the mix of one seed, and how each begins and ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from msgspec import Struct

from jepsen_lite.mixes import WORKLOADS
from tests.simulator.brokers import SimBrokers
from tests.simulator.faults import Faults, draw_times, halves
from tests.simulator.network import NetworkFaults

# Only real nodes have receivers of webhooks, membership changes and gigabytes.
PLAYED = tuple(name for name in WORKLOADS if name not in {"webhooks", "membership", "big-state"})
# Drawn by a generator of its own, so that the other seeds keep the runs that they had before it.
LATER = ("follow-ups", "schedules", "lanes", "groups", "unique", "graphs", "steps")
# Played only if asked for: a seed more for them would be one less that has found something.
_ASKED = ("limits", "bulk", "graces", "events")
_FIRST = tuple(name for name in PLAYED if name not in (*LATER, *_ASKED))


class Options(Struct, frozen=True, kw_only=True):
    """The faults of one seed; probabilities are per step of 20 ms.

    Attributes:
        away: A node stays down until the others have truncated their logs.
        small: Batches, caches and logs are so small that their limits are reached all the time.
        power: Share of the deaths that lose unsynced writes.
        slow_disk: Flushes sometimes take up to half a second.
        full: A disk refuses every write for a while.
        clock_ms: The largest shift of a wall clock.
    """

    workload: str
    nodes: tuple[str, ...]
    shards: int
    small: bool
    kill: float
    power: float
    away: float
    pause: float
    partition: float
    reconnect: float
    isolate: float
    full: float
    transfer: float
    slow_disk: bool
    packets: bool
    clock_ms: int


def draw_workload(seed: int) -> str:
    """Return the workload that a seed plays whatever else it draws, or nothing."""
    drawn = Random(f"{seed}/workload").random()
    # In the order in which they came, so that each leaves the seeds of those before it alone.
    for position, name in enumerate(LATER):
        share = 1 / (len(_FIRST) + 1)
        if position * share <= drawn < (position + 1) * share:
            return name
    return ""


def draw_options(random: Random, workload: str = "") -> Options:
    """Draw a workload and a mix of faults: each is present in about half of the seeds."""

    def sometimes(value: float) -> float:
        return value if random.random() < 0.5 else 0.0

    drawn = random.choice(_FIRST)
    played = workload or drawn
    return Options(
        workload=played,
        nodes=random.choice((("A", "B", "C"),) * 4 + (("A", "B", "C", "D", "E"),)),
        shards=max(random.choice((1, 1, 2)), WORKLOADS[played].shards_min),
        small=random.random() < 0.5,
        kill=sometimes(0.004),
        power=random.choice((0.0, 0.5, 1.0)),
        away=sometimes(0.004),
        pause=sometimes(0.003),
        partition=sometimes(0.004),
        reconnect=sometimes(0.006),
        isolate=sometimes(0.002),
        full=sometimes(0.002),
        transfer=sometimes(0.004),
        slow_disk=random.random() < 0.3,
        packets=random.random() < 0.4,
        clock_ms=random.choice((0, 0, 100, 30_000, 3_600_000)),
    )


class SimFaults:
    """The faults of one run.

    Args:
        brokers: What they strike.
        options: The seed's mix.
        random: Draws when, where and for how long.
        tell: Called with the name, the nodes and whether it begins, for each change.
    """

    def __init__(
        self,
        brokers: SimBrokers,
        options: Options,
        random: Random,
        *,
        tell: Callable[[str, tuple[str, ...], bool], None],
    ) -> None:
        self._brokers = brokers
        self._options = options
        self._random = random
        self._tell = tell
        self._faults = Faults(brokers.clock, tell)

    def begin(self) -> None:
        """Start the faults that last through the whole load."""
        random, options, brokers = self._random, self._options, self._brokers
        delays: tuple[float, ...] = random.choice(((0.0005, 0.001), (0.001, 0.005, 0.02)))
        if options.packets:
            brokers.network.faults = NetworkFaults(
                delays_s=(*delays, 0.08, 0.2),
                drop=0.02,
                duplicate=random.choice((0.0, 0.05)),
                overtake=random.choice((0.0, 0.1)),
                ghost=random.choice((0.0, 0.5)),
            )
            self._tell("packets", brokers.ids, True)
        else:
            brokers.network.faults = NetworkFaults(delays_s=delays)
        draw_times(brokers, random, outages=random, slow_disk=options.slow_disk)
        if options.slow_disk:
            self._tell("disk-slow", brokers.ids, True)

    def step(self) -> None:
        """End the faults whose time is over, and perhaps begin others."""
        random, options = self._random, self._options
        self._faults.end_due()
        for probability, begin in (
            (options.kill, self._kill),
            (options.away, self._send_away),
            (options.pause, self._pause),
            (options.partition, self._partition),
            (options.reconnect, self._reconnect),
            (options.isolate, self._isolate),
            (options.full, self._fill),
            (options.transfer, self._transfer),
            (0.003 if options.clock_ms else 0.0, self._move_clock),
        ):
            if random.random() < probability:
                begin()

    def _kill(self) -> None:
        random = self._random
        everyone = random.random() < 0.25
        victims = sorted(self._brokers.nodes) if everyone else [self._target()]
        self._crash(victims, down_s=random.uniform(0.05, 4.0))

    def _send_away(self) -> None:
        self._crash([self._target()], down_s=self._random.uniform(5.0, 12.0))

    def _crash(self, node_ids: list[str], *, down_s: float) -> None:
        random, brokers = self._random, self._brokers
        victims = [node_id for node_id in node_ids if node_id in brokers.nodes]
        power = random.random() < self._options.power
        if not victims:
            return
        for node_id in victims:
            brokers.crash(node_id, power=power, refused=random.random() < 0.7)
        # All victims die the same way, because a power cut of all nodes is a promise of its own.
        self._faults.begin(
            "power" if power else "kill",
            tuple(victims),
            down_s,
            partial(self._start, victims),
        )

    def _start(self, node_ids: list[str]) -> None:
        for node_id in node_ids:
            self._brokers.start(node_id)

    def _pause(self) -> None:
        node_id = self._random.choice(self._brokers.ids)
        if node_id in self._brokers.nodes and not self._faults.strikes("pause", node_id):
            seconds = self._random.choice((0.2, 1.0, 3.0, 6.0))
            self._brokers.pause(node_id, seconds)
            self._faults.begin("pause", (node_id,), seconds, lambda: None)

    def _partition(self) -> None:
        random, brokers = self._random, self._brokers
        if self._faults.strikes("partition"):
            return
        nodes = list(brokers.ids)
        random.shuffle(nodes)
        leader = brokers.leader(random.randrange(self._options.shards))
        if leader is not None and random.random() < 0.5:
            nodes.remove(leader)
            nodes.insert(0, leader)
        here, cut = halves(nodes, random)
        brokers.cut(cut)
        heal = partial(brokers.cut, set())
        self._faults.begin("partition", tuple(sorted(here)), random.uniform(0.3, 9.0), heal)

    def _reconnect(self) -> None:
        one, other = self._random.sample(self._brokers.ids, 2)
        if one in self._brokers.nodes and other in self._brokers.nodes:
            self._brokers.reconnect(one, other)
            self._faults.begin("reconnect", (one, other), 0.5, lambda: None)

    def _isolate(self) -> None:
        node_id = self._random.choice(self._brokers.ids)
        if not self._faults.strikes("cut-off-clients", node_id):
            self._brokers.isolated.add(node_id)
            heal = partial(self._brokers.isolated.discard, node_id)
            self._faults.begin("cut-off-clients", (node_id,), self._random.uniform(0.5, 5.0), heal)

    def _fill(self) -> None:
        node_id = self._random.choice(self._brokers.ids)
        if self._faults.strikes("disk-full") or node_id not in self._brokers.nodes:
            return
        disks = self._brokers.disks[node_id]
        for disk in disks:
            disk.full = True

        def heal() -> None:
            for disk in disks:
                disk.full = False

        self._faults.begin("disk-full", (node_id,), self._random.uniform(0.2, 4.0), heal)

    def _transfer(self) -> None:
        random, brokers = self._random, self._brokers
        shard = random.randrange(self._options.shards)
        leader, peer = brokers.leader(shard), random.choice(brokers.ids)
        if leader is not None:
            node = brokers.nodes[leader]
            node.loop.enter(node.groups[shard].transfer, peer)
            self._faults.begin("transfer", (leader,), 1.0, lambda: None)

    def _move_clock(self) -> None:
        node_id = self._random.choice(self._brokers.ids)
        if self._faults.strikes("clock", node_id):
            return
        ms = self._random.choice((-1, 1)) * self._options.clock_ms
        self._brokers.move_clock(node_id, ms)
        heal = partial(self._brokers.move_clock, node_id, 0)
        self._faults.begin("clock", (node_id,), self._random.uniform(0.5, 6.0), heal)

    def _target(self) -> str:
        """Draw a node, half of the time one that leads."""
        leader = self._brokers.leader(self._random.randrange(self._options.shards))
        if leader is not None and self._random.random() < 0.5:
            return leader
        return self._random.choice(self._brokers.ids)

    def end(self) -> None:
        """End every fault, also those of the whole load."""
        self._faults.end_all()
        brokers, options = self._brokers, self._options
        brokers.network.faults = NetworkFaults()
        brokers.flush_s = lambda: 0.001
        for name, lasted in (("packets", options.packets), ("disk-slow", options.slow_disk)):
            if lasted:
                self._tell(name, brokers.ids, False)
