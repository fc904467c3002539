"""Bulk: one action on all tasks of a tenant that a selection is about, step by step.

A job has a part on each shard: an item with the selection, how far its walk has come, and what it
has done. A step is an entry that changes a few tasks, and moves the walk on with them: no leader
acts on a task twice, or passes one over. The walk goes over rows that no change of a task moves:
those of its tags, or the tasks themselves by id.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from codeq_cluster.core.bounds import (
    Instant,
    NameOrNone,
    Number,
    Owner,
    Reason,
    Subject,
    anything,
    listed,
    sound,
    that,
    whole,
)
from codeq_cluster.core.selecting import Selection
from codeq_cluster.core.stored_item import Place, StoredItem
from codeq_cluster.core.tags import TAGS_MAX, Tags, is_tag_name
from codeq_cluster.core.task import PRIORITY_MAX, PRIORITY_MIN, State, Task

LIVE_MAX = 4  # Jobs of one tenant that go on at once: each takes its part of every leader's time.
JOBS_MAX = 100  # Of one tenant, those that have ended included; beyond it the first ended one goes.
LIVE_JOBS, KEPT_JOBS = "bulk jobs", "bulk jobs in one hour"  # What a refusal says are too many.
KEPT_MS = 24 * 3600 * 1000  # How long a job is kept after its end.
# Shards forget their parts one by one. A repeated start makes up the missing ones only so long
# after the first one began: later they may have been forgotten, and would act again. None is
# forgotten before twice as long, because the clocks of nodes differ.
RESUMED_MS = 30 * 60 * 1000
SPARED_MS = 2 * RESUMED_MS

# One step on one shard: 20 a second, each about 1 ms of its leader, for which every other request
# waits there. An entry of 3 MiB takes twice as many deletions; see `administering.IDS_MAX`.
# Where steps take long, others' requests do, too: then the job rests for as many times as long.
# `PAUSE_MS_MAX` is what it has at least: 16 tasks, or 128 rows, in that time on each shard.
STEP_MS = 50
RESTS = 8
PAUSE_MS_MAX = 250
CHANGED_MAX = 16
LOOKED_MAX = 128

# No dot first: a path resolves `.` and `..`.
JOB_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
JOB_NAME_WORDS = "1 to 64 of A-Za-z0-9._-, no dot first"


class ActionKind(StrEnum):
    """What a job does to each task; the words are the wire's."""

    CANCEL = "cancel"
    REQUEUE = "requeue"
    DELETE = "delete"
    PRIORITY = "priority"
    RUN_NOW = "runNow"
    TAG = "tag"


class BulkAction(Struct, frozen=True, array_like=True, kw_only=True):
    """What a job does to each task.

    Attributes:
        reason: Of a cancel, for people.
        put: Tags that each task has afterwards.
        remove: Names of tags that it has no more.
    """

    kind: ActionKind
    reason: Reason = ""
    priority: Annotated[int, whole(PRIORITY_MIN, PRIORITY_MAX)] = 0
    put: Tags = ()
    remove: Annotated[
        tuple[str, ...],
        Meta(max_length=TAGS_MAX),
        listed(TAGS_MAX, that(is_tag_name, "the name of a tag")),
    ] = ()

    def applies(self, task: Task) -> bool:
        """Return whether the state of a task allows it; other rules may leave the task alone."""
        match self.kind:
            case ActionKind.CANCEL:
                return not task.state.terminal
            case ActionKind.REQUEUE:
                return task.state is State.DEAD
            case ActionKind.DELETE:
                return task.state.terminal
            case ActionKind.PRIORITY:
                waits = task.state in (State.READY, State.DELAYED, State.HELD)
                return waits and task.priority != self.priority
            case ActionKind.RUN_NOW:
                return task.state is State.DELAYED and not task.parked_at
            case ActionKind.TAG:
                return True


class BulkJob(StoredItem, frozen=True, array_like=True, tag="bulk", kw_only=True):
    """The part of a job on one shard.

    No backup has it: a cluster that is restored because of a job must not go on with that.

    Attributes:
        until_ms: Only tasks created then or earlier: when the shard took the job.
        by: The subject of who asked for it.
        request: Of the part, for its audit records.
        walked: Position of the last row that the walk has come to.
        looked: Rows that it has come to.
        selected: Tasks among them that the selection is about.
        changed: How many of these the action has changed.
        stopped_by: Who has stopped it; empty if nobody has.
        expires_ms: When its next step is due; after its end, when it is forgotten.
        unreadable: Tasks among the rows, of any tenant if it has no tag, that could not be read.
    """

    place = Place.ORIGIN
    is_in_memory = True
    is_restored = False
    count_max = JOBS_MAX

    tenant: Owner
    id: Annotated[str, that(JOB_NAME.fullmatch, JOB_NAME_WORDS)]
    select: Annotated[Selection, sound]
    action: Annotated[BulkAction, sound]
    until_ms: Instant
    by: Subject = ""
    request: NameOrNone = ""
    walked: Annotated[bytes, anything] = b""
    looked: Number = 0
    selected: Number = 0
    changed: Number = 0
    stopped_by: Subject = ""
    ended_ms: Instant = 0
    expires_ms: Annotated[int, whole(1, 2**53 - 1)]
    unreadable: Number = 0

    def fits(self, task: Task) -> bool:
        """Return whether it is about a task."""
        return (
            task.tenant == self.tenant
            and task.created_ms <= self.until_ms
            and self.select.fits(task)
        )


class StartBulk(Struct, frozen=True, array_like=True, tag="start_bulk", kw_only=True):
    """Begin the part of a job on a shard; a second one of the same name and content is a retry.

    Attributes:
        request: Another one for each shard.
        leads: This shard leaves the audit record of the start.
    """

    request: str
    tenant: str
    id: str
    by: str
    select: Selection
    action: BulkAction
    leads: bool = False


class StopBulk(Struct, frozen=True, array_like=True, tag="stop_bulk", kw_only=True):
    """End the part of a job on a shard; what it has done stays.

    Attributes:
        request: Another one for each shard.
    """

    request: str
    tenant: str
    id: str
    by: str


BulkOperation = StartBulk | StopBulk
