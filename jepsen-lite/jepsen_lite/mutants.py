"""Mutants: the broker broken on purpose, to see that a run finds it.

A mutant is a patch, with lines before it that say what it breaks and which run must notice; one
that other defences hide from every run names the test that does. It is applied to a copy of the
tree, never to the tree itself.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from jepsen_lite.checker.judging import Exit, Judgement
from jepsen_lite.running import HOME, Options, enter_in_ledger, new_directory, run
from jepsen_lite.simulation import PLAYED
from jepsen_lite.workload import WORKLOADS

PATCHES = HOME / "mutants"
SECONDS = 40.0
_TEST_FAILED = 1  # Of pytest's exit statuses.
# What simulations leave out: real files, and changes of membership.
_FILES = ("codeq_cluster/storage/", "codeq_cluster/cluster/snapshots.py")
_MEMBERS = ("membership", "wipe")


class Mutant(Struct, frozen=True, kw_only=True):
    """One way to break the broker.

    Attributes:
        says: What is wrong with it.
        nemeses: Faults under which it shows.
        breaks: The guarantee whose checker must notice.
        seconds: Of load in each run.
        seed: Of the first run, where chance alone would take long; 0 for the one asked for.
        test: Which notices it in place of a run, as pytest names it; or empty.
    """

    name: str
    says: str
    workload: str
    nemeses: tuple[str, ...]
    breaks: str
    patch: Path
    seconds: float = SECONDS
    seed: int = 0
    test: str = ""


class Hunt(Struct, frozen=True, kw_only=True):
    """What became of one mutant.

    Attributes:
        seconds: Of runs, until it was noticed or given up; start and judgement included.
        runs: How many, or how many seeds of a simulation.
        violated: All guarantees the last run found broken.
    """

    mutant: Mutant
    caught: bool
    seconds: float
    runs: int
    violated: tuple[str, ...]


def mutants(names: Sequence[str] = ()) -> list[Mutant]:
    """Return the mutants, all or these.

    Raises:
        ValueError: There is none of that name, or its head lacks something.
    """
    found = {path.stem: _read(path) for path in sorted(PATCHES.glob("*.patch"))}
    unknown = set(names) - found.keys()
    if unknown:
        raise ValueError(f"no mutant {', '.join(sorted(unknown))}; there are {', '.join(found)}")
    return [found[name] for name in names] if names else list(found.values())


@contextmanager
def patched(mutant: Mutant, source: Path) -> Iterator[Path]:
    """Yield a copy of the tree that is broken as the mutant says.

    Raises:
        ValueError: The patch does not fit the tree any more.
    """
    with tempfile.TemporaryDirectory(prefix=f"jepsen-lite-{mutant.name}-") as directory:
        copy = Path(directory)
        shutil.copytree(
            source / "codeq_cluster",
            copy / "codeq_cluster",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        apply(mutant, copy)
        yield copy


def apply(mutant: Mutant, tree: Path, *, only_try: bool = False) -> None:
    """Break a tree, or see whether that can be done.

    Raises:
        ValueError: The patch does not fit the tree any more.
    """
    # One line of context is enough to find the place, and more would go stale sooner.
    command = ["git", "apply", "-p1", "-C1", *(["--check"] if only_try else []), str(mutant.patch)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{mutant.name} does not fit the tree any more: {done.stderr.strip()}")


def hunt(mutant: Mutant, *, source: Path, seed: int, budget_s: float) -> Hunt:
    """Run a mutant under one seed after another until the right checker objects."""
    begun = time.monotonic()
    violated: tuple[str, ...] = ()
    with patched(mutant, source) as copy:
        if mutant.test:
            caught = _fails(mutant.test, source, copy)
            spent_s = time.monotonic() - begun
            return Hunt(mutant=mutant, caught=caught, seconds=spent_s, runs=0, violated=())
        for n in range(100):
            judgement = _once(mutant, copy, (mutant.seed or seed) + n)
            violated = tuple(v.guarantee for v in judgement.verdicts if v.valid is False)
            spent_s = time.monotonic() - begun
            caught = judgement.exit is Exit.VIOLATION and mutant.breaks in violated
            if caught or spent_s > budget_s:
                break
    return Hunt(mutant=mutant, caught=caught, seconds=spent_s, runs=n + 1, violated=violated)


def not_simulated(mutant: Mutant) -> str:
    """Return what a mutant needs to show that simulations leave out; empty when it is all there."""
    patch = mutant.patch.read_text()
    needs = [place for place in _FILES if f"+++ b/{place}" in patch]
    needs += [name for name in mutant.nemeses if name in _MEMBERS]
    if mutant.workload not in PLAYED:
        needs.append(mutant.workload or mutant.test)
    return ", ".join(needs)


def hunt_simulated(mutant: Mutant, *, source: Path, seed: int, budget_s: float) -> Hunt:
    """Simulate a mutant under one seed after another until a seed fails, whatever it finds.

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
            told = subprocess.run(
                [sys.executable, *command],
                # The copy comes first, in the place of the tree.
                cwd=copy,
                env=os.environ | {"PYTHONPATH": f"{copy}{os.pathsep}{HOME}"},
                stdout=subprocess.PIPE,
                check=False,
                timeout=budget_s,
            ).stdout
        except subprocess.TimeoutExpired as late:
            told = late.stdout or b""
    seeds = [line for line in told.decode().splitlines() if line.startswith("seed ")]
    violated = seeds[-1].split(": ", 1)[1].split(";")[0] if seeds else "ok"
    return Hunt(
        mutant=mutant,
        caught=violated != "ok",
        seconds=time.monotonic() - begun,
        runs=len(seeds),
        violated=() if violated == "ok" else tuple(violated.split(", ")),
    )


