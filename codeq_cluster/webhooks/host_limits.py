"""Host limits: how many requests are in progress, in all and to one host."""

from __future__ import annotations


class HostLimits:
    """Counts requests in progress; callers never wait in it.

    Args:
        per_host: At once to one host, so that a slow one cannot take every place.
        total: At once in all.
    """

    def __init__(self, *, per_host: int, total: int) -> None:
        assert 1 <= per_host <= total
        self._per_host = per_host
        self._total = total
        self._taken: dict[str, int] = {}
        self._taken_in_all = 0

    def free(self, host: str) -> int:
        """Return how many more requests to the host may start now."""
        return max(
            0,
            min(self._per_host - self._taken.get(host, 0), self._total - self._taken_in_all),
        )

    def take(self, host: str) -> bool:
        """Take a place and return True, or return False if none is free.

        `give_back` must follow a taken place.
        """
        if not self.free(host):
            return False
        self._taken[host] = self._taken.get(host, 0) + 1
        self._taken_in_all += 1
        return True

    def give_back(self, host: str) -> None:
        """Return a taken place."""
        left = self._taken[host] - 1
        if left:
            self._taken[host] = left
        else:
            del self._taken[host]
        self._taken_in_all -= 1
