"""Back-off delays follow their formulas and stay within their cap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.core.backoff import POLICIES, backoff_ms


@pytest.mark.parametrize(
    ("policy", "delays_ms"),
    [
        ("fixed", [5_000, 5_000, 5_000, 5_000]),
        ("linear", [5_000, 10_000, 15_000, 900_000]),
        ("exponential", [10_000, 20_000, 40_000, 900_000]),
        ("exp_equal_jitter", [7_500, 15_000, 30_000, 675_000]),
        ("exp_full_jitter", [5_000, 10_000, 20_000, 450_000]),
    ],
)
def test_delays_grow_with_the_attempts(policy: str, delays_ms: list[int]) -> None:
    """The delays are for b = 5 s, m = 900 s and the middle of every random range."""
    assert delays_ms == [
        backoff_ms(policy, base_ms=5_000, max_ms=900_000, attempts=attempts, draw=0.5)
        for attempts in (1, 2, 3, 1000)
    ]


@given(
    policy=st.sampled_from(sorted(POLICIES)),
    base_ms=st.integers(0, 10**9),
    max_ms=st.integers(0, 10**9),
    attempts=st.integers(1, 10**6),
    draw=st.floats(0, 1, exclude_max=True),
)
def test_no_delay_leaves_its_bounds(
    *, policy: str, base_ms: int, max_ms: int, attempts: int, draw: float
) -> None:
    """0 <= delay <= m, whatever the attempts."""
    delay_ms = backoff_ms(policy, base_ms=base_ms, max_ms=max_ms, attempts=attempts, draw=draw)

    assert 0 <= delay_ms <= max_ms


def test_half_of_an_equal_jitter_is_sure() -> None:
    """The shortest equal jitter is half of the exponential delay; the shortest full jitter is 0."""
    least = {
        policy: backoff_ms(policy, base_ms=100, max_ms=10_000, attempts=1, draw=0)
        for policy in ("exp_equal_jitter", "exp_full_jitter")
    }

    assert {"exp_equal_jitter": 100, "exp_full_jitter": 0} == least
