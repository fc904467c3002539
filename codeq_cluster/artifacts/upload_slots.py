"""Upload slots: limits uploads in progress, in all and of one tenant."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class UploadSlots:
    """Limits uploads; a caller without a place waits for one.

    A client that sends slowly keeps its place for as long as an upload may take. So no tenant gets
    all places: a quarter of them, at least one, is for other tenants.

    Args:
        total: At once, at least 1; a single place is open to every tenant.
    """

    def __init__(self, total: int) -> None:
        assert total >= 1
        self._share = max(1, total - max(1, total // 4))
        self._all = asyncio.Semaphore(total)
        self._own: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()

    @asynccontextmanager
    async def place(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a place for a tenant and hold it until the end of the block."""
        own = self._own.setdefault(tenant, asyncio.Semaphore(self._share))
        self._users[tenant] += 1
        try:
            async with own, self._all:
                yield
        finally:
            self._users[tenant] -= 1
            if not self._users[tenant]:
                del self._users[tenant], self._own[tenant]
