"""Throttle: tells an address with too many wrong tokens to wait."""

from __future__ import annotations

from collections.abc import Callable

from codeq_cluster.ratelimit.token_bucket import RateLimit, TokenBucket

# Ten wrong tokens at once may be a person with the wrong clipboard; after that, one in six seconds.
FAILURES = RateLimit(per_minute=10, burst=10)
ADDRESSES_MAX = 10_000  # About 200 bytes each; beyond it the oldest one is dropped.

_SECOND_NS = 10**9


class Throttle:
    """Counts failed log-ins by address, on this node.

    Args:
        now_ns: Monotonic nanoseconds.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._buckets: dict[str, TokenBucket] = {}

    def failed(self, address: str) -> int:
        """Count a wrong token.

        Returns:
            For how many seconds the address must wait before its next try, which is then counted;
            0 if this one was within its limit.
        """
        now_ns = self._now_ns()
        bucket = self._buckets.pop(address, None) or TokenBucket(FAILURES, now_ns=now_ns)
        if len(self._buckets) >= ADDRESSES_MAX:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[address] = bucket
        return -(-bucket.take(1, now_ns) // _SECOND_NS)
