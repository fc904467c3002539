"""Many runs: a soak and a matrix play every run, and exit with the worst status."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from jepsen_lite.checker.judging import Exit
from jepsen_lite.cli import worst_of
from jepsen_lite.running import Options


def _runs(options: Options, *seeds: int) -> Iterator[Options]:
    for seed in seeds:
        yield replace(options, seed=seed)


def test_a_soak_goes_on_after_a_run_in_which_the_harness_failed(options: Options) -> None:
    """The other runs get verdicts, and the exit status says that one has none."""
    seen: list[int] = []

    def run_once(one: Options) -> Exit:
        seen.append(one.seed)
        if 2 == one.seed:
            raise AssertionError("a fault of the harness")
        return Exit.VALID

    how = worst_of(_runs(options, 1, 2, 3), run_once)

    assert [1, 2, 3] == seen
    assert Exit.BROKEN is how


def test_a_soak_ends_when_the_harness_fails_twice_in_a_row(options: Options) -> None:
    """Further runs would have no verdict either."""

    def run_once(one: Options) -> Exit:
        raise AssertionError(f"seed {one.seed}")

    with pytest.raises(AssertionError, match="seed 2"):
        worst_of(_runs(options, 1, 2, 3), run_once)


def test_a_violation_is_the_exit_of_a_soak_whatever_else_its_runs_were(options: Options) -> None:
    """A violation outweighs a run without a verdict, before it or after it."""
    hows = {1: Exit.UNKNOWN, 2: Exit.VIOLATION, 3: Exit.VALID, 4: Exit.UNKNOWN}

    how = worst_of(_runs(options, *hows), lambda one: hows[one.seed])

    assert Exit.VIOLATION is how
