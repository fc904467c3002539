"""Tally: how many of something a tenant has on a shard, so that a bound costs one row."""

from __future__ import annotations

from codeq_cluster.core.bounds import Id, Number, Owner
from codeq_cluster.core.stored_item import Place, StoredItem

SCHEDULES = "schedules"
GROUPS = "groups"  # That have not ended.
KEY_RULES = "keyrules"


class Tally(StoredItem, frozen=True, array_like=True, tag="tally", kw_only=True):
    """How many there are; without a row there are none."""

    place = Place.ORIGIN
    is_restored = False

    tenant: Owner
    id: Id = SCHEDULES
    count: Number = 0


def count_of(found: StoredItem | None) -> int:
    """Return what a row says, or 0 without one."""
    return found.count if isinstance(found, Tally) else 0


def moved(found: StoredItem | None, tenant: str, of: str, more: int) -> Tally | None:
    """Return the row with so many more; there is none for 0."""
    count = max(0, count_of(found) + more)
    return Tally(tenant=tenant, id=of, count=count) if count else None
