"""Schedules: the requests of those who say when tasks are created by themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from codeq_cluster.client.connection import part, query
from codeq_cluster.client.documents import ADMIN, PAGE_MAX, Documents, Page
from codeq_cluster.client.producing import fresh_key
from codeq_cluster.client.scheduling import (
    Applied,
    Backfilled,
    ScheduleLike,
    ScheduleRecord,
    Triggered,
    document_of,
    set_of,
)


class Schedules(Documents):
    """The routes of schedules; repeating a call is harmless. Each raises as `Documents` do."""

    async def schedules(self, *, owner: str = "", limit: int = PAGE_MAX, cursor: str = "") -> Page:
        """Return a page of schedules by id, each with its next instant alone."""
        asked = query(owner=owner, limit=limit, cursor=cursor)
        return await self._page(f"{ADMIN}/schedules{asked}", "schedules")

    async def schedule(self, schedule_id: str) -> ScheduleRecord:
        """Return a schedule with its next ten instants and its last ten runs."""
        return await self._read(_schedule(schedule_id), ScheduleRecord)

    async def put_schedule(self, schedule: ScheduleLike) -> ScheduleRecord:
        """Create or change a schedule; what has fired does not fire again.

        Raises:
            KeyError: It has no `id`.
        """
        body = document_of(schedule)
        return await self._changed("PUT", _schedule(body.pop("id")), body, of=ScheduleRecord)

    async def delete_schedule(self, schedule_id: str) -> None:
        """Delete a schedule, if it exists; its runs go on."""
        await self._write("DELETE", _schedule(schedule_id), repeatable=True)

    async def pause_schedule(self, schedule_id: str) -> ScheduleRecord:
        """Let a schedule fire no more; its runs go on."""
        return await self._changed("POST", f"{_schedule(schedule_id)}/pause", of=ScheduleRecord)

    async def resume_schedule(self, schedule_id: str, *, catch_up: bool = False) -> ScheduleRecord:
        """Let a paused schedule fire again.

        Args:
            schedule_id: The schedule.
            catch_up: The instants of the pause count as late ones, not as none.
        """
        body = {"catchUp": catch_up}
        path = f"{_schedule(schedule_id)}/resume"
        return await self._changed("POST", path, body, of=ScheduleRecord)

    async def trigger_schedule(
        self, schedule_id: str, *, overlap: str | None = None, idempotency_key: str | None = None
    ) -> Triggered:
        """Make a run of a schedule now, whatever its calendar says.

        Args:
            schedule_id: The schedule.
            overlap: What happens while another run has not ended; None for the schedule's own.
            idempotency_key: Calls with the same key make one run; None draws a fresh key.
        """
        body: dict[str, object] = {"idempotencyKey": idempotency_key or fresh_key()}
        if overlap is not None:
            body["overlap"] = overlap
        return await self._changed("POST", f"{_schedule(schedule_id)}/trigger", body, of=Triggered)

    async def backfill_schedule(
        self,
        schedule_id: str,
        *,
        first: datetime,
        last: datetime,
        overlap: str | None = None,
        force: bool = False,
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> Backfilled:
        """Let past instants of a schedule fire, one after the other.

        Args:
            schedule_id: The schedule.
            first: With its time zone; instants from then on.
            last: With its time zone; up to then, and not after now.
            overlap: What happens while another run has not ended; None for queue.
            force: Fire instants again whose task is still kept.
            dry_run: Only say which they are.
            idempotency_key: Calls with the same key are one backfill; None draws a fresh key.
        """
        body: dict[str, object] = {
            "from": first.isoformat(),
            "to": last.isoformat(),
            "force": force,
            "dryRun": dry_run,
            "idempotencyKey": idempotency_key or fresh_key(),
        }
        if overlap is not None:
            body["overlap"] = overlap
        path = f"{_schedule(schedule_id)}/backfill"
        return await self._changed("POST", path, body, of=Backfilled)

    async def apply_schedules(
        self,
        owner: str,
        schedules: Iterable[ScheduleLike],
        *,
        revision: int = 0,
        dry_run: bool = False,
    ) -> Applied:
        """Make an owner's schedules exactly these: create, change and remove.

        Args:
            owner: The set.
            schedules: All that it is to have.
            revision: Of the set: a later one that stands makes this call fail; 0 for none.
            dry_run: Change nothing; return what would change.
        """
        path = f"{ADMIN}/schedules{query(owner=owner)}"
        body = set_of(schedules, revision=revision, dry_run=dry_run)
        return await self._changed("PUT", path, body, of=Applied)

    async def preview_schedule(
        self,
        schedule: Mapping[str, object],
        *,
        after: datetime | None = None,
        count: int | None = None,
    ) -> Mapping[str, Any]:
        """Return the next instants of a schedule, which need not exist.

        Args:
            schedule: `cron` or `every`, with `zone` and `offset`.
            after: With its zone; only instants after this one. None for now.
            count: How many, 1 to 100; None for the broker's default.
        """
        body = dict(schedule)
        if after is not None:
            body["from"] = after.isoformat()
        if count is not None:
            body["count"] = count
        return await self._write("POST", f"{ADMIN}/schedules/preview", body, repeatable=True)


def _schedule(schedule_id: str) -> str:
    return f"{ADMIN}/schedules/{part(schedule_id)}"
