"""Running: one run from an empty cluster to a judged history."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import os
import platform
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
from msgspec import Struct

from jepsen_lite.autopsy import states
from jepsen_lite.checker.judging import Exit, Judgement, judge
from jepsen_lite.checker.validity import CALM_P99_MS, Demands, counts, duration_s
from jepsen_lite.checkout import Checkout, checkout_of
from jepsen_lite.client import Client
from jepsen_lite.db import DEADLINE_MS, SECRET, TOKENS, Db, discard
from jepsen_lite.fault_schedule import KINDS, Nemeses
from jepsen_lite.gathering import gathers
from jepsen_lite.history import AUTOPSY, HOSTILE, MEMBERS, F, Out, Recorder, Type, load
from jepsen_lite.mixes import WORKLOADS, minimum_ok
from jepsen_lite.network import LoopbackNetwork, NamespaceNetwork, Network
from jepsen_lite.operations import History
from jepsen_lite.sink import Sink
from jepsen_lite.workload import DRAIN_WITHIN_S, SILENT_S, Workload
from tests.harness.waiting import ClusterError, soon

HOME = Path(__file__).parent.parent
RUNS = HOME / "runs"

CALIBRATE_S = 10.0
# How long the load goes on without faults at the end, so that recovery shows.
RECOVER_S = 18.0
CONVERGE_S = 60.0
# Once a node has ended by itself, every wait at the end takes at most this long.
BROKEN_S = 15.0
OBSERVE_S = 0.5
SETTLED_S = 5.0
RETIRE_AFTER_S = 10.0
SETTLE_WITHIN_S = 40.0
TOLD_WITHIN_S = 60.0
# Extra nodes for the faults that add nodes.
SPARES = {"membership": 2, "wipe": 1}

log = logging.getLogger(__name__)


class Options(Struct, frozen=True, kw_only=True):
    """The options of the command line.

    Attributes:
        nemeses: Kinds of faults, empty for none.
        seconds: Of load under faults.
        rate: Creates per second; 0 for the workload's own.
        source: Tree whose `codeq_cluster` is run.
        calm_p99_ms: The bound of the calibration; 100 on a dedicated machine.
        mutant: Name of the patch that was applied to it, or empty.
        loopback: Nodes have loopback addresses, and no link can be cut.
        shimmed: The disk shim intercepts every node's data directory.
    """

    workload: str
    nemeses: tuple[str, ...]
    nodes: int
    shards: int
    seconds: float
    rate: float
    seed: int
    source: str
    calm_p99_ms: int = CALM_P99_MS
    mutant: str = ""
    loopback: bool = False
    shimmed: bool = True
    keep: bool = False


class Run(Struct, frozen=True, kw_only=True):
    """The contents of `run.json`.

    Attributes:
        begun: UTC, RFC 3339.
        commit, tree: The product's, as in `Checkout`.
        network: `namespaces` or `loopback`.
        demands: The minimum that must happen for the run to count.
    """

    options: Options
    begun: str
    commit: str
    host: str
    python: str
    network: str
    demands: Demands
    command: str
    tree: str = ""


def demands(options: Options) -> Demands:
    """Return the demands on a run with these options."""
    mix = WORKLOADS[options.workload]
    # Kinds of faults with the same target take turns, so each strikes less often.
    round_s: dict[str, float] = {}
    for kind in map(KINDS.__getitem__, options.nemeses):
        round_s[kind.target] = round_s.get(kind.target, 0) + kind.lasts_s
    faults = {
        name: 1
        if KINDS[name].may_be_last
        else max(1, int(options.seconds / round_s[KINDS[name].target] / 2))
        for name in options.nemeses
    }
    moves = any(KINDS[name].moves_leaders for name in options.nemeses)
    # A hostile tenant leaves nothing to recover from.
    recovers = not set(options.nemeses) <= {HOSTILE}
    # Some kinds of faults stop all nodes for long, which leaves less time for work.
    return Demands(
        ok={f: -(-least // 3) for f, least in minimum_ok(mix, seconds=options.seconds).items()},
        faults=faults,
        leader_changes=1 if moves else 0,
        proves=tuple(name for name in mix.proves if name != "G20" or recovers),
        fetch_ms=mix.fetch_ms,
        calm_p99_ms=options.calm_p99_ms,
    )


def settings_of(options: Options) -> dict[str, object]:
    """Return the nodes' settings for the faults and the workload."""
    settings: dict[str, object] = {}
    for name in options.nemeses:
        settings |= KINDS[name].settings
    return settings | dict(WORKLOADS[options.workload].settings)


