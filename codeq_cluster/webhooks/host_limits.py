"""Host limits: how many requests of a tenant are in progress to one host."""

from __future__ import annotations

from collections import Counter

Route = tuple[str, str]  # The tenant and the host: one tenant's slow calls delay no other tenant's.


class HostLimits:
    """Counts requests in progress; callers never wait in it.

    Args:
        per_host: Of one tenant at once to one host, so that a slow one cannot take all its places.
    """

    def __init__(self, *, per_host: int) -> None:
        assert per_host >= 1
        self._per_host = per_host
        self._taken: Counter[Route] = Counter()

    def free(self, route: Route) -> int:
        """Return how many more requests may start now."""
        return self._per_host - self._taken[route]

    def take(self, route: Route) -> bool:
        """Take a place and return True, or return False if none is free.

        `give_back` must follow a taken place.
        """
        if not self.free(route):
            return False
        self._taken[route] += 1
        return True

    def give_back(self, route: Route) -> None:
        """Return a taken place."""
        self._taken[route] -= 1
        if not self._taken[route]:
            del self._taken[route]
