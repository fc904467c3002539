"""Token lease: one node's share of a token bucket that another node owns."""

from __future__ import annotations

import asyncio

# How long an owner's answer counts. Afterwards unused tokens are dropped, and an owner that refused
# or did not answer is asked again.
HOLD_NS = 10**9


class TokenLease:
    """The node's state of one bucket: unused tokens and the last refusal.

    Attributes:
        asking: Held by the request that asks the owner; the others wait, because the answer may
            serve them too.
        needed: Tokens wanted by all requests that ask or wait.
    """

    __slots__ = ("_ask_ns", "_held", "_held_until_ns", "_refused", "_retry_ns", "asking", "needed")

    def __init__(self) -> None:
        self.asking = asyncio.Lock()
        self.needed = 0
        self._held = 0
        self._held_until_ns = 0
        self._refused = 0  # The refused cost; 0 for none.
        self._retry_ns = 0  # When the refused cost would be available.
        self._ask_ns = 0  # When the owner is asked again in any case.

    def take(self, cost: int, now_ns: int) -> int | None:
        """Return 0 if the tokens are taken, the wait if the owner would refuse, None to ask it."""
        held = self._left(now_ns)
        if held >= cost:
            self._held = held - cost
            return 0
        # Tokens are never given back, so a refused cost stays refused until the wait is over.
        if self._refused and cost >= self._refused and now_ns < self._ask_ns:
            return self._retry_ns - now_ns
        return None

    def take_all(self, now_ns: int) -> int:
        """Take and return all unused tokens."""
        held, self._held = self._left(now_ns), 0
        return held

    def put(self, tokens: int, now_ns: int) -> None:
        """Add tokens, which the owner has just granted."""
        self._held = self._left(now_ns) + tokens
        self._held_until_ns = now_ns + HOLD_NS

    def refuse(self, cost: int, wait_ns: int, now_ns: int) -> None:
        """Remember that this cost is not available for a while."""
        self._refused = cost
        self._retry_ns = now_ns + wait_ns
        self._ask_ns = now_ns + min(wait_ns, HOLD_NS)

    def idle(self, now_ns: int) -> bool:
        """Return whether there is nothing to remember."""
        return not (self.needed or self._left(now_ns) or now_ns < self._ask_ns)

    def _left(self, now_ns: int) -> int:
        return self._held if now_ns < self._held_until_ns else 0
