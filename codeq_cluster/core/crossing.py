"""Crossing: what all effects on another shard have in common; `relays.Effect` lists them."""

from __future__ import annotations

from msgspec import Struct

from codeq_cluster.core.bounds import broken


class Crossing(Struct, frozen=True, array_like=True):
    """An effect on another shard. Each one has a tenant and a home: its shard, of so many."""

    @property
    def size(self) -> int:
        """Return about how many bytes it takes."""
        return 256

    @property
    def fault(self) -> str:
        """Return which rule a field breaks, or ""."""
        return broken(self)
