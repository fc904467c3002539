"""Budget: the share of the cluster that one tenant may use, and what it uses now."""

from __future__ import annotations

from msgspec import Struct


class Budget(Struct, frozen=True, kw_only=True):
    """Bounds of one tenant over the whole cluster; 0 for none.

    Attributes:
        waiting_max: Ready, delayed or held tasks.
        leased_max: Tasks in progress.
        bytes_max: Stored payloads, results and artifacts.
    """

    waiting_max: int = 0
    leased_max: int = 0
    bytes_max: int = 0

    @property
    def binds_creates(self) -> bool:
        """Return whether a create must be compared with what the tenant uses."""
        return bool(self.waiting_max or self.bytes_max)


class Usage(Struct, frozen=True):
    """A tenant's usage, as far as the deciding node knows.

    The deciding shard's part is exact; the others' are as of their last entries applied there.
    """

    waiting: int = 0
    leased: int = 0
    stored_bytes: int = 0


NO_BUDGET = Budget()
