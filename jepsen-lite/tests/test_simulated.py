"""Simulated brokers: the checkers accept a perfect broker, and find every flaw of others."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jepsen_lite.checker.judging import verdicts
from jepsen_lite.operations import History
from jepsen_lite.simulated import Flaw, history

# The guarantee that each flaw breaks; a flaw may break further ones.
BREAKS = {
    Flaw.LOSES: "G1",
    Flaw.ALTERS: "G2",
    Flaw.REFUSES_AND_DOES: "G3",
    Flaw.DOUBLES: "G4",
    Flaw.REPEATS_TOKEN: "G5",
    Flaw.EXPIRES_EARLY: "G6",
    Flaw.TAKES_STALE: "G7",
    Flaw.RESURRECTS: "G8",
    Flaw.HIDES: "G9",
    Flaw.FORGETS_ATTEMPTS: "G10",
    Flaw.IGNORES_DELAY: "G11",
    Flaw.LAST_FIRST: "G12",
    Flaw.IGNORES_PRIORITY: "G13",
    Flaw.DROPS_BEATS: "G14",
    Flaw.READS_STALE: "G15",
}
# The guarantees that every simulated run can judge; the others need nodes, faults or webhooks.
JUDGED = [f"G{n}" for n in range(1, 16)]


@settings(max_examples=15, deadline=None)
@given(st.integers(min_value=0, max_value=2**32))
def test_a_perfect_broker_breaks_no_promise(seed: int) -> None:
    """Every guarantee that a run without faults touches is judged and kept."""
    found = verdicts(History(history(seed, creates=150)))

    assert [] == [v for v in found.values() if v.valid is False]
    assert [] == [name for name in JUDGED if found[name].valid is not True]


@pytest.mark.parametrize("flaw", Flaw, ids=lambda flaw: flaw.name.lower())
def test_every_flaw_is_found(flaw: Flaw) -> None:
    """In a handful of runs, the guarantee that a flaw breaks is found broken."""
    runs = (verdicts(History(history(seed, creates=150, flaw=flaw))) for seed in range(10))

    assert any(found[BREAKS[flaw]].valid is False for found in runs)


def test_every_flaw_has_its_guarantee() -> None:
    """No flaw is without its guarantee."""
    assert set(Flaw) == set(BREAKS)
