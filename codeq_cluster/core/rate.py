"""Rate: how often tasks may be claimed, and the one number that remembers what was spent of it.

The generic cell rate algorithm (GCRA): the row keeps the instant until which all tokens are spent.
A claim moves it on by its cost, and may do so while it is at most a burst ahead of the clock. So in
any stretch of time the costs claimed are at most the burst plus what the rate adds.
"""

from __future__ import annotations

from msgspec import Struct

COUNT_MAX = 1_000_000
PERIOD_S_MAX = 86_400
BURST_MAX = 10_000


class Rate(Struct, frozen=True, array_like=True):
    """So many tokens in each period.

    Attributes:
        count: Tokens.
        per_s: The period, seconds.
        burst: Tokens that a pause can save up; a task that costs more costs this many.
    """

    count: int
    per_s: int = 1
    burst: int = 1

    @property
    def is_sound(self) -> bool:
        """Whether a broker could have taken every value."""
        return (
            1 <= self.count <= COUNT_MAX
            and 1 <= self.per_s <= PERIOD_S_MAX
            and 1 <= self.burst <= BURST_MAX
        )

    def free_ms(self, spent_us: int, cost: int) -> int:
        """Return from when on a task of this cost may be claimed, milliseconds of the log's clock.

        Args:
            spent_us: The instant until which tokens are spent, microseconds of the same clock.
            cost: In tokens.
        """
        ahead_us = (self.burst - min(cost, self.burst)) * self._token_us
        return max(0, -((ahead_us - spent_us) // 1000))

    def tokens(self, spent_us: int, *, now_ms: int) -> int:
        """Return how many tokens there are, at most the burst and at least none."""
        ahead_us = max(0, spent_us - now_ms * 1000)
        return max(0, self.burst - -(-ahead_us // self._token_us))

    def spent_us(self, spent_us: int, cost: int, *, now_ms: int) -> int:
        """Return until when tokens are spent after a claim."""
        return max(spent_us, now_ms * 1000) + min(cost, self.burst) * self._token_us

    @property
    def _token_us(self) -> int:
        """Return the microseconds that add a token, rounded up, so that none is given away."""
        return -(-self.per_s * 1_000_000 // self.count)
