"""Drifting: a process sees the clocks that the harness gives it, and they never step back."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jepsen_lite.drifting import Pace
from jepsen_lite.shims import shim

pytestmark = pytest.mark.needs("gcc")

LOOK = "import time; print(time.monotonic_ns(), time.time_ns(), time.time())"


def looked(pace: Pace) -> tuple[int, int, float]:
    """Return a process's readings of its clocks."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        env={**os.environ, **pace.environment, "LD_PRELOAD": str(shim("clock"))},
        capture_output=True,
        text=True,
        check=True,
    )
    monotonic_ns, wall_ns, wall_s = done.stdout.split()
    return int(monotonic_ns), int(wall_ns), float(wall_s)


def test_all_clocks_of_a_process_gain_alike(tmp_path: Path) -> None:
    """All clocks gain the same while they drift, and keep the gain when they run true again."""
    pace = Pace(tmp_path / "control")
    pace.set(1000.0)
    wrong_from = looked(pace)[0]
    pace.set(0.0)
    assert pace.looks > 0
    skew_ns = round(pace.skew_s * 1e9)

    before_ns, wall_before_ns = time.monotonic_ns(), time.time_ns()
    monotonic_ns, wall_ns, wall_s = looked(pace)
    after_ns, wall_after_ns = time.monotonic_ns(), time.time_ns()

    slack_ns = 1000  # A float of seconds is not exact to the nanosecond.
    assert wrong_from < monotonic_ns
    assert before_ns + skew_ns - slack_ns <= monotonic_ns <= after_ns + skew_ns + slack_ns
    assert wall_before_ns + skew_ns - slack_ns <= wall_ns <= wall_after_ns + skew_ns + slack_ns
    assert abs(wall_s - wall_ns / 1e9) < wall_after_ns / 1e9 - wall_before_ns / 1e9 + 1


def test_a_clock_that_runs_true_counts_no_looks(tmp_path: Path) -> None:
    """A process that never reads a wrong clock is not counted as struck."""
    pace = Pace(tmp_path / "control")
    looked(pace)

    assert 0 == pace.looks
    assert 0 == pace.skew_s


def test_a_jump_moves_the_time_of_day_alone(tmp_path: Path) -> None:
    """The monotonic clock, which measures spans, does not jump."""
    pace = Pace(tmp_path / "control")
    pace.jump(-3600)

    before_ns, wall_before_ns = time.monotonic_ns(), time.time_ns()
    monotonic_ns, wall_ns, _ = looked(pace)
    after_ns, wall_after_ns = time.monotonic_ns(), time.time_ns()

    hour_ns = 3600 * 10**9
    assert before_ns <= monotonic_ns <= after_ns
    assert wall_before_ns - hour_ns <= wall_ns <= wall_after_ns - hour_ns
