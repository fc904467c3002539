"""Throttle: tells an address whose tokens are refused too often to wait."""

from __future__ import annotations

from collections.abc import Callable

from codeq_cluster.ratelimit.token_bucket import RateLimit, TokenBucket

ADDRESSES_MAX = 10_000  # About 200 bytes each; beyond it the oldest one is dropped.

_SECOND_NS = 10**9


class Throttle:
    """Counts refused tokens by address, on this node.

    Args:
        limit: Of one address.
        now_ns: Monotonic nanoseconds.
    """

    def __init__(self, limit: RateLimit, now_ns: Callable[[], int]) -> None:
        self._limit = limit
        self._now_ns = now_ns
        self._buckets: dict[str, TokenBucket] = {}

    def failed(self, address: str) -> int:
        """Count a wrong token.

        Returns:
            For how many seconds the address must wait before its next try, which is then counted;
            0 if this one was within its limit.
        """
        now_ns = self._now_ns()
        bucket = self._buckets.pop(address, None) or TokenBucket(self._limit, now_ns=now_ns)
        if len(self._buckets) >= ADDRESSES_MAX:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[address] = bucket
        return -(-bucket.take(1, now_ns) // _SECOND_NS)