def table(hunts: Sequence[Hunt]) -> str:
    """Return what became of mutants as a table in Markdown."""
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
        lines.append(
            f"| {mutant.name} | {mutant.says} | {where} | {faults}"
            f" | {'yes' if each.caught else '**no**'} | {runs} | {', '.join(each.violated)} |"
        )
    return "\n".join(lines)


def _fails(test: str, source: Path, copy: Path) -> bool:
    """Run a test on the broken copy; tell whether it failed, and not for another reason."""
    shutil.copytree(source / "tests", copy / "tests")
    shutil.copy(source / "pyproject.toml", copy)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, check=False)
    # Anything else means that there was no such test, or that it could not be run.
    return done.returncode == _TEST_FAILED


def _once(mutant: Mutant, copy: Path, seed: int) -> Judgement:
    options = Options(
        workload=mutant.workload,
        nemeses=mutant.nemeses,
        nodes=3,
        shards=WORKLOADS[mutant.workload].shards,
        seconds=mutant.seconds,
        rate=0,
        seed=seed,
        # What is looked for is a violation, which a busy machine does not make up.
        calm_p99_ms=1000,
        source=str(copy),
        mutant=mutant.name,
    )
    directory = new_directory(options)
    judgement = asyncio.run(run(options, directory))
    enter_in_ledger(directory, judgement)
    for node in directory.glob("n*"):
        shutil.rmtree(node / "data", ignore_errors=True)
        shutil.rmtree(node / "disk", ignore_errors=True)
    return judgement


def _read(path: Path) -> Mutant:
    head, _, _ = path.read_text().partition("\n\n")
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    run = set() if "test" in fields else {"workload", "nemeses"}
    missing = {"says", "breaks", *run} - fields.keys()
    if missing:
        raise ValueError(f"{path.name} lacks {', '.join(sorted(missing))}")
    nemeses = fields.get("nemeses", "none")
    return Mutant(
        name=path.stem,
        says=fields["says"],
        workload=fields.get("workload", ""),
        nemeses=() if nemeses == "none" else tuple(nemeses.split(",")),
        breaks=fields["breaks"],
        seconds=float(fields.get("seconds", SECONDS)),
        seed=int(fields.get("seed", 0)),
        test=fields.get("test", ""),
        patch=path,
    )
