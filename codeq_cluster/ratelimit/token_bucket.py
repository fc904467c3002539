"""Token bucket: a limit on how often something may happen, and the bucket that enforces it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_MINUTE_NS = 60 * 10**9


class Scope(StrEnum):
    """The kind of caller that is limited; a tenant has one bucket for each."""

    PRODUCER = "producer"
    WORKER = "worker"
    ADMIN = "admin"
    WEBHOOK = "webhook"


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """A rate, and the tokens that an idle caller can save up.

    Attributes:
        per_minute: Tokens per minute, above 0.
        burst: Tokens in a full bucket, above 0.
    """

    per_minute: int
    burst: int

    def __post_init__(self) -> None:
        assert self.per_minute > 0, self
        assert self.burst > 0, self


class TokenBucket:
    """Gives out tokens: in any stretch of time never more than the burst plus what the rate adds.

    It starts full. All numbers are whole, so rounding gains or loses nothing, however small the
    rate and however frequent the calls.

    Args:
        now_ns: Monotonic nanoseconds; every call uses the same clock.
        shares: The limit is divided among this many buckets; each holds at least one token.
    """

    __slots__ = ("_full", "_gain", "_held", "_seen_ns", "_token")

    def __init__(self, limit: RateLimit, *, now_ns: int, shares: int = 1) -> None:
        # The unit is one 60-billionth of a token, so a nanosecond adds per_minute units: a minute
        # adds per_minute tokens.
        self._gain = limit.per_minute
        self._token = _MINUTE_NS * shares
        self._full = max(limit.burst * _MINUTE_NS, self._token)
        self._held = self._full
        self._seen_ns = now_ns

    @property
    def capacity(self) -> int:
        """Return the number of whole tokens in a full bucket, at least 1."""
        return self._full // self._token

    def held(self, now_ns: int) -> int:
        """Return the number of whole tokens now."""
        self._fill(now_ns)
        return self._held // self._token

    def full(self, now_ns: int) -> bool:
        """Return whether the bucket is equal to a new one."""
        self._fill(now_ns)
        return self._held == self._full

    def take(self, tokens: int, now_ns: int) -> int:
        """Take all the tokens or none.

        Args:
            tokens: 1 to `capacity`.
            now_ns: Of the same clock as before.

        Returns:
            0 when they are taken, else the nanoseconds until that many tokens are there.
        """
        assert 1 <= tokens <= self.capacity, tokens
        self._fill(now_ns)
        lacking = tokens * self._token - self._held
        if lacking > 0:
            return -(-lacking // self._gain)
        self._held = -lacking
        return 0

    def _fill(self, now_ns: int) -> None:
        passed_ns = now_ns - self._seen_ns
        if passed_ns > 0:
            self._held = min(self._full, self._held + passed_ns * self._gain)
            self._seen_ns = now_ns
