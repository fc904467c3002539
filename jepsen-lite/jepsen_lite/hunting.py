"""Hunting: runs a mutant until the right checker notices it, and records that in the ledger."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from jepsen_lite.checker.judging import Exit
from jepsen_lite.checkout import Checkout, checkout_of
from jepsen_lite.ledger import LEDGER, Line, enter, line_of, read, told
from jepsen_lite.mixes import WORKLOADS
from jepsen_lite.mutants import Mutant, not_simulated, patched
from jepsen_lite.running import HOME, Options, new_directory, run

# The most seeds tried on one mutant, over all hunts.
RUNS_MAX = 100
_TEST_WITHIN_S = 300.0
_TEST_FAILED = 1  # pytest's exit status for failed tests.
_HARNESS = ("jepsen_lite", "native", "tests")  # The parts of the harness that its own tests need.


class Hunt(Struct, frozen=True, kw_only=True):
    """The outcome for one mutant.

    Attributes:
        seconds: Of runs, until it was noticed or given up; start and judgement included.
        runs: How many runs, or seeds of a simulation; a test counts as one.
        violated: All guarantees the last run found broken.
    """

    mutant: Mutant
    caught: bool
    seconds: float
    runs: int
    violated: tuple[str, ...]


def hunted(mutant: Mutant, lines: Sequence[Line]) -> Hunt:
    """Return the outcome for a mutant by its lines in the ledger, up to the one that noticed."""
    until = next((n for n, line in enumerate(lines, 1) if _noticed(mutant, line)), len(lines))
    counted = lines[:until]
    return Hunt(
        mutant=mutant,
        caught=bool(counted) and _noticed(mutant, counted[-1]),
        seconds=sum(line.took_s for line in counted),
        runs=len(counted),
        violated=counted[-1].violated if counted else (),
    )


def entered(mutant: Mutant, checkout: Checkout, ledger: Path = LEDGER) -> list[Line]:
    """Return the ledger's lines for this patch on this state of the product, oldest first.

    A state without a commit cannot be identified later, so it has no lines.
    """
    if not checkout.exact:
        return []
    return [
        line
        for line in read(ledger)
        if (line.mutant, line.patch, line.tree) == (mutant.name, mutant.digest, checkout.tree)
    ]


def hunt(
    mutant: Mutant,
    *,
    source: Path,
    seed: int,
    budget_s: float,
    before: Sequence[Line] = (),
    ledger: Path = LEDGER,
) -> Hunt:
    """Run a mutant under one seed after another until the right checker notices it.

    Args:
        mutant: The mutant.
        source: Checkout it is made from.
        seed: Of the first run, unless the mutant has its own.
        budget_s: No run begins later than that, except the first.
        before: Lines of earlier runs, whose seeds are not run again.
        ledger: Gets a line for every run.
    """
    lines = list(before)
    begun = time.monotonic()
    checkout = checkout_of(source)
    with patched(mutant, source) as copy:
        while len(lines) < RUNS_MAX:
            if mutant.test:
                line = _test(mutant, source, copy, checkout)
            else:
                line = _once(mutant, copy, checkout, (mutant.seed or seed) + len(lines))
            enter(line, ledger)
            lines.append(line)
            # A test gives the same result however often it is run.
            if _noticed(mutant, line) or mutant.test or time.monotonic() - begun > budget_s:
                break
    return hunted(mutant, lines)


def hunt_simulated(mutant: Mutant, *, source: Path, seed: int, budget_s: float) -> Hunt:
    """Simulate a mutant under one seed after another until a seed fails, for any reason.

    Raises:
        ValueError: A simulation leaves out what the patch breaks.
    """
    missing = not_simulated(mutant)
    if missing:
        raise ValueError(f"{mutant.name} needs {missing}, which no simulation has")
    begun = time.monotonic()
    with patched(mutant, source) as copy:
        command = ["-m", "jepsen_lite", "sim", "--seed", str(seed), "--seeds", "1000", "--first"]
        try:
            said = subprocess.run(
                [sys.executable, *command],
                # The copy must precede the original tree, or the unbroken product would be
                # imported.
                cwd=copy,
                env=os.environ | {"PYTHONPATH": f"{copy}{os.pathsep}{HOME}"},
                stdout=subprocess.PIPE,
                check=False,
                timeout=budget_s,
            ).stdout
        except subprocess.TimeoutExpired as late:
            said = late.stdout or b""
    seeds = [line for line in said.decode().splitlines() if line.startswith("seed ")]
    violated = seeds[-1].split(": ", 1)[1].split(";")[0] if seeds else "ok"
    return Hunt(
        mutant=mutant,
        caught=violated != "ok",
        seconds=time.monotonic() - begun,
        runs=len(seeds),
        violated=() if violated == "ok" else tuple(violated.split(", ")),
    )


def table(hunts: Sequence[Hunt]) -> str:
    """Return the outcomes of mutants as a table in Markdown."""
    lines = [
        "| mutant | what it does | workload | faults | noticed | after | broken |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in hunts:
        mutant = each.mutant
        faults = ", ".join(mutant.nemeses) or "none"
        runs = f"{each.seconds:.0f} s, {each.runs} run{'s' if each.runs > 1 else ''}"
        runs = f"{each.seconds:.0f} s" if mutant.test else runs
        where = f"`{mutant.test.rpartition('/')[2]}`" if mutant.test else mutant.workload
        noticed = "yes" if each.caught else "**no**"
        lines.append(
            f"| {mutant.name} | {mutant.says} | {where} | {faults}"
            f" | {noticed if each.runs else 'not run'} | {runs if each.runs else ''}"
            f" | {', '.join(each.violated)} |"
        )
    return "\n".join(lines)


def _noticed(mutant: Mutant, line: Line) -> bool:
    return line.verdict == told(Exit.VIOLATION) and mutant.breaks in line.violated


def _test(mutant: Mutant, source: Path, copy: Path, checkout: Checkout) -> Line:
    """Run the mutant's test on the broken copy, and check that it fails for the right reason."""
    harness = HOME.name
    for part in _HARNESS:
        # The harness's tests start programs, and these must import the copy too.
        shutil.copytree(HOME / part, copy / harness / part)
    shutil.copy(source / "pyproject.toml", copy)
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:schemathesis")  # Costly to import.
    command = [sys.executable, "-m", "pytest", *options, mutant.test]
    begun_s, begun = time.monotonic(), dt.datetime.now(dt.UTC)
    done = subprocess.run(
        command,
        cwd=copy,
        env={**os.environ, "PYTHONPATH": f"{copy}{os.pathsep}{copy / harness}"},
        capture_output=True,
        check=False,
        timeout=_TEST_WITHIN_S,
    )
    # Any other status means that the test does not exist or could not be run.
    failed = done.returncode == _TEST_FAILED
    return Line(
        begun=begun.isoformat(timespec="seconds"),
        commit=checkout.commit,
        tree=checkout.tree,
        mutant=mutant.name,
        patch=mutant.digest,
        test=mutant.test,
        took_s=round(time.monotonic() - begun_s, 1),
        verdict=told(Exit.VIOLATION if failed else Exit.VALID),
        violated=(mutant.breaks,) if failed else (),
    )


def _once(mutant: Mutant, copy: Path, checkout: Checkout, seed: int) -> Line:
    options = Options(
        workload=mutant.workload,
        nemeses=mutant.nemeses,
        nodes=3,
        shards=WORKLOADS[mutant.workload].shards,
        seconds=mutant.seconds,
        rate=0,
        seed=seed,
        # A slow machine cannot cause a false violation, so the bound is relaxed.
        calm_p99_ms=1000,
        source=str(copy),
        mutant=mutant.name,
    )
    begun_s = time.monotonic()
    directory = new_directory(options)
    judgement = asyncio.run(run(options, directory, checkout=checkout))
    line = line_of(directory, judgement)
    for node in directory.glob("n*"):
        shutil.rmtree(node / "data", ignore_errors=True)
        shutil.rmtree(node / "disk", ignore_errors=True)
    return msgspec.structs.replace(
        line, patch=mutant.digest, took_s=round(time.monotonic() - begun_s, 1)
    )
