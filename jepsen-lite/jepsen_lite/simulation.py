"""Simulation: the real broker on virtual time, under drawn faults, judged like any other run.

A seed draws a workload, sizes and a mix of faults, so that some runs are mostly quiet and others
stack everything. Invariants are checked during the run, and the history is checked like that of
real nodes. Every choice comes from the seed: a seed repeats its run to the last event.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from functools import partial
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from msgspec import Struct

from codeq_cluster.raft.safety_switches import ALL_RULES, SafetySwitches
from codeq_cluster.settings import RaftSettings
from codeq_cluster.testing.invariants import Invariant, InvariantBroken
from codeq_cluster.testing.sim_broker import BrokerSettings
from codeq_cluster.testing.sim_brokers import SimBrokers, bugs_met, drawn_names
from codeq_cluster.testing.sim_network import NetworkFaults
from jepsen_lite.checker.judging import verdicts
from jepsen_lite.checker.verdict import Verdict
from jepsen_lite.gathering import gathers
from jepsen_lite.history import Args, Event, F, Group, Out, Recorder, Type
from jepsen_lite.operations import SECOND, History
from jepsen_lite.sim_client import SimClient
from jepsen_lite.workload import WORKLOADS, Mix, Workload

STEP_S = 0.02
SETTLE_S = 5.0
MAIN_S = 14.0
CALM_S = 8.0
# Longer than the longest deadline plus the longest wait.
ANSWERED_S = 20.0
DRAIN_S = 150.0
CONVERGE_S = 20.0
OBSERVE_S = 1.0
DEADLINE_MS = 4000
# The share of the workload's own rate. Many small seeds find more than a few large ones.
SHARE = 0.2
# Only real nodes have receivers of webhooks, membership changes and gigabytes.
PLAYED = tuple(name for name in WORKLOADS if name not in {"webhooks", "membership", "big-state"})


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


class Report(Struct, frozen=True, kw_only=True):
    """The result of one seed.

    Attributes:
        broken: The violations, one line each; empty if there is none.
        verdicts: The checkers' verdicts; empty if a broken invariant ended the run.
        invariant: The name of that invariant, or empty.
        digest: The same seed gives the same digest.
        counters: How often each kind of event happened.
    """

    seed: int
    options: Options
    broken: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    invariant: str
    virtual_s: float
    digest: str
    counters: dict[str, int]

    @property
    def violated(self) -> tuple[str, ...]:
        """Names of the guarantees and the invariant that were found broken."""
        names = [verdict.guarantee for verdict in self.verdicts if verdict.valid is False]
        return (*names, *filter(None, (self.invariant,)))


def draw_options(random: Random, workload: str = "") -> Options:
    """Draw a workload and a mix of faults: each is present in about half of the seeds."""

    def sometimes(value: float) -> float:
        return value if random.random() < 0.5 else 0.0

    played = random.choice(PLAYED)
    return Options(
        workload=workload or played,
        nodes=random.choice((("A", "B", "C"),) * 4 + (("A", "B", "C", "D", "E"),)),
        shards=random.choice((1, 1, 2)),
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


def simulate(
    seed: int,
    *,
    workload: str = "",
    guard: SafetySwitches = ALL_RULES,
    trace: Callable[[str], None] | None = None,
    path: Path | None = None,
) -> Report:
    """Run one seed to its end or to the first broken invariant, and judge it.

    Args:
        seed: Decides everything.
        workload: Replaces the drawn one.
        guard: Rules of the guard around the library; tests show what one prevents.
        trace: Called with a line for every fault.
        path: The file for the history; None writes none.
    """
    random = Random(seed)
    options = draw_options(random, workload)
    with ExitStack() as stack:
        bugs = stack.enter_context(bugs_met())
        stack.enter_context(drawn_names(Random(f"{seed}/names")))
        run = _Run(seed, options, random, guard=guard, trace=trace)
        stack.callback(run.close)
        stack.enter_context(run.record(path))
        broken, invariant = "", ""
        try:
            run.play()
        except InvariantBroken as found:
            broken, invariant = str(found), found.invariant.name
        except Exception as failed:  # noqa: BLE001 - whatever it is, the seed has found it
            broken, invariant = f"{type(failed).__name__}: {failed}", "bug"
            if trace is not None:
                trace("".join(traceback.format_exception(failed)))
        if not broken and bugs:
            broken, invariant = f"logged: {type(bugs[0]).__name__}: {bugs[0]}", "bug"
        return run.report(broken, invariant)


class _Run:
    """One seed."""

    def __init__(
        self,
        seed: int,
        options: Options,
        random: Random,
        *,
        guard: SafetySwitches,
        trace: Callable[[str], None] | None,
    ) -> None:
        self._seed = seed
        self._options = options
        self._random = random
        self._trace = trace
        settings = BrokerSettings(
            shards=options.shards, raft=_raft(small=options.small), guard=guard
        )
        self._brokers = SimBrokers(options.nodes, random=random, settings=settings)
        self._brokers.outage_s = lambda: random.choice((0.05, 0.5, 3.0))
        self._brokers.snapshot_s = lambda: random.choice((0.001, 0.02, 0.2, 1.5))
        self._brokers.client_s = lambda: random.choice((0.0002, 0.001, 0.005))
        self._began = self._brokers.clock.now
        self._observed = 0.0
        # Active faults with an end of their own: due time, name, nodes, and the call that ends it.
        self._ends: list[tuple[float, str, tuple[str, ...], Callable[[], None]]] = []
        self._recorder: Recorder
        self._workload: Workload
        self._counters: Counter[str] = Counter()

    def record(self, path: Path | None) -> Recorder:
        """Run the simulation."""
        clock = self._brokers.clock
        self._recorder = Recorder(path, clock_ns=lambda: int(clock.now * SECOND))
        client = SimClient(
            self._brokers,
            self._recorder,
            deadline_ms=DEADLINE_MS,
            gathers=gathers(self._seed),
        )
        mix = _mix(WORKLOADS[self._options.workload])
        self._workload = Workload(mix, client, seed=self._seed, shards=self._options.shards)
        return self._recorder

    def close(self) -> None:
        """Stop all nodes of the simulation."""
        self._brokers.close()

    def note(self, what: str) -> None:
        """Write one line of the trace."""
        if self._trace is not None:
            self._trace(f"{self._brokers.clock.now - self._began:8.3f}  {what}")

    # The phases.

    def play(self) -> None:
        """Play the phases.

        Raises:
            InvariantBroken: An invariant does not hold.
        """
        brokers, options = self._brokers, self._options
        self.note(f"options {options}")
        for node_id in brokers.ids:
            brokers.start(node_id)
        self._phase("setup")
        self._until(brokers.converged, SETTLE_S, "a new cluster has no leaders")
        self._phase("main")
        over = asyncio.Event()
        load = brokers.outside.create_task(self._workload.run(over))
        self._begin_weather()
        self._pass(MAIN_S, faults=True)
        self._heal()
        self._phase("heal")
        self._pass(CALM_S, faults=False)
        brokers.outside.enter(over.set)
        self._until(load.done, ANSWERED_S, "an operation has no end")
        load.result()
        self._until(brokers.converged, CONVERGE_S, "the replicas do not come together")
        self._phase("converged")
        drained = self._finish(self._workload.drain())
        self._phase("drained" if drained else "undrained")
        self._phase("final" if self._finish(self._workload.read_all()) else "unread")
        self._until(brokers.converged, CONVERGE_S, "the replicas do not come together")
        brokers.check_converged()
        self._observe()
        self._phase("end")

    def _pass(self, seconds: float, *, faults: bool) -> None:
        end = self._brokers.clock.now + seconds
        while self._brokers.clock.now < end:
            if faults:
                self._begin_faults()
            self._step()

    def _step(self) -> None:
        self._brokers.run(STEP_S)
        now = self._brokers.clock.now
        if now >= self._observed + OBSERVE_S:
            self._observe()

    def _until(self, done: Callable[[], bool], seconds: float, otherwise: str) -> None:
        end = self._brokers.clock.now + seconds
        while not done():
            if self._brokers.clock.now >= end:
                raise InvariantBroken(Invariant.W10, f"{otherwise}, in {seconds:.0f} s")
            self._step()

    def _finish(self, work: Coroutine[Any, Any, bool]) -> bool:
        task = self._brokers.outside.create_task(work)
        self._until(task.done, DRAIN_S, "an operation has no end")
        return task.result()

    # Faults.

    def _begin_weather(self) -> None:
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
            self._fault("packets", brokers.ids, on=True)
        else:
            brokers.network.faults = NetworkFaults(delays_s=delays)
        if options.slow_disk:
            brokers.flush_s = self._slow_flush
            self._fault("disk-slow", brokers.ids, on=True)
        else:
            brokers.flush_s = lambda: random.choice((0.0002, 0.001, 0.004))

    def _begin_faults(self) -> None:
        random, options, brokers = self._random, self._options, self._brokers
        now = brokers.clock.now
        for due in [each for each in self._ends if each[0] <= now]:
            self._end(due)
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

    def _last(self, name: str, nodes: tuple[str, ...], s: float, heal: Callable[[], None]) -> None:
        """Record a fault that has begun, and plan its end."""
        self._fault(name, nodes, on=True)
        self._ends.append((self._brokers.clock.now + s, name, nodes, heal))

    def _struck(self, name: str, *nodes: str) -> bool:
        """Return whether a fault of this name is active on one of the nodes, or on any."""
        return any(each[1] == name and set(each[2]) & set(nodes or each[2]) for each in self._ends)

    def _end(self, due: tuple[float, str, tuple[str, ...], Callable[[], None]]) -> None:
        self._ends.remove(due)
        _, name, nodes, heal = due
        heal()
        self._fault(name, nodes, on=False)

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
        self._last(
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
        if node_id in self._brokers.nodes and not self._struck("pause", node_id):
            seconds = self._random.choice((0.2, 1.0, 3.0, 6.0))
            self._brokers.pause(node_id, seconds)
            self._last("pause", (node_id,), seconds, lambda: None)

    def _partition(self) -> None:
        random, brokers = self._random, self._brokers
        if self._struck("partition"):
            return
        nodes = list(brokers.ids)
        random.shuffle(nodes)
        leader = brokers.leader(random.randrange(self._options.shards))
        if leader is not None and random.random() < 0.5:
            nodes.remove(leader)
            nodes.insert(0, leader)
        size = random.randint(1, len(nodes) - 1)
        here, there = nodes[:size], nodes[size:]
        cut = {(one, other) for one in here for other in there}
        if random.random() < 0.7:
            cut |= {(other, one) for one, other in cut}
        brokers.cut(cut)
        heal = partial(brokers.cut, set())
        self._last("partition", tuple(sorted(here)), random.uniform(0.3, 9.0), heal)

    def _reconnect(self) -> None:
        one, other = self._random.sample(self._brokers.ids, 2)
        if one in self._brokers.nodes and other in self._brokers.nodes:
            self._brokers.reconnect(one, other)
            self._last("reconnect", (one, other), 0.5, lambda: None)

    def _isolate(self) -> None:
        node_id = self._random.choice(self._brokers.ids)
        if not self._struck("cut-off-clients", node_id):
            self._brokers.isolated.add(node_id)
            heal = partial(self._brokers.isolated.discard, node_id)
            self._last("cut-off-clients", (node_id,), self._random.uniform(0.5, 5.0), heal)

    def _fill(self) -> None:
        node_id = self._random.choice(self._brokers.ids)
        if self._struck("disk-full") or node_id not in self._brokers.nodes:
            return
        disks = self._brokers.disks[node_id]
        for disk in disks:
            disk.full = True

        def heal() -> None:
            for disk in disks:
                disk.full = False

        self._last("disk-full", (node_id,), self._random.uniform(0.2, 4.0), heal)

    def _transfer(self) -> None:
        random, brokers = self._random, self._brokers
        shard = random.randrange(self._options.shards)
        leader, peer = brokers.leader(shard), random.choice(brokers.ids)
        if leader is not None:
            node = brokers.nodes[leader]
            node.loop.enter(node.groups[shard].transfer, peer)
            self._last("transfer", (leader,), 1.0, lambda: None)

    def _move_clock(self) -> None:
        node_id = self._random.choice(self._brokers.ids)
        if self._struck("clock", node_id):
            return
        ms = self._random.choice((-1, 1)) * self._options.clock_ms
        self._brokers.move_clock(node_id, ms)
        heal = partial(self._brokers.move_clock, node_id, 0)
        self._last("clock", (node_id,), self._random.uniform(0.5, 6.0), heal)

    def _target(self) -> str:
        """Draw a node, half of the time one that leads."""
        leader = self._brokers.leader(self._random.randrange(self._options.shards))
        if leader is not None and self._random.random() < 0.5:
            return leader
        return self._random.choice(self._brokers.ids)

    def _heal(self) -> None:
        for due in list(self._ends):
            self._end(due)
        brokers, options = self._brokers, self._options
        brokers.network.faults = NetworkFaults()
        brokers.flush_s = lambda: 0.001
        for name, lasted in (("packets", options.packets), ("disk-slow", options.slow_disk)):
            if lasted:
                self._fault(name, brokers.ids, on=False)

    def _slow_flush(self) -> float:
        if self._random.random() < 0.02:
            return self._random.uniform(0.05, 0.5)
        return self._random.choice((0.001, 0.004, 0.02))

    # The record.

    def _fault(self, name: str, nodes: tuple[str, ...], *, on: bool) -> None:
        self.note(f"{name} {' '.join(nodes)} {'begins' if on else 'ends'}")
        self._counters[name] += on
        args = Args(
            name=name,
            nodes=nodes,
            on=on,
            amount_ms=self._options.clock_ms if name == "clock" else 0,
        )
        out = Out(applied=len(nodes))
        self._recorder.record("nemesis", F.FAULT, Type.INFO, args=args, out=out)

    def _phase(self, name: str) -> None:
        self.note(name)
        args = Args(name=name, nodes=self._brokers.ids)
        self._recorder.record("harness", F.PHASE, Type.INFO, args=args)

    def _observe(self) -> None:
        self._observed = self._brokers.clock.now
        self._brokers.look_closely()
        for node_id, node in sorted(self._brokers.nodes.items()):
            groups = tuple(
                Group(
                    shard=shard,
                    leads=engine.leads,
                    term=group.status().term,
                    applied=engine.applied_index,
                    digest=engine.digest.hex(),
                )
                for shard, (engine, group) in enumerate(zip(node.engines, node.groups, strict=True))
            )
            out = Out(groups=groups)
            self._recorder.record("observer", F.STATUS, Type.INFO, node=node_id, out=out)

    def report(self, broken: str, invariant: str) -> Report:
        """Judge, and sum the run up."""
        if broken:
            self.note(broken)
        events = self._recorder.events
        history = History(events)
        judged = () if broken else tuple(verdicts(history).values())
        found = [broken] if broken else []
        found += [
            f"{verdict.guarantee}: {violation.text}"
            for verdict in judged
            if verdict.valid is False
            for violation in (*verdict.violations[:3],)
        ]
        acknowledged = sum(op.ok for op in history.ops)
        entries = sum(watch.entries for watch in self._brokers.watches)
        counters = {
            "operations": len(history.ops),
            "acknowledged": acknowledged,
            "entries": entries,
            **self._brokers.counters,
            **self._counters,
        }
        return Report(
            seed=self._seed,
            options=self._options,
            broken=tuple(found),
            verdicts=judged,
            invariant=invariant,
            virtual_s=self._brokers.clock.now - self._began,
            digest=_digest(events),
            counters=counters,
        )


def _mix(mix: Mix) -> Mix:
    return msgspec.structs.replace(
        mix,
        rate=mix.rate * SHARE,
        producers=min(3, mix.producers),
        workers=max(4, int(mix.workers * SHARE)),
        cancels=mix.cancels * SHARE,
        reads=mix.reads * SHARE,
        requeues=mix.requeues * SHARE,
    )


def _raft(*, small: bool) -> RaftSettings:
    if not small:
        return RaftSettings()
    return RaftSettings(
        append_bytes_max=2**16,
        entry_bytes_max=2**15,
        cache_bytes_max=2**12,
        keep_entries=5,
        log_entries_max=40,
    )


def _digest(events: list[Event]) -> str:
    encoder = msgspec.json.Encoder()
    running = blake2b(digest_size=6)
    for event in events:
        running.update(encoder.encode(event))
    return running.hexdigest()
