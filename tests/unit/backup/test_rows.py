"""Rows: every family of rows is either in a backup or follows from rows that are."""

from __future__ import annotations

from codeq_cluster.backup.rows import PRIMARY
from codeq_cluster.codec.keyspace import Family, family

# A restore makes them from the rows of other families.
DERIVED = frozenset(
    {
        *(Family.PENDING, Family.DELAYED, Family.INPROG, Family.DONE, Family.FAILED, Family.DLQ),
        *(Family.HELD, Family.SLOT, Family.TAG),
        *(Family.LEASE, Family.TTL, Family.CLAIM, Family.STATS),
        *(Family.DEAD, Family.GROUPS, Family.OUTBOX, Family.EXPIRY, Family.FIRE, Family.FORWARD),
    }
)


def test_every_family_is_accounted_for() -> None:
    """A new family must be assigned, or a restore would lose it."""
    # The manifest has the contents of META, and OTHER is never written.
    itself = {Family.META, Family.OTHER}

    assert set(Family) == set(PRIMARY) | DERIVED | itself
    assert not set(PRIMARY) & DERIVED
    assert set(PRIMARY) == {family(prefix + b"x") for prefix in PRIMARY.values()}
