"""Mutants: deliberate defects of the broker that prove the checkers can find them.

A mutant is a patch whose head names the defect and the run that must notice it. If other defences
hide the defect from every run, the head names a test that notices it. The patch is applied to a
copy of the tree, never to the tree itself.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from jepsen_lite.running import HOME
from jepsen_lite.sim_faults import PLAYED

PATCHES = HOME / "mutants"
SECONDS = 40.0
# Simulations have no real files and no membership changes, so these mutants cannot show there.
_FILES = ("codeq_cluster/storage/", "codeq_cluster/snapshots/")
_MEMBERS = ("membership", "wipe")


class Mutant(Struct, frozen=True, kw_only=True):
    """One deliberate defect of the broker.

    Attributes:
        says: The defect.
        nemeses: Faults under which it shows.
        breaks: The guarantee whose checker must notice.
        seconds: Of load in each run.
        seed: Of the first run, if a random seed would rarely show it; 0 for the requested seed.
        test: The pytest name of a test that notices it in place of a run; or empty.
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

    @property
    def digest(self) -> str:
        """First 12 digits of the patch's hash: a changed patch is a different mutant."""
        return hashlib.sha256(self.patch.read_bytes()).hexdigest()[:12]


def mutants(names: Sequence[str] = ()) -> list[Mutant]:
    """Return the mutants, all or these.

    Raises:
        ValueError: No mutant has that name, or its head lacks something.
    """
    found = {path.stem: _read(path) for path in sorted(PATCHES.glob("*.patch"))}
    unknown = set(names) - found.keys()
    if unknown:
        raise ValueError(f"no mutant {', '.join(sorted(unknown))}; there are {', '.join(found)}")
    return [found[name] for name in names] if names else list(found.values())


@contextmanager
def patched(mutant: Mutant, source: Path) -> Iterator[Path]:
    """Yield a copy of the tree with the mutant's defect.

    Raises:
        ValueError: The patch no longer fits the tree.
    """
    with tempfile.TemporaryDirectory(prefix=f"jepsen-lite-{mutant.name}-") as directory:
        copy = Path(directory)
        # Simulations and the mutants' own tests import the second one.
        for part in ("codeq_cluster", "tests"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source / part, copy / part, ignore=ignored)
        apply(mutant, copy)
        yield copy


def apply(mutant: Mutant, tree: Path, *, only_try: bool = False) -> None:
    """Break a tree, or only check that this is possible.

    Raises:
        ValueError: The patch no longer fits the tree.
    """
    # One line of context finds the place; with more, the patch would go stale sooner.
    command = ["git", "apply", "-p1", "-C1", *(["--check"] if only_try else []), str(mutant.patch)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{mutant.name} does not fit the tree any more: {done.stderr.strip()}")


def not_simulated(mutant: Mutant) -> str:
    """Return what the mutant needs that simulations leave out; empty if they have it all."""
    patch = mutant.patch.read_text()
    needs = [place for place in _FILES if f"+++ b/{place}" in patch]
    needs += [name for name in mutant.nemeses if name in _MEMBERS]
    if mutant.workload not in PLAYED:
        needs.append(mutant.workload or mutant.test)
    return ", ".join(needs)


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
