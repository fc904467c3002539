"""Versus: each round's ratio compares two samples taken one after the other."""

from __future__ import annotations

from bench.versus import render
from tests.unit.bench.samples import sample


def test_ratios_are_taken_round_by_round() -> None:
    """A machine that is twice as slow in one round changes no ratio."""
    rounds = [
        [sample(per_s=100, cpu_ms=2.0), sample(per_s=250, cpu_ms=1.0)],
        [sample(per_s=50, cpu_ms=4.0), sample(per_s=125, cpu_ms=2.0)],
        [sample(per_s=100, cpu_ms=2.0), sample(per_s=300, cpu_ms=1.0)],
    ]

    first, second = render(["A", "B"], {"create@32": rounds}).splitlines()[1:]

    assert ["create@32", "A", "100"] == first.split()[:3]
    assert ["B", "250"] == second.split()[:2]
    assert second.endswith("x 2.50 (2.50 2.50 3.00); x 0.50")
