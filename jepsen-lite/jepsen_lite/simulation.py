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
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from msgspec import Struct

from codeq_cluster.raft.safety_switches import ALL_RULES, SafetySwitches
from codeq_cluster.settings import RaftSettings
from jepsen_lite.checker.judging import verdicts
from jepsen_lite.checker.verdict import Verdict
from jepsen_lite.gathering import gathers
from jepsen_lite.history import Args, Event, F, Group, Out, Recorder, Type
from jepsen_lite.mixes import WORKLOADS, Mix
from jepsen_lite.operations import MS, SECOND, History
from jepsen_lite.sim_client import SimClient
from jepsen_lite.sim_faults import Options, SimFaults, draw_options, draw_workload
from jepsen_lite.workload import Workload
from tests.simulator.broker import simulated_settings
from tests.simulator.brokers import SimBrokers, bugs_met, drawn_names
from tests.simulator.invariants import Invariant, InvariantBroken

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
    options = draw_options(random, workload or draw_workload(seed))
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
        settings = simulated_settings(shards=options.shards, raft=_raft(small=options.small))
        self._brokers = SimBrokers(options.nodes, random=random, settings=settings, guard=guard)
        self._brokers.client_s = lambda: random.choice((0.0002, 0.001, 0.005))
        self._began = self._brokers.clock.now
        self._observed = 0.0
        self._faults = SimFaults(self._brokers, options, random, tell=self._fault)
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
        # As with real nodes, the checkers relate the time of day to the history's clock by it.
        wall_ms = brokers.nodes[brokers.ids[0]].clocks.wall_ms()
        self._phase("setup", str(wall_ms * MS))
        self._until(brokers.converged, SETTLE_S, "a new cluster has no leaders")
        if not self._finish(self._workload.load()):
            raise InvariantBroken(Invariant.W10, "the rules of the workload cannot be put")
        self._phase("main")
        over = asyncio.Event()
        load = brokers.outside.create_task(self._workload.run(over))
        self._faults.begin()
        self._pass(MAIN_S, faults=True)
        self._faults.end()
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
        self._until(self._relayed, CONVERGE_S, "relays do not reach their shards")
        self._until(brokers.converged, CONVERGE_S, "the replicas do not come together")
        brokers.check_converged()
        self._observe()
        self._phase("end")

    def _pass(self, seconds: float, *, faults: bool) -> None:
        end = self._brokers.clock.now + seconds
        while self._brokers.clock.now < end:
            if faults:
                self._faults.step()
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

    def _relayed(self) -> bool:
        return not self._brokers.relays.waiting

    def _finish(self, work: Coroutine[Any, Any, bool]) -> bool:
        task = self._brokers.outside.create_task(work)
        self._until(task.done, DRAIN_S, "an operation has no end")
        return task.result()

    # The record.

    def _fault(self, name: str, nodes: tuple[str, ...], on: bool) -> None:
        self.note(f"{name} {' '.join(nodes)} {'begins' if on else 'ends'}")
        self._counters[name] += on
        args = Args(
            name=name,
            nodes=nodes,
            on=on,
            amount_ms=self._options.clock_ms if name == "clock" else 0,
        )
        self._recorder.fault(args, Out(applied=len(nodes)))

    def _phase(self, name: str, detail: str = "") -> None:
        self.note(name)
        self._recorder.phase("harness", name, nodes=self._brokers.ids, detail=detail)

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
            "relays": self._brokers.relays.count,
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
        notes=mix.notes * SHARE * 2,
        groups=mix.groups * SHARE * 2,
        graphs=mix.graphs * SHARE * 4,
        uniques=mix.uniques * SHARE * 2,
        orders=mix.orders * SHARE * 4,
        graces=mix.graces * SHARE * 4,
        rejects=mix.rejects * SHARE * 4,
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
