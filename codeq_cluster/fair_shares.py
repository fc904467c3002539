"""Fair shares: a node's room for something, of which no holder and no few of them take all.

The rule is the dynamic threshold of shared switch buffers (Choudhury and Hahne, 1998): a holder may
grow to what is then still free. A single holder gets half of the room. Greedy holders that come one
after the other leave a quarter, an eighth, and so on; as units come back, n of them settle at one
part in n + 1 each, and one such part stays free for a holder that has none.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from codeq_cluster.errors import Overloaded


class FairShares:
    """Counts the units that holders have taken of a total.

    Args:
        total: Units at once, at least 1; a single unit is open to every holder.
        name: The room's name in refusals, as in "the room for bodies".
    """

    def __init__(self, total: int, *, name: str) -> None:
        assert total >= 1
        self.free = total
        self.name = name
        self._taken: Counter[str] = Counter()
        self._given_back = asyncio.Event()

    def taken(self, holder: str) -> int:
        """Return the units that a holder has."""
        return self._taken[holder]

    def may_take(self, holder: str, amount: int = 1) -> bool:
        """Return whether a holder may take `amount` more units now."""
        free = self.free - amount
        own = self._taken[holder]
        # A holder's first units come out of what the rule kept free from the others.
        return free >= 0 and (own == 0 or own + amount <= free)

    def check(self, holder: str, amount: int = 1) -> None:
        """Raise Overloaded unless a holder may take `amount` more units now."""
        if not self.may_take(holder, amount):
            raise Overloaded(self.name)

    def take(self, holder: str, amount: int = 1) -> None:
        """Take units for a holder; raises Overloaded."""
        self.check(holder, amount)
        self.free -= amount
        self._taken[holder] += amount

    def give_back(self, holder: str, amount: int = 1) -> None:
        """Give units back; waiting holders look again."""
        assert 0 <= amount <= self._taken[holder], "more is given back than was taken"
        self.free += amount
        self._taken[holder] -= amount
        if not self._taken[holder]:
            del self._taken[holder]
        self._given_back.set()

    @contextmanager
    def one(self, holder: str) -> Iterator[None]:
        """Take one unit until the end of the block; raises Overloaded."""
        self.take(holder)
        try:
            yield
        finally:
            self.give_back(holder)

    async def take_in_time(self, holder: str) -> None:
        """Wait for one unit and take it.

        The caller bounds the number of those who wait, and their time.
        """
        while not self.may_take(holder):
            self._given_back.clear()
            await self._given_back.wait()
        self.take(holder)

    @asynccontextmanager
    async def one_in_time(self, holder: str) -> AsyncIterator[None]:
        """Wait for one unit and keep it until the end of the block, like `take_in_time`."""
        await self.take_in_time(holder)
        try:
            yield
        finally:
            self.give_back(holder)


class NestedShares:
    """Units that users of tenants have taken: a tenant's share is itself shared by its users.

    A single tenant gets half of the room, and a single user of it a quarter.
    """

    def __init__(self, total: int, *, name: str) -> None:
        self._total = total
        self._name = name
        self._tenants = FairShares(total, name=name)
        self._users: dict[str, FairShares] = {}

    @contextmanager
    def one(self, tenant: str, user: str) -> Iterator[None]:
        """Take one unit until the end of the block; raises Overloaded."""
        most = max(1, self._total // 2)
        users = self._users.get(tenant) or FairShares(most, name=self._name)
        with users.one(user), self._tenants.one(tenant):
            self._users[tenant] = users
            try:
                yield
            finally:
                if self._tenants.taken(tenant) == 1:
                    del self._users[tenant]