async def run(options: Options, directory: Path, *, checkout: Checkout | None = None) -> Judgement:
    """Run once and judge; all files stay in `directory`.

    Args:
        options: The options.
        directory: Of this run alone.
        checkout: The checkout that the source was copied from, if it is not one itself.

    Raises:
        ClusterError: The cluster did not come up.
        NetworkFailed: The network could not be created.
    """
    spare = max([0, *(SPARES.get(name, 0) for name in options.nemeses)])
    every = [f"n{n + 1}" for n in range(options.nodes + spare)]
    names, spares = every[: options.nodes], every[options.nodes :]
    network: Network = (
        LoopbackNetwork(every) if options.loopback else NamespaceNetwork(every, seed=options.seed)
    )
    checkout = checkout or checkout_of(Path(options.source))
    about = Run(
        options=options,
        begun=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        commit=checkout.commit,
        tree=checkout.tree,
        host=f"{platform.system()} {platform.release()}, {os.cpu_count()} cores",
        python=platform.python_version(),
        network="loopback" if options.loopback else "namespaces",
        demands=demands(options),
        command=command_of(options),
    )
    (directory / "run.json").write_bytes(msgspec.json.format(msgspec.json.encode(about)))
    async with AsyncExitStack() as stack:
        await network.open()
        stack.push_async_callback(network.close)
        recorder = stack.enter_context(Recorder(directory / "history.ndjson"))
        sink = Sink(network.harness, recorder, secret=SECRET, seed=options.seed)
        await stack.enter_async_context(sink)
        db = Db(
            directory,
            network,
            names,
            shards=options.shards,
            source=Path(options.source),
            spares=spares,
            shimmed=options.shimmed,
            clocks=not {"clock", "drift"}.isdisjoint(options.nemeses),
            sink=sink,
            settings=settings_of(options),
        )
        await stack.enter_async_context(db)
        await _play(options, db, recorder, stack)
    judgement = check(directory)
    if judgement.exit is not Exit.VIOLATION and not options.keep:
        discard(directory)
    return judgement


async def _play(options: Options, db: Db, recorder: Recorder, stack: AsyncExitStack) -> None:
    """Play the phases of a run on a cluster that is ready."""
    sink = db.sink
    assert sink is not None, "a run has one"
    client = Client(
        db.urls,
        recorder,
        TOKENS,
        deadline_ms=DEADLINE_MS,
        webhook=sink.url,
        choices=lambda: db.members,
        gathers=gathers(options.seed),
    )
    await stack.enter_async_context(client)
    mix = WORKLOADS[options.workload]
    mix = msgspec.structs.replace(mix, rate=options.rate or mix.rate)
    workload = Workload(mix, client, seed=options.seed, shards=options.shards)
    nemeses = Nemeses(db, recorder, options.nemeses, seed=options.seed)

    def phase(name: str, detail: str = "") -> None:
        log.info("%s %s", name, detail)
        recorder.phase("harness", name, nodes=db.members, detail=detail)

    # The report needs this event to relate the time of day in the logs to the history's clock.
    phase("setup", str(time.time_ns()))
    if not await workload.load():
        raise ClusterError("the state could not be made as large as it shall be")
    await soon(_Settled(db), within_s=SETTLE_WITHIN_S)
    over = asyncio.Event()
    async with asyncio.TaskGroup() as background:
        observing = background.create_task(_observe(db, recorder))
        phase("calibrate")
        load = background.create_task(workload.run(over))
        await asyncio.sleep(CALIBRATE_S)
        phase("main")
        stop = asyncio.Event()
        injecting = background.create_task(nemeses.run(stop))
        await asyncio.sleep(options.seconds)
        stop.set()
        await injecting
        phase("heal")
        await asyncio.sleep(RECOVER_S if options.nemeses else 0)
        over.set()
        await load
        await _come_to_rest(db, workload, recorder, phase)
        observing.cancel()
    await _examine(db, recorder)


