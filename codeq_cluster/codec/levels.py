"""Levels: the format versions of a release, each as one number; this list says what each adds.

1: entries, records, snapshots and frames of version 1.
2: entries of version 2.
3: entries of version 3.

A release reads every version up to its own, and writes the version in use, which is part of a
group's membership. An operator raises it once every member knows it; nothing lowers it.
"""

from __future__ import annotations

from codeq_cluster.errors import ReleaseTooOld

LEVEL = 3
LEVEL_MAX = 10_000  # Far beyond any release.


def check(used: int, *, by: str, known: int = LEVEL) -> None:
    """Refuse formats that a release does not know, before anything in them is misread.

    Args:
        used: The format version in use.
        by: The user of it, for the operator.
        known: The newest format version that the release knows.

    Raises:
        ReleaseTooOld: The version in use is newer.
    """
    if used > known:
        raise ReleaseTooOld(
            f"{by} uses formats of level {used}, and this release knows those up to level {known}: "
            "start this node with the release that the others run; the data is as it was"
        )
