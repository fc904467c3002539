"""Groups: real Raft groups through hours of faults in seconds, every choice from one seed.

A seed draws its own mix of faults and sizes, so that some runs are mostly quiet and others stack
everything. After the faults the cluster is healed and must converge. `SimCluster` checks the
invariants at every step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import count
from random import Random

from codeq_cluster.errors import CodeqError
from codeq_cluster.raft.safety_switches import ALL_RULES, SafetySwitches
from codeq_cluster.settings import RaftSettings
from tests.simulator.cluster import SimCluster
from tests.simulator.faults import Faults, draw_times, halves
from tests.simulator.invariants import InvariantViolated
from tests.simulator.network import NetworkFaults

_STEP_S = 0.02
_FAULTS_S = 40.0
# The longest stall or downtime, plus a few elections.
_CALM_S = 20.0
# Where groups may rest, clients ask nothing for long enough that they do.
_PAUSES_S, _BUSY_S = 6.0, 2.0
_NODE_IDS = ("ABC", "ABC", "ABC", "ABCDE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The faults and sizes of one seed; probabilities are per step of 20 ms.

    Attributes:
        slow_disk: Flushes sometimes take up to half a second.
        small: Batches, caches and logs so small that their edges are met all the time.
        away: A node is cut off or down for so long that the others forget what it needs.
        corrupt: A node's state becomes another than its log makes; a minority of one at a time.
        full: A node's disk refuses every write for a while.
        torn: Part of the snapshots that come damaged, and of the exchanges in which the node dies.
        members: Nodes are added and removed.
        wipe: A voter loses its disk.
        in_flight: Entries a leader may propose ahead; many of them close the windows.
    """

    nodes: str
    network: NetworkFaults
    propose: float
    barrier: float
    crash: float
    partition: float
    reconnect: float
    stall: float
    transfer: float
    slow_disk: bool
    small: bool
    in_flight: int
    away: float
    torn: float
    full: float
    corrupt: float
    members: float
    wipe: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of one seed.

    Attributes:
        violation: The invariant that was violated; empty when none was.
        digest: The same seed gives the same digest.
    """

    seed: int
    options: Options
    virtual_s: float
    proposed: int
    acknowledged: int
    reads: int
    crashes: int
    terms: int
    violation: str
    digest: str
    counters: Counter[str]


def draw_options(random: Random, *, full: float, corrupt: float) -> Options:
    """Draw a mix of faults: each is present in about half of the seeds."""

    def sometimes(value: float) -> float:
        return value if random.random() < 0.5 else 0.0

    return Options(
        nodes=random.choice(_NODE_IDS),
        network=NetworkFaults(
            delays_s=random.choice(
                (
                    (0.0005, 0.001),
                    (0.001, 0.005, 0.02),
                    (0.001, 0.001, 0.005, 0.02, 0.08, 0.2, 0.35),
                )
            ),
            drop=sometimes(0.02),
            duplicate=sometimes(0.05),
            overtake=sometimes(0.1),
            ghost=sometimes(0.5),
        ),
        propose=random.choice((0.2, 0.5, 0.9)),
        barrier=0.3,
        crash=sometimes(0.004),
        partition=sometimes(0.008),
        reconnect=sometimes(0.01),
        stall=sometimes(0.006),
        transfer=sometimes(0.006),
        slow_disk=random.random() < 0.3,
        small=random.random() < 0.6,
        in_flight=random.choice((1, 4, 8, 64)),
        away=random.choice((0.0, 0.002, 0.004)),
        torn=sometimes(0.2),
        full=full,
        corrupt=corrupt,
        members=random.choice((0.0, 0.0, 0.005, 0.02)),
        wipe=random.choice((0.0, 0.0, 0.003)),
    )


def simulate(
    seed: int, *, rules: SafetySwitches = ALL_RULES, trace: Callable[[str], None] | None = None
) -> Report:
    """Run one seed to its end or to the first violation."""
    run = _Run(seed, rules=rules, trace=trace)
    violation = ""
    try:
        run.faults()
        run.calm()
    except (AssertionError, CodeqError) as error:
        violation = f"{type(error).__name__} at {run.elapsed():.3f} s: {error}"
        run.note(violation)
    return run.report(violation)


class _Run:
    """One seed."""

    def __init__(
        self, seed: int, *, rules: SafetySwitches, trace: Callable[[str], None] | None
    ) -> None:
        self._seed = seed
        self._trace = trace
        self._random = random = Random(seed)
        # A generator of its own, so that a seed's other faults stay the same.
        self._disks = disks = Random(f"{seed}/disks")
        full = 0.004 if disks.random() < 0.5 else 0.0
        corrupt = 0.003 if disks.random() < 0.5 else 0.0
        self._options = options = draw_options(random, full=full, corrupt=corrupt)
        self._cluster = SimCluster(
            options.nodes,
            random=random,
            settings=_settings(small=options.small, in_flight=options.in_flight),
            rules=rules,
            preferred=random.choice(options.nodes),
            rests=Random(f"{seed}/rest").random() < 0.5,
        )
        self._started = self._cluster.clock.now
        self._cluster.network.faults = options.network
        draw_times(self._cluster, random, outages=disks, slow_disk=options.slow_disk)
        self._cluster.snapshot_leaves = self._given
        self._cluster.snapshot_arrives = lambda: random.random() >= options.torn
        self._cluster.at_exchange = self._at_exchange
        self._values = count()
        self._proposed = 0
        self._reads = 0
        self._crashes = 0
        self._faults = Faults(self._cluster.clock, self._tell)
        self._wiped: str | None = None
        self._newcomers = iter("VWXYZ")
        self._counters: Counter[str] = Counter()
        self.note(f"options {options}")
        self._cluster.start()

    def elapsed(self) -> float:
        """Return virtual seconds since the start."""
        return self._cluster.clock.now - self._started

    def note(self, what: str) -> None:
        """Write one line of the trace."""
        if self._trace is not None:
            self._trace(f"{self.elapsed():8.3f}  {what}")

    def _tell(self, name: str, nodes: tuple[str, ...], on: bool) -> None:
        self.note(f"{name} {' '.join(nodes)} {'begins' if on else 'ends'}")

    def faults(self) -> None:
        """Inject faults."""
        while self.elapsed() < _FAULTS_S:
            self._clients()
            self._network_faults()
            self._send_away()
            self._crash_and_restart()
            self._fill_a_disk()
            self._corrupt_a_state()
            self._members()
            self._step()

    def calm(self) -> None:
        """Heal everything; the cluster must converge and answer again.

        Raises:
            InvariantViolated: It does not.
        """
        cluster = self._cluster
        self.note("calm")
        cluster.network.faults = NetworkFaults()
        cluster.flush_s = lambda: 0.001
        cluster.snapshot_arrives = lambda: True
        cluster.at_exchange = lambda _node_id: None
        cluster.heal()
        for disk in cluster.disks.values():
            disk.full = False
        self._faults.forget()
        for node_id in cluster.ids:
            if node_id not in cluster.nodes:
                cluster.start(node_id)
        end = cluster.clock.now + _CALM_S
        halfway = end - _CALM_S / 2
        while cluster.clock.now < end:
            self._knock()
            self._step()
            if cluster.clock.now >= halfway and cluster.propose(b"calm"):
                # A differing state shows with the next entry, and is rebuilt.
                halfway = float("inf")
        if cluster.leader() is None:
            if self._undecidable():
                self.note("nobody can tell whose state is right")
                return
            raise InvariantViolated("no leader though nothing is wrong")
        last = b"last"
        cluster.propose(last)
        cluster.run(1.0)
        if last not in cluster.acknowledged:
            raise InvariantViolated("the healed cluster acknowledges nothing")
        cluster.check()
        cluster.check_converged()
        members = cluster.members()
        unfinished = [member.id for member in members.members if member.data and not member.voter]
        if unfinished:
            raise InvariantViolated(f"{unfinished} never became voters")

    def report(self, violation: str) -> Report:
        """Sum the run up."""
        cluster = self._cluster
        for node in cluster.nodes.values():
            self._counters.update(node.group.status().counters)
        states = sorted((node.id, node.machine.digest.hex()) for node in cluster.nodes.values())
        terms = max((node.group.status().term for node in cluster.nodes.values()), default=0)
        self._counters["snapshots"] = cluster.snapshots
        self._counters["outages"] = cluster.outages
        self._counters["reseeded"] = cluster.reseeded
        self._counters["member changes"] = cluster.changes
        return Report(
            seed=self._seed,
            options=self._options,
            virtual_s=self.elapsed(),
            proposed=self._proposed,
            acknowledged=len(cluster.acknowledged),
            reads=self._reads,
            crashes=self._crashes,
            terms=terms,
            violation=violation,
            digest=f"{_digest_of(states)}-{len(cluster.acknowledged)}-{terms}",
            counters=self._counters,
        )

    def _step(self) -> None:
        self._cluster.run(_STEP_S)
        self._cluster.check()

    def _clients(self) -> None:
        random, options = self._random, self._options
        if self._cluster.rests and self.elapsed() % _PAUSES_S > _BUSY_S:
            return
        if random.random() < options.propose:
            # Now and then a burst fills every window.
            burst = 80 if random.random() < 0.01 else random.choice((1, 1, 3, 8))
            for _ in range(burst):
                # Ask any node that believes it leads, even a deposed one.
                believers = [n for n in self._cluster.nodes.values() if n.source.term is not None]
                if not believers:
                    break
                node = random.choice(believers)
                # Half of them are so large that no two fit into one small batch.
                size = random.choice((0, 40))
                node.source.propose(f"{self._seed}/{next(self._values)}".ljust(size, ".").encode())
                node.group.wake()
                self._proposed += 1
        if random.random() < options.barrier:
            self._read(random.choice(self._cluster.ids))

    def _read(self, node_id: str) -> None:
        node = self._cluster.nodes.get(node_id)
        if node is None:
            return
        expected = max(self._cluster.acknowledged.values(), default=0)

        def done(confirmed: bool) -> None:
            if confirmed:
                self._reads += 1
                if node.machine.applied_index < expected:
                    raise InvariantViolated(
                        f"a read at {node_id} misses entry {expected}, acknowledged before it"
                    )

        node.group.barrier(done)

    def _network_faults(self) -> None:
        random, options, cluster = self._random, self._options, self._cluster
        if random.random() < options.partition:
            if cluster.network.cut:
                cluster.heal()
                self.note("healed")
            else:
                self._partition()
        if random.random() < options.reconnect:
            one, other = random.sample(cluster.ids, 2)
            self.note(f"reconnect {one} {other}")
            cluster.reconnect(one, other)
        if random.random() < options.stall:
            one, other = random.sample(cluster.ids, 2)
            seconds = random.uniform(0.3, 5.0)
            self.note(f"stall {one} -> {other} for {seconds:.2f} s")
            cluster.network.stall((one, other), seconds)
        if random.random() < options.transfer:
            leader, peer = cluster.leader(), random.choice(cluster.ids)
            if leader is not None and cluster.nodes[leader].group.transfer(peer):
                self.note(f"transfer {leader} -> {peer}")

    def _partition(self) -> None:
        random, cluster = self._random, self._cluster
        nodes = list(cluster.ids)
        random.shuffle(nodes)
        _, cut = halves(nodes, random)
        cluster.network.cut = cut
        self.note(f"cut {sorted(cut)}")

    def _send_away(self) -> None:
        random, cluster = self._random, self._cluster
        self._faults.end_due("cut off")
        if random.random() >= self._options.away:
            return
        node_id, seconds = random.choice(cluster.ids), random.uniform(4.0, 12.0)
        if random.random() < 0.5:
            self._crash(node_id, down_s=seconds)
        else:
            others = "".join(peer for peer in cluster.ids if peer != node_id)
            cluster.cut(node_id, others)
            self._faults.begin("cut off", (node_id,), seconds, cluster.heal)

    def _at_exchange(self, node_id: str) -> None:
        if self._random.random() < self._options.torn:
            self._crash(node_id, down_s=self._random.uniform(0.05, 2.0))

    def _crash(self, node_id: str, *, down_s: float) -> None:
        cluster = self._cluster
        if node_id in cluster.nodes:
            self._crashes += 1
            self._counters.update(cluster.nodes[node_id].group.status().counters)
            cluster.crash(node_id, refused=self._random.random() < 0.7)
            self._is_down(node_id, down_s)

    def _is_down(self, node_id: str, seconds: float) -> None:
        self._faults.begin("down", (node_id,), seconds, partial(self._cluster.start, node_id))

    def _crash_and_restart(self) -> None:
        random, options, cluster = self._random, self._options, self._cluster
        self._faults.end_due("down")
        if random.random() < options.crash:
            # Sometimes kill all nodes: acknowledged entries must be on the disks.
            everyone = random.random() < 0.2
            victims: Iterable[str] = (
                list(cluster.nodes) if everyone else [random.choice(cluster.ids)]
            )
            for node_id in victims:
                self._crash(node_id, down_s=random.uniform(0.05, 4.0))

    def _fill_a_disk(self) -> None:
        random, cluster = self._disks, self._cluster
        if random.random() < self._options.full:
            node_id = random.choice(cluster.ids)
            self.note(f"full {node_id}")
            cluster.disks[node_id].full = True

    def _corrupt_a_state(self) -> None:
        random, cluster = self._disks, self._cluster
        voters = cluster.members().voters
        # A majority must be right and complete.
        if random.random() >= self._options.corrupt or len(voters) < 3:
            return
        if set(voters) != set(cluster.nodes) or any(map(cluster.is_waiting, voters)):
            return
        # Skip: with two of three replicas suspect, no majority can say which state is right. The
        # same holds when the third needs a snapshot first, since suspect replicas serve none.
        logs = [node.group.status() for node in cluster.nodes.values()]
        reach = max(log.log_first for log in logs) <= min(log.log_last for log in logs)
        if not reach or any(node.machine.corrupted for node in cluster.nodes.values()):
            return
        node = cluster.nodes[random.choice(voters)]
        if node.group.running and not cluster.disks[node.id].full:
            self.note(f"corrupt {node.id}")
            node.machine.corrupt()

    def _undecidable(self) -> bool:
        """Return whether two that differ cannot ask a third, which needs a snapshot of one of them.

        Then no node may lead: an operator must say which state is right.
        """
        logs = [node.group.status() for node in self._cluster.nodes.values()]
        reach = max(log.log_first for log in logs) <= min(log.log_last for log in logs)
        return not reach and any(log.in_doubt for log in logs)

    def _given(self, leader: str) -> bool:
        """Keep a corrupted state from being served to others before it was compared.

        The cluster promises nothing beyond that: two of three may have the wrong state then.
        """
        return not self._cluster.nodes[leader].machine.corrupted

    def _members(self) -> None:
        random, options = self._random, self._options
        self._knock()
        change, wipe = random.random() < options.members, random.random() < options.wipe
        if any(node.machine.corrupted for node in self._cluster.nodes.values()):
            return  # Fewer correct nodes would be no majority.
        if change:
            self._change_members()
        if wipe:
            self._wipe()

    def _change_members(self) -> None:
        random, cluster = self._random, self._cluster
        voters = cluster.members().voters
        if len(voters) > 2 and random.random() < 0.5:
            node_id = random.choice(voters)
            if cluster.dismiss(node_id):
                self.note(f"dismiss {node_id}")
            return
        # A removed node may come back with its old data.
        node_id = random.choice(cluster.ids)
        if random.random() < 0.5 and (new := next(self._newcomers, None)) is not None:
            node_id = new
            cluster.add(node_id)
            self._is_down(node_id, random.uniform(0.0, 1.0))
        if cluster.expect(node_id):
            self.note(f"expect {node_id}")

    def _knock(self) -> None:
        """Make every node that was not admitted register itself, now and then."""
        cluster = self._cluster
        for node in list(cluster.nodes.values()):
            asks = self._random.random() < 0.1 and node.fatal is None
            if asks and not cluster.is_let_in(node.id) and cluster.knock(node.id):
                self.note(f"let in {node.id}")

    def _wipe(self) -> None:
        """Wipe a voter's disk, while all others are up and hold every acknowledged entry.

        Two disks lost at once are beyond what three nodes promise.
        """
        cluster = self._cluster
        voters = cluster.members().voters
        if len(voters) < 3 or any(voter not in cluster.nodes for voter in voters):
            return
        if self._wiped is not None and cluster.is_waiting(self._wiped):
            return
        if cluster.is_changing():
            return  # A voter whose promotion is not committed does not make up for a lost one.
        node_id = self._random.choice(voters)
        self.note(f"wipe {node_id}")
        self._crash(node_id, down_s=self._random.uniform(0.05, 2.0))
        cluster.replace_disk(node_id)
        self._wiped = node_id


def _digest_of(value: object) -> str:
    return blake2b(repr(value).encode(), digest_size=6).hexdigest()


def _settings(*, small: bool, in_flight: int) -> RaftSettings:
    if not small:
        return RaftSettings(entries_in_flight_max=in_flight)
    return RaftSettings(
        append_bytes_max=64,
        entry_bytes_max=48,
        cache_bytes_max=256,
        keep_entries=20,
        log_entries_max=100,
        entries_in_flight_max=in_flight,
    )
