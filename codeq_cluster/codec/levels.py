"""Levels: which formats a release knows, as one number; what each adds is said here.

1: entries, records, snapshots and frames of version 1.
"""

from __future__ import annotations

LEVEL = 1