async def _come_to_rest(
    db: Db, workload: Workload, recorder: Recorder, phase: Callable[..., None]
) -> None:
    """Let all operations and tasks end, then read every task."""
    sink = db.sink
    assert sink is not None, "a run has one"
    sink.fails = False
    retired = await db.retire_damaged(within_s=RETIRE_AFTER_S)
    if retired:
        phase("retired", ", ".join(retired))
    workload.nodes = db.serving
    stuck = [name for name in db.serving if not db.nodes[name].running]
    if stuck:
        phase("died", ", ".join(stuck))
    # A cluster that has already failed gets less patience.
    converged = await soon(db.converged, within_s=BROKEN_S if stuck else CONVERGE_S)
    if converged:
        phase("converged")
    drained = await workload.drain(within_s=BROKEN_S if stuck else DRAIN_WITHIN_S)
    phase("drained" if drained else "undrained")
    read = await workload.read_all(silent_s=BROKEN_S if stuck else SILENT_S)
    phase("final" if read else "unread")
    if workload.known.with_webhook:
        await soon(_Told(sink, workload), within_s=TOLD_WITHIN_S)
        phase("delivered")
    await soon(db.converged, within_s=CONVERGE_S if converged else 0)
    await _ask_members(db, recorder)
    phase("end")


class _Settled:
    """Whether every shard has kept its leader for a while: a new cluster spreads them first."""

    def __init__(self, db: Db) -> None:
        self._db = db
        self._leaders: list[str | None] = []
        self._since = time.monotonic()

    async def __call__(self) -> bool:
        leaders = [await self._db.leader(shard) for shard in range(self._db.shards)]
        if leaders != self._leaders or None in leaders:
            self._leaders, self._since = leaders, time.monotonic()
        return time.monotonic() - self._since > SETTLED_S


async def _examine(db: Db, recorder: Recorder) -> None:
    """Kill all nodes at one instant, at rest, and record the rows on their disks."""
    await db.kill_all()
    for name in db.serving:
        node = db.nodes[name]
        groups = await asyncio.to_thread(states, node.data_path, node.directory / "autopsy")
        recorder.record(AUTOPSY, F.STATUS, Type.INFO, node=name, out=Out(groups=groups))


async def _ask_members(db: Db, recorder: Recorder) -> None:
    """Record the members that every node reports; the phase has the expected ones."""
    for name in db.serving:
        groups = await db.memberships(name)
        if groups is not None:
            recorder.record(MEMBERS, F.STATUS, Type.INFO, node=name, out=Out(groups=groups))
    recorder.phase("harness", MEMBERS, nodes=db.members)


class _Told:
    def __init__(self, sink: Sink, workload: Workload) -> None:
        self._sink = sink
        self._workload = workload

    async def __call__(self) -> bool:
        return self._workload.known.with_webhook <= self._sink.told


async def _observe(db: Db, recorder: Recorder) -> None:
    """Record every node's report on its shards, for ever."""
    while True:
        names = db.members
        told = await asyncio.gather(*(db.groups(name) for name in names))
        for name, groups in zip(names, told, strict=True):
            if groups is not None:
                out = Out(groups=groups)
                recorder.record("observer", F.STATUS, Type.INFO, node=name, out=out)
        await asyncio.sleep(OBSERVE_S)


def check(directory: Path) -> Judgement:
    """Judge the history of a run, and write the findings down."""
    about = about_run(directory)
    history = History(load(directory / "history.ndjson"))
    judgement = judge(history, about.demands)
    told = {
        "exit": judgement.exit.name.lower(),
        "shortcomings": judgement.shortcomings,
        "verdicts": judgement.verdicts,
        "counts": counts(history),
        "seconds": round(duration_s(history), 1),
    }
    (directory / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(told)))
    return judgement


def about_run(directory: Path) -> Run:
    """Read the options of a run."""
    return msgspec.json.decode((directory / "run.json").read_bytes(), type=Run)


def new_directory(options: Options) -> Path:
    """Create the directory of a run."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    name = f"{stamp}-{options.workload}-{options.seed}"
    directory = RUNS / (f"{name}-{options.mutant}" if options.mutant else name)
    directory.mkdir(parents=True)
    return directory


def command_of(options: Options) -> str:
    """Return the command line that repeats a run."""
    words = [
        "python -m jepsen_lite run",
        f"-w {options.workload}",
        f"-n {','.join(options.nemeses) or 'none'}",
        f"--nodes {options.nodes} --shards {options.shards}",
        f"--time {options.seconds:g} --seed {options.seed}",
    ]
    if options.rate:
        words.append(f"--rate {options.rate:g}")
    if options.calm_p99_ms != CALM_P99_MS:
        words.append(f"--calm-p99 {options.calm_p99_ms}")
    if options.mutant:
        words = [f"python -m jepsen_lite mutants {options.mutant} --seed {options.seed}"]
    if options.loopback:
        words.append("--loopback")
    return " ".join(words)
