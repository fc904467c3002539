"""Mutants: every patch fits the tree, says what it breaks, and changes what is run."""

from __future__ import annotations

import pytest

from jepsen_lite.checker.judging import PROMISES
from jepsen_lite.mutants import Mutant, mutants, patched
from jepsen_lite.nemesis import KINDS
from jepsen_lite.running import HOME
from jepsen_lite.workload import WORKLOADS

SOURCE = HOME.parent


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_tree(mutant: Mutant) -> None:
    """The patch applies to a copy, the copy compiles, and only the copy is changed."""
    assert mutant.workload in WORKLOADS
    assert set(mutant.nemeses) <= set(KINDS)
    assert mutant.breaks in PROMISES
    with patched(mutant, SOURCE) as copy:
        changed = [
            path
            for path in copy.rglob("*.py")
            if path.read_bytes() != (SOURCE / path.relative_to(copy)).read_bytes()
        ]
        for path in changed:
            compile(path.read_text(), str(path), "exec")

    assert changed


def test_a_mutant_nobody_knows_is_refused() -> None:
    """The names there are come with the refusal."""
    with pytest.raises(ValueError, match="no mutant M99; there are M01"):
        mutants(["M99"])
