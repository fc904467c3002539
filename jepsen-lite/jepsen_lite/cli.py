"""Cli: run, check, report, matrix, soak, sim, mutants, doctor.

Exit statuses: 0 valid, 1 a promise is broken, 2 too little happened to tell, 3 the harness failed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace
from functools import partial
from math import inf
from pathlib import Path

from codeq_cluster.raft.safety_switches import ALL_RULES, SafetySwitches
from jepsen_lite.checker.judging import PROMISES, Exit, Judgement
from jepsen_lite.checker.validity import CALM_P99_MS
from jepsen_lite.checkout import checkout_of
from jepsen_lite.doctor import KindsMissing, available, findings, shim_works
from jepsen_lite.fault_schedule import KINDS, has_effect
from jepsen_lite.hunting import entered, hunt, hunt_simulated, hunted, table
from jepsen_lite.ledger import enter, line_of
from jepsen_lite.mixes import WORKLOADS
from jepsen_lite.mutants import Mutant, mutants, not_simulated
from jepsen_lite.network import NetworkFailed, namespaces_work
from jepsen_lite.report import write
from jepsen_lite.running import HOME, Options, about_run, check, new_directory, run
from jepsen_lite.shims import ShimFailed
from jepsen_lite.sim_faults import PLAYED
from jepsen_lite.simulation import Report, simulate
from tests.harness.waiting import ClusterError

# Within five minutes each of these gets a turn, and a majority keeps its disks. Clock faults must
# be asked for, because they loosen the checks of durations.
DEFAULT_MIX = (
    "kill",
    "pause",
    "partition",
    "packets",
    "reset",
    "restart",
    "power",
    "disk-slow",
    "disk-full",
    "hostile",
)
SOAK_MIX = (
    *DEFAULT_MIX,
    *("membership", "wipe", "disk-error", "clock", "drift", "away", "install", "sink"),
)
_SOAK_SECONDS = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO, stream=sys.stderr)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except (ClusterError, KindsMissing, NetworkFailed, ShimFailed, OSError, ValueError) as failed:
        print(f"jepsen-lite: {failed}", file=sys.stderr)
    except Exception:
        # Python's own status for a crash would mean that a promise was broken.
        logging.getLogger(__name__).exception("the harness failed")
    return Exit.BROKEN


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m jepsen_lite", description=__doc__)
    commands = parser.add_subparsers(required=True)

    one = commands.add_parser("run", help="one run")
    one.add_argument("-w", "--workload", choices=WORKLOADS, default="lifecycle")
    one.add_argument("--seed", type=int, default=None, help="drawn and printed when not given")
    one.set_defaults(command=_run)

    soak = commands.add_parser("soak", help="runs of every workload under drawn faults, one by one")
    soak.add_argument("--hours", type=float, default=1.0)
    soak.add_argument("-w", "--workload", choices=WORKLOADS, default=None)
    soak.add_argument("--seed", type=int, default=None, help="of the first; the next ones follow")
    soak.set_defaults(command=_soak)

    matrix = commands.add_parser("matrix", help="every workload under every kind of fault")
    matrix.add_argument("--seed", type=int, default=1)
    matrix.set_defaults(command=_matrix)

    for each, seconds in ((one, 120.0), (soak, _SOAK_SECONDS), (matrix, _SOAK_SECONDS)):
        each.add_argument("-n", "--nemeses", type=_kinds, default=None, metavar="KIND,…|none")
        each.add_argument("--nodes", type=int, default=3)
        each.add_argument("--shards", type=int, default=0, help="0: the workload's own")
        each.add_argument("--time", type=float, default=seconds, help="seconds under faults")
        each.add_argument("--rate", type=float, default=0, help="creates a second; 0: its own")
        each.add_argument("--source", type=Path, default=HOME.parent, help="the tree to run")
        each.add_argument(
            "--calm-p99",
            type=int,
            default=CALM_P99_MS,
            metavar="MS",
            help="allowed while calibrating; more where the machine is shared",
        )
        each.add_argument("--loopback", action="store_true", help="do not use namespaces")
        each.add_argument(
            "--require",
            action="store_true",
            help="refuse to begin where a kind of fault is missing, instead of leaving it out",
        )
        each.add_argument("--keep", action="store_true", help="keep the data directories")

    sim = commands.add_parser("sim", help="the broker on virtual time, one seed after another")
    sim.add_argument("--seed", type=int, default=0, help="the first; the next ones follow")
    sim.add_argument("--seeds", type=int, default=10)
    sim.add_argument("-j", "--jobs", type=int, default=1, help="processes")
    sim.add_argument("-w", "--workload", choices=PLAYED, default="", help="drawn when not given")
    sim.add_argument("--first", action="store_true", help="stop at the first seed that fails")
    sim.add_argument(
        "--off",
        action="append",
        default=[],
        choices=[rule.name for rule in fields(SafetySwitches)],
        help="switch a rule of the guard off to see what it prevents",
    )
    sim.add_argument("--trace", action="store_true", help="print every fault")
    sim.add_argument("--history", type=Path, default=None, help="of a single seed: write it there")
    sim.set_defaults(command=_sim)

    checking = commands.add_parser("check", help="judge the history of a run once more")
    checking.add_argument("run", type=Path, nargs="+")
    checking.set_defaults(command=_check)

    reporting = commands.add_parser("report", help="draw a run once more")
    reporting.add_argument("run", type=Path, nargs="+")
    reporting.set_defaults(command=_report)

    hunting = commands.add_parser("mutants", help="break the broker and see that runs notice")
    hunting.add_argument(
        "name",
        nargs="*",
        help="M01 …; without one all that no run of this codeq_cluster/ has noticed, by the ledger",
    )
    hunting.add_argument("--seed", type=int, default=1)
    hunting.add_argument("--budget", type=float, default=300, help="seconds a mutant")
    hunting.add_argument(
        "--minutes", type=float, default=inf, help="begin no mutant later than that"
    )
    hunting.add_argument("--sim", action="store_true", help="in simulation, seed by seed")
    hunting.add_argument("--source", type=Path, default=HOME.parent)
    hunting.set_defaults(command=_mutants)

    doctor = commands.add_parser("doctor", help="which faults work on this machine")
    doctor.set_defaults(command=_doctor)
    return parser


def _kinds(text: str) -> tuple[str, ...]:
    names = () if text == "none" else tuple(text.split(","))
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(KINDS)}")
    return names


def _run(given: argparse.Namespace) -> int:
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    nemeses = DEFAULT_MIX if given.nemeses is None else given.nemeses
    return _once(_options(given, given.workload, nemeses, seed))


def _soak(given: argparse.Namespace) -> int:
    first = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    kinds = _there(given.nemeses or SOAK_MIX, given)
    deadline_s = time.monotonic() + given.hours * 3600

    def drawn() -> Iterator[Options]:
        for seed in itertools.count(first):
            if time.monotonic() > deadline_s:
                return
            rng = random.Random(f"{seed}/soak")
            workload = given.workload or rng.choice(list(WORKLOADS))
            fit = [kind for kind in kinds if has_effect(kind, WORKLOADS[workload])]
            nemeses = kinds if given.nemeses else tuple(rng.sample(fit, rng.randint(1, 4)))
            yield _options(given, workload, nemeses, seed)

    return worst_of(drawn(), _once)


def _matrix(given: argparse.Namespace) -> int:
    kinds = _there(given.nemeses or [name for name in KINDS if name != "idle"], given)
    return worst_of(
        (
            _options(given, workload, (kind,), given.seed)
            for workload, kind in itertools.product(WORKLOADS, kinds)
            if has_effect(kind, WORKLOADS[workload])
        ),
        _once,
    )


def worst_of(runs: Iterable[Options], run_once: Callable[[Options], Exit]) -> Exit:
    """Run one after another and return the worst exit.

    A run that the harness fails in has no verdict, and the next one follows; two in a row mean that
    none would have one.

    Raises:
        Exception: The harness failed in two runs in a row.
    """
    worst = Exit.VALID
    failed_before = False
    for options in runs:
        try:
            how = run_once(options)
            failed_before = False
        except Exception:
            if failed_before:
                raise
            logging.getLogger(__name__).exception("the harness failed; the next run follows")
            how, failed_before = Exit.BROKEN, True
        worst = _worse(worst, how)
    return worst


def _worse(worst: Exit, how: Exit) -> Exit:
    """Return the exit of both: a violation, else the first that is not valid."""
    return how if how is Exit.VIOLATION or worst is Exit.VALID else worst


def _there(kinds: Sequence[str], given: argparse.Namespace) -> tuple[str, ...]:
    """Return the kinds of faults that this machine can inject, and print why others are left out.

    Raises:
        KindsMissing: All kinds were required, or none is left.
    """
    there, lacking = available(kinds, require=given.require, loopback=given.loopback)
    for kind, reason in lacking.items():
        print(f"left out: {kind} ({reason})", flush=True)
    return there


def _sim(given: argparse.Namespace) -> int:
    if given.seeds > 1 and (given.trace or given.history):
        raise ValueError("--trace and --history are of one seed: add --seeds 1")
    began = time.monotonic()
    total: Counter[str] = Counter()
    seeds = range(given.seed, given.seed + given.seeds)
    for report in _simulated(given, seeds):
        total.update(report.counters | {"failed": int(bool(report.broken))})
        total["virtual s"] += round(report.virtual_s)
        found = ", ".join(report.violated) or "ok"
        print(
            f"seed {report.seed}: {found}; {report.options.workload},"
            f" {report.counters['acknowledged']} of {report.counters['operations']} acknowledged,"
            f" digest {report.digest}",
            flush=True,
        )
        for line in report.broken:
            print(f"  {line}")
        if report.broken and given.first:
            break
    told = ", ".join(f"{count} {name}" for name, count in total.items() if name != "failed")
    seconds = time.monotonic() - began
    print(f"{total['failed']} of {given.seeds} seeds failed in {seconds:.0f} s: {told}")
    return Exit.VIOLATION if total["failed"] else Exit.VALID


def _simulated(given: argparse.Namespace, seeds: Sequence[int]) -> Iterator[Report]:
    guard = replace(ALL_RULES, **dict.fromkeys(given.off, False))
    one = partial(simulate, workload=given.workload, guard=guard)
    if given.jobs > 1 and len(seeds) > 1:
        with ProcessPoolExecutor(min(given.jobs, len(seeds))) as pool:
            yield from pool.map(one, seeds)
        return
    for seed in seeds:
        yield one(seed, trace=print if given.trace else None, path=given.history)


def _options(
    given: argparse.Namespace, workload: str, nemeses: Sequence[str], seed: int
) -> Options:
    own = [name for name in WORKLOADS[workload].nemeses if name not in nemeses]
    nemeses = _there([*nemeses, *own], given)
    reason = "asked for" if given.loopback else namespaces_work()
    if reason:
        print(f"loopback addresses ({reason})", flush=True)
    return Options(
        workload=workload,
        nemeses=nemeses,
        nodes=given.nodes,
        shards=given.shards or WORKLOADS[workload].shards,
        seconds=given.time,
        rate=given.rate,
        seed=seed,
        source=str(given.source.resolve()),
        calm_p99_ms=given.calm_p99,
        loopback=bool(reason),
        shimmed=not shim_works("disk"),
        keep=given.keep,
    )


def _once(options: Options) -> Exit:
    directory = new_directory(options)
    print(f"{directory}: {options.workload} under {', '.join(options.nemeses) or 'no fault'}")
    judgement = asyncio.run(run(options, directory))
    enter(line_of(directory, judgement))
    _show(directory, judgement)
    print(f"report: {write(directory)}")
    return judgement.exit


def _check(given: argparse.Namespace) -> int:
    worst = Exit.VALID
    for directory in given.run:
        judgement = check(directory)
        _show(directory, judgement)
        worst = _worse(worst, judgement.exit)
    return worst


def _report(given: argparse.Namespace) -> int:
    for directory in given.run:
        print(write(directory))
    return Exit.VALID


def _mutants(given: argparse.Namespace) -> int:
    chosen = mutants(given.name)
    if given.sim:
        return _simulated_mutants(given, chosen)
    # Without the faults that expose it, a mutant goes unnoticed and the checkers look blind.
    available([kind for mutant in chosen for kind in mutant.nemeses], require=True)
    source = given.source.resolve()
    checkout = checkout_of(source)
    print(f"commit {checkout.commit}, codeq_cluster/ {checkout.tree or 'unknown'}", flush=True)
    if not checkout.exact:
        print("no commit has this codeq_cluster/, so nothing is resumed: commit it first")
    hunts = []
    deadline_s = time.monotonic() + 60 * given.minutes
    for mutant in chosen:
        # A mutant named on the command line is run even if the ledger has it noticed.
        before = [] if given.name else entered(mutant, checkout)
        found = hunted(mutant, before)
        if not found.caught and time.monotonic() < deadline_s:
            found = hunt(
                mutant, source=source, seed=given.seed, budget_s=given.budget, before=before
            )
            print(table([found]).splitlines()[-1], flush=True)
        hunts.append(found)
    print(table(hunts))
    left = [each.mutant.name for each in hunts if not each.caught]
    print(f"not noticed: {', '.join(left)}" if left else f"all {len(hunts)} are noticed")
    # Only a mutant that runs have missed shows a hole in the harness; one never run does not.
    if any(each.runs and not each.caught for each in hunts):
        return Exit.VIOLATION
    return Exit.UNKNOWN if left else Exit.VALID


def _simulated_mutants(given: argparse.Namespace, chosen: Sequence[Mutant]) -> int:
    hunts = []
    for mutant in chosen:
        if not given.name and not_simulated(mutant):
            continue
        hunts.append(
            hunt_simulated(
                mutant, source=given.source.resolve(), seed=given.seed, budget_s=given.budget
            )
        )
        print(table(hunts).splitlines()[-1], flush=True)
    print(table(hunts))
    return Exit.VALID if all(each.caught for each in hunts) else Exit.VIOLATION


def _doctor(given: argparse.Namespace) -> int:
    assert given
    for finding in findings():
        print(f"{'no ' if finding.lacks else 'yes'}  {finding.what}: {', '.join(finding.kinds)}")
        if finding.lacks:
            print(f"     {finding.lacks}")
    return Exit.VALID


def _show(directory: Path, judgement: Judgement) -> None:
    words = {True: "kept", False: "BROKEN", None: "not judged"}
    for verdict in judgement.verdicts:
        print(
            f"  {verdict.guarantee:4} {words[verdict.valid]:10} {verdict.checked:7}"
            f"  {PROMISES[verdict.guarantee]}{f' ({verdict.note})' if verdict.note else ''}"
        )
        for violation in verdict.violations[:3]:
            print(f"         {violation.text}  (events {list(violation.events[:8])})")
    for line in judgement.shortcomings:
        print(f"  lacks: {line}")
    print(f"{judgement.exit.name.lower()}: {directory}\nagain: {about_run(directory).command}")
