"""Budget: how much of the cluster one tenant may take up, and what it takes up now."""

from __future__ import annotations

from msgspec import Struct


class Budget(Struct, frozen=True, kw_only=True):
    """Bounds of one tenant over the whole cluster; 0 for none.

    Attributes:
        waiting_max: Tasks ready or delayed.
        leased_max: Tasks in progress.
        bytes_max: Payloads and results kept.
    """

    waiting_max: int = 0
    leased_max: int = 0
    bytes_max: int = 0


class Usage(Struct, frozen=True):
    """What a tenant takes up, as far as the deciding node knows.

    That is its own shard exactly, and the others as of their last entries applied there.
    """

    waiting: int = 0
    leased: int = 0
    stored_bytes: int = 0


NO_BUDGET = Budget()
