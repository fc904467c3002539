"""Levels: the formats of a release as one number; this list says what each level adds.

1: the formats of release 0.1.0, all of version 1.
2: relays, results with follow-ups, schedules, keys of tasks, groups, graphs, unique keys, durable
steps, what workers report of tasks, rejects, cancels with a grace, tags, bulk jobs, one beat for
all groups at rest, and data directories of virtual time; no form has another number.

A release reads every level up to its own, and writes the level in use, which is part of a group's
membership. An operator raises it once every member knows it; nothing lowers it.
"""

from __future__ import annotations

from codeq_cluster.errors import ReleaseTooOld

FOLLOW_UPS_FROM = 2
KEYS_FROM = 2
SCHEDULES_FROM = 2
GROUPS_FROM = 2
GRAPHS_FROM = 2
UNIQUE_FROM = 2
STEPS_FROM = 2
REPORTS_FROM = 2
REJECTS_FROM = 2
CANCELS_FROM = 2
TAGS_FROM = 2
BULK_FROM = 2
RESTS_FROM = 2
VIRTUAL_TIME_FROM = 2
LEVEL = 2
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
