"""Loan: what a node knows and holds of a bucket of tokens that another node keeps."""

from __future__ import annotations

import asyncio

# What an owner said holds so long: unused tokens are forgotten, a refusal is asked for again, and
# one that was silent is not asked again before.
HOLD_NS = 10**9


class Loan:
    """What this node has of one bucket: tokens not used yet, and the last refusal.

    Attributes:
        asking: Held by whoever asks the owner; the others wait, for the answer may serve them too.
        needed: Tokens wanted by all who ask or wait.
    """

    __slots__ = ("_ask_ns", "_held", "_held_until_ns", "_refused", "_retry_ns", "asking", "needed")

    def __init__(self) -> None:
        self.asking = asyncio.Lock()
        self.needed = 0
        self._held = 0
        self._held_until_ns = 0
        self._refused = 0  # The cost that was; 0 for none.
        self._retry_ns = 0  # When so much would be there.
        self._ask_ns = 0  # When the owner is asked again all the same.

    def take(self, cost: int, now_ns: int) -> int | None:
        """Return 0 when the tokens are taken, the wait when the owner would refuse, None: ask."""
        held = self._left(now_ns)
        if held >= cost:
            self._held = held - cost
            return 0
        # Nobody gives tokens back, so what was refused is refused until the wait is over.
        if self._refused and cost >= self._refused and now_ns < self._ask_ns:
            return self._retry_ns - now_ns
        return None

    def take_all(self, now_ns: int) -> int:
        """Take what has been borrowed and not used."""
        held, self._held = self._left(now_ns), 0
        return held

    def put(self, tokens: int, now_ns: int) -> None:
        """Add tokens."""
        self._held = self._left(now_ns) + tokens
        self._held_until_ns = now_ns + HOLD_NS

    def refuse(self, cost: int, wait_ns: int, now_ns: int) -> None:
        """Remember that so many tokens are not to be had for a while."""
        self._refused = cost
        self._retry_ns = now_ns + wait_ns
        self._ask_ns = now_ns + min(wait_ns, HOLD_NS)

    def idle(self, now_ns: int) -> bool:
        """Tell whether there is nothing to remember."""
        return not (self.needed or self._left(now_ns) or now_ns < self._ask_ns)

    def _left(self, now_ns: int) -> int:
        return self._held if now_ns < self._held_until_ns else 0
