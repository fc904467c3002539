"""Levels: which formats a release knows, as one number; what each adds is said here.

1: entries, records, snapshots and frames of version 1.
2: entries of version 2.

A release reads every level up to its own. What it writes is of the level in use, which is part of a
group's membership: an operator raises it once every member knows it, and nothing lowers it.
"""

from __future__ import annotations

from codeq_cluster.errors import ReleaseTooOld

LEVEL = 2
LEVEL_MAX = 10_000  # Far beyond any release.


def check(used: int, *, by: str, known: int = LEVEL) -> None:
    """Refuse formats that a release does not know, before anything in them is misread.

    Args:
        used: The level in use.
        by: What uses it, for the operator.
        known: The newest level that the release knows.

    Raises:
        ReleaseTooOld: It is above what the release knows.
    """
    if used > known:
        raise ReleaseTooOld(
            f"{by} uses formats of level {used}, and this release knows those up to level {known}: "
            "start this node with the release that the others run; the data is as it was"
        )
