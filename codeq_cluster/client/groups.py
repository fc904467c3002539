"""Groups: tasks that one task follows after the last of them has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Self

from msgspec import Raw, Struct

from codeq_cluster.client.codecs import JSON, Codec
from codeq_cluster.client.connection import BASE, Connection, part, query
from codeq_cluster.client.producing import (
    BATCH_BYTES_MAX,
    BATCH_MAX,
    Duration,
    NewTask,
    body_of,
    fresh_key,
    whole_seconds,
)
from codeq_cluster.client.records import FollowUp, ResultRecord
from codeq_cluster.portions import in_parts

PAGE_MAX = 500


class GroupRecord(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A group as it is now.

    Attributes:
        status: OPEN, SEALED or CANCELLING; at its end COMPLETED, FAILED or CANCELLED.
        total: Its members, but for those whose idempotency key was taken.
        waits_for: What is missing: `seal`, `members`.
        then_task_id: The completion task, once there is one.
        tasks: Those that the request asked for.
    """

    id: str
    status: str
    total: int
    live: int
    completed: int
    failed: int
    cancelled: int
    dead: int
    then_if: str
    on_failure: str
    waits_for: tuple[str, ...] = ()
    then_command: str = ""
    then_task_id: str = ""
    reason: str = ""
    created_at: datetime
    seal_by: datetime | None = None
    sealed_at: datetime | None = None
    ended_at: datetime | None = None
    tasks: tuple[FollowUp, ...] = ()


class GroupsPage(Struct, frozen=True, kw_only=True):
    """A page of groups; `cursor` is empty on the last one."""

    groups: tuple[GroupRecord, ...]
    cursor: str = ""


class GroupMember(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A member of a group: `status` is LIVE until it has ended, or NOT_MADE."""

    task_id: str
    idempotency_key: str = ""
    status: str
    ended_at: datetime | None = None
    result: ResultRecord | None = None


class GroupMembers(Struct, frozen=True, kw_only=True):
    """A page of a group's members; `cursor` is empty on the last one."""

    members: tuple[GroupMember, ...]
    cursor: str = ""


class Groups(Connection):
    """The routes of groups; a call may be repeated, but adds tasks without keys again."""

    _codec: Codec = JSON

    def group(
        self,
        group_id: str | None = None,
        *,
        then: NewTask | None = None,
        then_if: str | None = None,
        on_failure: str | None = None,
        seal_within: Duration | None = None,
    ) -> OpenGroup:
        """Return a group to begin: `async with client.group(…) as group: await group.add(…)`.

        Args:
            group_id: Its name; None draws a fresh one.
            then: The completion task.
            then_if: ended or succeeded: when it is made; None for ended.
            on_failure: continue or cancel: what a failed member means for the others.
            seal_within: How long it may be open; None for a day.
        """
        body: dict[str, object] = {"id": group_id or fresh_key()}
        if then is not None:
            body["then"] = Raw(body_of(then, self._codec, keyless=True))
        if then_if is not None:
            body["thenIf"] = then_if
        if on_failure is not None:
            body["onFailure"] = on_failure
        if seal_within is not None:
            body["sealWithinSeconds"] = whole_seconds(seal_within)
        return OpenGroup(self, body)

    async def begin_group(self, body: Mapping[str, object]) -> GroupRecord:
        """Begin a group as a request says it; one of the same body changes nothing."""
        return await self._changed("POST", f"{BASE}/groups", body, of=GroupRecord)

    async def add_to_group(self, group_id: str, tasks: Sequence[NewTask]) -> GroupRecord:
        """Add tasks to a group that is not sealed, a hundred in one request.

        Those with an idempotency key are added once, however often this is called.
        """
        bodies = [body_of(task, self._codec, keyless=True) for task in tasks]
        record: GroupRecord | None = None
        for some in in_parts(bodies, len, size_max=BATCH_BYTES_MAX, count_max=BATCH_MAX):
            body = {"tasks": [Raw(each) for each in some], "idempotencyKey": fresh_key()}
            record = await self._changed("POST", f"{_path(group_id)}/tasks", body, of=GroupRecord)
        return record or await self.group_record(group_id)

    async def group_record(self, group_id: str) -> GroupRecord:
        """Return a group as it is now."""
        return await self._read(_path(group_id), GroupRecord)

    async def groups(self, *, limit: int = PAGE_MAX, cursor: str = "") -> GroupsPage:
        """Return a page of groups: those that have not ended, the newest first; then the others."""
        path = f"{BASE}/groups{query(limit=limit, cursor=cursor)}"
        return await self._read(path, GroupsPage)

    async def seal_group(self, group_id: str) -> GroupRecord:
        """Let nobody add to a group but its live members."""
        return await self._changed("POST", f"{_path(group_id)}/seal", {}, of=GroupRecord)

    async def cancel_group(self, group_id: str) -> GroupRecord:
        """Seal a group and cancel its members."""
        return await self._changed("POST", f"{_path(group_id)}/cancel", {}, of=GroupRecord)

    async def group_results(
        self, group_id: str, *, limit: int = PAGE_MAX, cursor: str = ""
    ) -> GroupMembers:
        """Return a page of a group's members, with their results; it may be short."""
        path = f"{_path(group_id)}/results{query(limit=limit, cursor=cursor)}"
        return await self._read(path, GroupMembers)


class OpenGroup:
    """A group that a block adds to; its end seals it.

    A block that raises leaves the group open: it fails when its time to be sealed is over, unless
    somebody seals or cancels it.

    Attributes:
        body: Of the request that begins it.
    """

    def __init__(self, client: Groups, body: Mapping[str, object]) -> None:
        self._client = client
        self.body = body

    @property
    def id(self) -> str:
        """Its name."""
        return str(self.body["id"])

    async def __aenter__(self) -> Self:
        await self._client.begin_group(self.body)
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is None:
            await self._client.seal_group(self.id)

    async def add(self, *tasks: NewTask) -> GroupRecord:
        """Add tasks, a hundred in one request; each may have an idempotency key."""
        return await self._client.add_to_group(self.id, tasks)


def _path(group_id: str) -> str:
    return f"{BASE}/groups/{part(group_id)}"
