"""Mutants: every patch fits the tree and says what it breaks, and only a copy is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from jepsen_lite.checker.judging import PROMISES
from jepsen_lite.fault_schedule import KINDS
from jepsen_lite.hunting import hunt
from jepsen_lite.ledger import read
from jepsen_lite.mixes import WORKLOADS
from jepsen_lite.mutants import Mutant, apply, mutants, patched
from jepsen_lite.running import HOME

SOURCE = HOME.parent


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_tree(mutant: Mutant) -> None:
    """The patch applies, and all names in its head exist; if it fails, rewrite the patch."""
    assert mutant.workload in WORKLOADS or mutant.test
    assert (SOURCE / mutant.test.partition("::")[0]).exists()
    assert set(mutant.nemeses) <= set(KINDS)
    assert mutant.breaks in PROMISES
    apply(mutant, SOURCE, only_try=True)


def test_only_a_copy_is_broken() -> None:
    """One file of the copy differs from the tree's, and it compiles."""
    [mutant] = mutants(["M03"])
    with patched(mutant, SOURCE) as copy:
        [changed] = [
            path
            for path in copy.rglob("*.py")
            if path.read_bytes() != (SOURCE / path.relative_to(copy)).read_bytes()
        ]
        compile(changed.read_text(), str(changed), "exec")

    assert "holding.py" == changed.name


def test_an_unknown_mutant_is_refused() -> None:
    """The refusal lists the known names."""
    with pytest.raises(ValueError, match="no mutant M99; there are M01"):
        mutants(["M99"])


@pytest.mark.parametrize(
    "mutant", [each for each in mutants() if each.test], ids=lambda mutant: mutant.name
)
def test_a_mutant_that_no_run_shows_fails_the_test_it_names(mutant: Mutant, tmp_path: Path) -> None:
    """The test exists, passes on the unchanged tree and fails on the broken copy."""
    ledger = tmp_path / "ledger.jsonl"
    found = hunt(mutant, source=SOURCE, seed=1, budget_s=60, ledger=ledger)
    [line] = read(ledger)

    assert found.caught
    assert (mutant.name, mutant.test, "violation") == (line.mutant, line.test, line.verdict)
    assert line.commit
    assert line.tree
