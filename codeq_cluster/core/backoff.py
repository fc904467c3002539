"""Backoff: how long a task rests after a nack that names no delay.

b is the base, m the cap and a the number of attempts so far. `draw` is the leader's random number,
so the functions stay pure and every replica gets the same outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

_DOUBLINGS_MAX = 62  # b x 2^62 ms exceeds every cap, so 1000 attempts cost no more.


def backoff_ms(policy: str, *, base_ms: int, max_ms: int, attempts: int, draw: float) -> int:
    """Return the delay in milliseconds, 0 <= delay <= max_ms.

    Args:
        policy: A key of `POLICIES`.
        base_ms: b, at least 0.
        max_ms: m, at least 0.
        attempts: a, deliveries so far, at least 1.
        draw: In [0, 1).
    """
    assert attempts >= 1
    assert 0 <= draw < 1
    return POLICIES[policy](base_ms, max_ms, attempts, draw)


def _fixed(base_ms: int, max_ms: int, _attempts: int, _draw: float) -> int:
    """Return b."""
    return min(base_ms, max_ms)


def _linear(base_ms: int, max_ms: int, attempts: int, _draw: float) -> int:
    """Return b x a."""
    return min(base_ms * attempts, max_ms)


def _exponential(base_ms: int, max_ms: int, attempts: int, _draw: float) -> int:
    """Return b x 2^a."""
    return min(base_ms << min(attempts, _DOUBLINGS_MAX), max_ms)


def _exp_equal_jitter(base_ms: int, max_ms: int, attempts: int, draw: float) -> int:
    """Return half of the exponential delay and a random part of the other half."""
    half_ms = _exponential(base_ms, max_ms, attempts, draw) / 2
    return int(half_ms + draw * half_ms)


def _exp_full_jitter(base_ms: int, max_ms: int, attempts: int, draw: float) -> int:
    """Return a random part of the exponential delay; it may be 0."""
    return int(draw * _exponential(base_ms, max_ms, attempts, draw))


POLICIES: Mapping[str, Callable[[int, int, int, float], int]] = MappingProxyType(
    {
        "fixed": _fixed,
        "linear": _linear,
        "exponential": _exponential,
        "exp_equal_jitter": _exp_equal_jitter,
        "exp_full_jitter": _exp_full_jitter,
    }
)
