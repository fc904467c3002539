"""Rows: every family of rows is either in a backup or follows from rows that are."""

from __future__ import annotations

from codeq_cluster.backup.rows import DERIVED, PRIMARY
from codeq_cluster.codec.keyspace import Family, family


def test_every_family_is_accounted_for() -> None:
    """A new family must be assigned, or a restore would lose it."""
    # The manifest has the contents of META, and OTHER is never written.
    itself = {Family.META, Family.OTHER}

    assert set(Family) == set(PRIMARY) | DERIVED | itself
    assert not set(PRIMARY) & DERIVED
    assert set(PRIMARY) == {family(prefix + b"x") for prefix in PRIMARY.values()}
