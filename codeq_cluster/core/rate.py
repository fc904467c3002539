"""Rate: how often something may happen, and the bucket of tokens that holds it to that."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_MINUTE_NS = 60 * 10**9


class Scope(StrEnum):
    """Who is limited; a tenant has one bucket for each."""

    PRODUCER = "producer"
    WORKER = "worker"
    ADMIN = "admin"
    WEBHOOK = "webhook"


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """A rate, and how far a caller who was quiet may run ahead of it.

    Attributes:
        per_minute: Tokens a minute, above 0.
        burst: Tokens a full bucket holds, above 0.
    """

    per_minute: int
    burst: int

    def __post_init__(self) -> None:
        assert self.per_minute > 0, self
        assert self.burst > 0, self


class TokenBucket:
    """Gives out tokens: never more than the burst and what the rate brings, in any stretch of time.

    It starts full. Everything is counted in whole numbers, so nothing is gained or lost by
    rounding however small the rate is and however often it is asked.

    Args:
        limit: The rate and the burst.
        now_ns: The clock's, monotonic nanoseconds; every call takes the same clock's.
        shares: The bucket is one of so many that share the limit; it holds one token at least.
    """

    __slots__ = ("_full", "_gain", "_level", "_seen_ns", "_token")

    def __init__(self, limit: RateLimit, *, now_ns: int, shares: int = 1) -> None:
        # A minute of the rate is per_minute tokens, so each nanosecond brings per_minute of the
        # units of which a token has as many as a minute has nanoseconds.
        self._gain = limit.per_minute
        self._token = _MINUTE_NS * shares
        self._full = max(limit.burst * _MINUTE_NS, self._token)
        self._level = self._full
        self._seen_ns = now_ns

    @property
    def capacity(self) -> int:
        """Return the whole tokens it holds when full, at least 1."""
        return self._full // self._token

    def held(self, now_ns: int) -> int:
        """Return the whole tokens in it."""
        self._fill(now_ns)
        return self._level // self._token

    def full(self, now_ns: int) -> bool:
        """Return whether it is as good as a new one."""
        self._fill(now_ns)
        return self._level == self._full

    def take(self, tokens: int, now_ns: int) -> int:
        """Take all the tokens or none.

        Args:
            tokens: 1 to `capacity`.
            now_ns: The clock's.

        Returns:
            0 when they are taken, else the nanoseconds until as many are there.
        """
        assert 1 <= tokens <= self.capacity, tokens
        self._fill(now_ns)
        lacking = tokens * self._token - self._level
        if lacking > 0:
            return -(-lacking // self._gain)
        self._level = -lacking
        return 0

    def _fill(self, now_ns: int) -> None:
        passed_ns = now_ns - self._seen_ns
        if passed_ns > 0:
            self._level = min(self._full, self._level + passed_ns * self._gain)
            self._seen_ns = now_ns
