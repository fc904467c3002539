"""Turns in fractions: each queue has the time at which its next turn may begin."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


class Turns:
    """The queues of one tenant, with their times."""

    def __init__(self) -> None:
        self._begins: dict[str, Fraction] = {}
        self._now = Fraction(0)

    def first(self, queues: Sequence[str]) -> str:
        """Return the queue whose turn begins first; among equals the first in order."""
        return min(queues, key=self._next)

    def took(self, queue: str, weight: int) -> None:
        """Give the queue its turn; it costs 1/weight."""
        self._now = self._next(queue)
        self._begins[queue] = self._now + Fraction(1, weight)

    def _next(self, queue: str) -> Fraction:
        return max(self._begins.get(queue, self._now), self._now)
