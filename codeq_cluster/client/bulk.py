"""Bulk: the requests for one action on all tasks of a selection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from msgspec import Struct

from codeq_cluster.client.connection import part
from codeq_cluster.client.documents import ADMIN, Documents
from codeq_cluster.client.producing import fresh_key


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSelection:
    """Selects tasks of all queues; one of the fields but the instants must be there.

    Attributes:
        tags: By name; a task must have all of them.
        command: The queue.
        status: PENDING, IN_PROGRESS, COMPLETED, FAILED or DEAD.
        schedule: The schedule that made them.
        group: The group that they are members of.
        created_after: Only those created then or later, with its time zone.
        created_before: Only those created before.
    """

    tags: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    status: str = ""
    schedule: str = ""
    group: str = ""
    created_after: datetime | None = None
    created_before: datetime | None = None

    def body(self) -> dict[str, object]:
        """Return it as the API reads it."""
        said: dict[str, object] = {
            "tag": [f"{name}:{value}" for name, value in self.tags.items()],
            "command": self.command,
            "status": self.status,
            "schedule": self.schedule,
            "group": self.group,
            "createdAfter": self.created_after and self.created_after.isoformat(),
            "createdBefore": self.created_before and self.created_before.isoformat(),
        }
        return {name: value for name, value in said.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkAction:
    """What to do to each task.

    Attributes:
        action: `cancel`, `requeue`, `delete`, `priority`, `runNow` or `tag`.
        reason: Of a `cancel`, for people.
        priority: Of `priority`, 0 to 9.
        set: Of `tag`: tags that each task has afterwards.
        remove: Of `tag`: names of tags that it has no more.
    """

    action: str
    reason: str | None = None
    priority: int | None = None
    set: Mapping[str, str] | None = None
    remove: Sequence[str] | None = None

    def body(self) -> dict[str, object]:
        """Return it as the API reads it."""
        said = {name: getattr(self, name) for name in ("reason", "priority", "set", "remove")}
        more = {name: value for name, value in said.items() if value is not None}
        return {"action": self.action, **more}


class BulkCounts(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a selection is about now.

    Attributes:
        selected: Tasks that it is about.
        changes: How many of them the action would change.
        by_status: Counts by status; dead letters are DEAD.
        by_error: Counts by error.
        more: Not all tasks were looked at.
    """

    selected: int
    changes: int
    by_status: dict[str, int]
    by_error: dict[str, int]
    more: bool


class BulkRecord(Struct, frozen=True, kw_only=True, rename="camel"):
    """A bulk job as it is now.

    Attributes:
        status: RUNNING, then DONE or STOPPED.
        looked: Rows that it has come to.
        selected: Tasks among them that it is about.
        changed: Those that the action has changed.
        unreadable: Tasks left alone because their records cannot be read.
        shards: How many parts it has, of which `shards_ended` have ended.
        incomplete: A shard has no part: begin it again under its id, within half an hour, or stop
            it.
    """

    id: str
    status: str
    action: str
    select: dict[str, Any]
    reason: str = ""
    priority: int | None = None
    set: dict[str, str] | None = None
    remove: tuple[str, ...] = ()
    looked: int
    selected: int
    changed: int
    unreadable: int = 0
    shards: int
    shards_ended: int
    incomplete: bool = False
    by: str
    created_at: datetime
    ended_at: datetime | None = None
    stopped_by: str = ""


class _Jobs(Struct, frozen=True):
    jobs: tuple[BulkRecord, ...]


class Bulk(Documents):
    """The routes of bulk jobs; repeating a call is harmless. Each raises as `Documents` do."""

    async def count_bulk(self, select: TaskSelection, action: BulkAction) -> BulkCounts:
        """Count the tasks that a job would be about, and change nothing."""
        body = {"select": select.body(), **action.body(), "dryRun": True}
        return await self._changed("POST", f"{ADMIN}/bulk", body, of=BulkCounts)

    async def start_bulk(
        self, select: TaskSelection, action: BulkAction, *, job_id: str | None = None
    ) -> BulkRecord:
        """Begin a job, which goes on by itself.

        Args:
            select: The tasks; only those that are there now.
            action: What to do to each.
            job_id: Its name; drawn if None. The same one again changes nothing.
        """
        name = fresh_key() if job_id is None else job_id
        body = {"id": name, "select": select.body(), **action.body()}
        return await self._changed("POST", f"{ADMIN}/bulk", body, of=BulkRecord)

    async def bulk_jobs(self) -> tuple[BulkRecord, ...]:
        """Return the jobs that go on, and those that ended within a day; the newest first."""
        return (await self._read(f"{ADMIN}/bulk", _Jobs)).jobs

    async def bulk_job(self, job_id: str) -> BulkRecord:
        """Return how far a job has come."""
        return await self._read(f"{ADMIN}/bulk/{part(job_id)}", BulkRecord)

    async def stop_bulk(self, job_id: str) -> BulkRecord:
        """Stop a job; what it has done stays."""
        return await self._changed("DELETE", f"{ADMIN}/bulk/{part(job_id)}", of=BulkRecord)
