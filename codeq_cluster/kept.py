"""Kept: a bounded memory of recent things, in which no holder crowds the others out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

_H = TypeVar("_H", bound=Hashable)
_V = TypeVar("_V")


class Kept(Generic[_H, _V]):
    """Things by holder and name; when there are too many, who has the most loses its oldest.

    Args:
        total: Of all weights.
    """

    def __init__(self, total: int) -> None:
        self._free = total
        self._taken: Counter[_H] = Counter()
        self._held: dict[_H, dict[Hashable, tuple[_V, int]]] = {}

    def get(self, holder: _H, name: Hashable) -> _V | None:
        """Return a thing, or None."""
        found = self._held.get(holder, {}).get(name)
        return None if found is None else found[0]

    def renewed(self, holder: _H, name: Hashable) -> _V | None:
        """Return a thing, which is its holder's newest from now on, or None."""
        held = self._held.get(holder, {})
        found = held.pop(name, None)
        if found is None:
            return None
        held[name] = found
        return found[0]

    def of(self, holder: _H) -> list[_V]:
        """Return a holder's things, the newest last."""
        return [value for value, _ in self._held.get(holder, {}).values()]

    def put(self, holder: _H, name: Hashable, value: _V, *, weight: int = 1) -> None:
        """Keep a thing as its holder's newest."""
        self.drop(holder, name)
        self._held.setdefault(holder, {})[name] = value, weight
        self._taken[holder] += weight
        self._free -= weight
        while self._free < 0:
            [(most, _)] = self._taken.most_common(1)
            self.drop(most, next(iter(self._held[most])))

    def drop(self, holder: _H, name: Hashable) -> None:
        """Forget a thing, if it is there."""
        held = self._held.get(holder, {})
        if name in held:
            _, weight = held.pop(name)
            self._free += weight
            self._taken[holder] -= weight
        if not held:
            self._held.pop(holder, None)
            del self._taken[holder]

    def every(self) -> list[tuple[_H, Hashable, _V]]:
        """Return (holder, name, thing) of all."""
        return [
            (holder, name, value)
            for holder, held in self._held.items()
            for name, (value, _) in held.items()
        ]
