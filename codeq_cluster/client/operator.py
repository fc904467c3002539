"""Operator: the requests of a tenant's admins and of the cluster's operators.

The token must be an admin's (scope `codeq:admin`); for the cluster and its backups, an operator's
(`codeq:operator`). Answers are plain documents as in the API: callers print them or read a field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from codeq_cluster.client.bulk import Bulk
from codeq_cluster.client.connection import part, query
from codeq_cluster.client.documents import ADMIN, PAGE_MAX, Page
from codeq_cluster.client.schedules import Schedules
from codeq_cluster.client.transport import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selects dead letters of a queue.

    Attributes:
        error: Only those with exactly this error; empty for any.
        kind: Only those with an error of this kind, which may be given as one of its errors.
        ids: Only these; None for all.
        limit: At most so many, the newest; None for the broker's bound.
    """

    error: str = ""
    kind: str = ""
    ids: tuple[str, ...] | None = None
    limit: int | None = None

    def body(self, *, dry_run: bool) -> dict[str, object]:
        """Return the body of the request."""
        fields: dict[str, object] = {"dryRun": dry_run}
        if self.error:
            fields["error"] = self.error
        if self.kind:
            fields["kind"] = self.kind
        if self.ids is not None:
            fields["ids"] = list(self.ids)
        if self.limit is not None:
            fields["limit"] = self.limit
        return fields


class Operator(Schedules, Bulk):
    """The routes of admins and operators; each raises as `Connection._call` does.

    A page has up to `limit` entries, 1 to `PAGE_MAX`; a page that is shorter may still have a
    cursor.
    """

    async def queues(self) -> Sequence[Mapping[str, Any]]:
        """Return how many tasks each queue holds, by name."""
        return await self._read(f"{ADMIN}/queues", list[dict[str, Any]])

    async def queue_page(self, *, limit: int = PAGE_MAX, cursor: str = "") -> Page:
        """Return a page of what `queues` returns."""
        return await self._page(f"{ADMIN}/queues{query(limit=limit, cursor=cursor)}", "queues")

    async def queue(self, command: str) -> Mapping[str, Any]:
        """Return how many tasks a queue holds."""
        return await self._get(f"{ADMIN}/queues/{part(command)}")

    async def keys(self, command: str, *, limit: int = PAGE_MAX) -> Mapping[str, Any]:
        """Return the busiest keys of a queue, those with the most held tasks first."""
        return await self._get(f"{ADMIN}/queues/{part(command)}/keys{query(limit=limit)}")

    async def key(self, command: str, key: str) -> Mapping[str, Any]:
        """Return one key of a queue, with what it has of its own."""
        return await self._get(f"{ADMIN}/queues/{part(command)}/keys/{part(key)}")

    async def put_key(self, command: str, key: str, own: Mapping[str, object]) -> Mapping[str, Any]:
        """Give a key its own `maxRunning`, `rate`, `weight` or `paused`, all of them at once."""
        path = f"{ADMIN}/queues/{part(command)}/keys/{part(key)}"
        return await self._write("PUT", path, own, repeatable=True)

    async def delete_key(self, command: str, key: str) -> None:
        """Let a key follow the rule of its topic again; its tasks stay."""
        path = f"{ADMIN}/queues/{part(command)}/keys/{part(key)}"
        await self._write("DELETE", path, repeatable=True)

    async def pause(self, command: str) -> Mapping[str, Any]:
        """Stop all claims from a queue; the answer says whether that changed anything."""
        return await self._write("POST", f"{ADMIN}/queues/{part(command)}/pause", repeatable=True)

    async def resume(self, command: str) -> Mapping[str, Any]:
        """Allow claims from a paused queue again."""
        return await self._write("POST", f"{ADMIN}/queues/{part(command)}/resume", repeatable=True)

    async def tasks(
        self,
        *,
        command: str = "",
        status: str = "",
        error: str = "",
        kind: str = "",
        tags: Mapping[str, str] | None = None,
        schedule: str = "",
        group: str = "",
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = PAGE_MAX,
        cursor: str = "",
    ) -> Page:
        """Return a page of tasks: waiting ones in claim order, ended ones newest first.

        With `tags` it has the tasks with all of these, over all queues, the newest first. Without
        them, the instants need a command.

        Args:
            command: The queue.
            status: PENDING, IN_PROGRESS, COMPLETED, FAILED or DEAD.
            error: Only those with exactly this error.
            kind: Only those with an error of this kind.
            tags: By name; a task must have all of them.
            schedule: Only those that this schedule made.
            group: Only members of this group.
            created_after: Only those created then or later, with its time zone.
            created_before: Only those created before.
            limit: See `Operator`.
            cursor: Of the page before.
        """
        asked = query(
            command=command,
            status=status,
            error=error,
            kind=kind,
            tag=[f"{name}:{value}" for name, value in (tags or {}).items()],
            schedule=schedule,
            group=group,
            createdAfter=created_after.isoformat() if created_after is not None else "",
            createdBefore=created_before.isoformat() if created_before is not None else "",
            limit=limit,
            cursor=cursor,
        )
        return await self._page(f"{ADMIN}/tasks{asked}", "tasks")

    async def purge(self, command: str, *, dry_run: bool = False) -> Mapping[str, Any]:
        """Cancel the waiting tasks of a queue, or count them; `more` is true if some are left."""
        path = f"{ADMIN}/queues/{part(command)}/purge"
        return await self._write("POST", path, {"dryRun": dry_run})

    async def dead_letters(
        self,
        command: str,
        *,
        error: str = "",
        kind: str = "",
        limit: int = PAGE_MAX,
        cursor: str = "",
    ) -> Page:
        """Return a page of a queue's dead letters, the newest first."""
        asked = query(error=error, kind=kind, limit=limit, cursor=cursor)
        return await self._page(f"{ADMIN}/queues/{part(command)}/dlq{asked}", "tasks")

    async def death_causes(
        self, command: str, *, error: str = "", by: str = "error"
    ) -> Mapping[str, Any]:
        """Return the causes of a queue's dead letters with counts, the most frequent first.

        Args:
            command: The queue.
            error: Only those with exactly this error.
            by: `error`, or `kind` for kinds of errors that differ only in numbers and ids.
        """
        asked = query(groupBy=by, error=error)
        return await self._get(f"{ADMIN}/queues/{part(command)}/dlq{asked}")

    async def dead_letter(self, command: str, task_id: str) -> Mapping[str, Any]:
        """Return a dead letter with its result."""
        return await self._get(f"{ADMIN}/queues/{part(command)}/dlq/{part(task_id)}")

    async def requeue(
        self,
        command: str,
        selection: Selection,
        *,
        patch: Mapping[str, Any] | None = None,
        payload: object = None,
        dry_run: bool = False,
    ) -> Mapping[str, Any]:
        """Make dead letters ready again, or only count them; `more` is true if some are left.

        Args:
            command: The queue.
            selection: Which of its dead letters.
            patch: Merged into each payload (RFC 7396).
            payload: Replaces the payload of the only dead letter that is named by its id; None
                keeps it.
            dry_run: Change nothing; with a patch or a payload, the answer shows the newest payload
                `before` and `after` it.
        """
        path = f"{ADMIN}/queues/{part(command)}/dlq/requeue"
        changes = {"patch": patch, "payload": payload}
        given = {name: change for name, change in changes.items() if change is not None}
        return await self._write("POST", path, {**selection.body(dry_run=dry_run), **given})

    async def delete_dead_letters(
        self, command: str, selection: Selection, *, dry_run: bool = False
    ) -> Mapping[str, Any]:
        """Delete dead letters, or only count them; `more` is true if some are left."""
        path = f"{ADMIN}/queues/{part(command)}/dlq"
        return await self._write("DELETE", path, selection.body(dry_run=dry_run))

    async def topics(self, *, limit: int = PAGE_MAX, cursor: str = "") -> Page:
        """Return a page of topics by name."""
        return await self._page(f"{ADMIN}/topics{query(limit=limit, cursor=cursor)}", "topics")

    async def topic(self, name: str) -> Mapping[str, Any]:
        """Return a topic."""
        return await self._get(f"{ADMIN}/topics/{part(name)}")

    async def put_topic(self, name: str, policy: Mapping[str, object]) -> Mapping[str, Any]:
        """Create or change a topic.

        Args:
            name: The command it governs.
            policy: Fields of the topic; the broker chooses those that are missing.
        """
        return await self._write("PUT", f"{ADMIN}/topics/{part(name)}", policy, repeatable=True)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic; its tasks stay."""
        await self._write("DELETE", f"{ADMIN}/topics/{part(name)}?deletionPolicy=Delete")

    async def limits(self, *, limit: int = PAGE_MAX, cursor: str = "") -> Page:
        """Return a page of limits that queues share, by name."""
        return await self._page(f"{ADMIN}/limits{query(limit=limit, cursor=cursor)}", "limits")

    async def limit(self, name: str) -> Mapping[str, Any]:
        """Return a limit, and what the queues that share it do now."""
        return await self._get(f"{ADMIN}/limits/{part(name)}")

    async def put_limit(self, name: str, rule: Mapping[str, object]) -> Mapping[str, Any]:
        """Create or change a limit: its `maxRunning` and its `rate`, both of them at once."""
        return await self._write("PUT", f"{ADMIN}/limits/{part(name)}", rule, repeatable=True)

    async def delete_limit(self, name: str) -> None:
        """Delete a limit that no topic names."""
        await self._write("DELETE", f"{ADMIN}/limits/{part(name)}")

    async def deliveries(
        self, *, status: str = "", limit: int = PAGE_MAX, cursor: str = ""
    ) -> Page:
        """Return a page of result callbacks: all by id, or the dead ones, the latest first."""
        asked = query(status=status, limit=limit, cursor=cursor)
        return await self._page(f"{ADMIN}/deliveries{asked}", "deliveries")

    async def replay(self, ids: Sequence[str] | None) -> Mapping[str, Any]:
        """Retry dead deliveries from the first attempt; None for all of them."""
        wanted = {"all": True} if ids is None else {"ids": list(ids)}
        return await self._write("POST", f"{ADMIN}/deliveries/replay", wanted)

    async def webhook_keys(self) -> Sequence[Mapping[str, Any]]:
        """Return the keys that sign the tenant's callbacks, the current one first.

        The broker puts on record that they were read.
        """
        found = await self._get(f"{ADMIN}/webhooks/keys")
        keys: list[Mapping[str, Any]] = found["keys"]
        return keys

    async def rotate_webhook_key(
        self, *, overlap_s: int | None = None
    ) -> Sequence[Mapping[str, Any]]:
        """Begin the next version of the tenant's webhook key; return the keys.

        Args:
            overlap_s: How long the previous key signs as well; None for the broker's default.
        """
        body = {} if overlap_s is None else {"overlapSeconds": overlap_s}
        found = await self._write("POST", f"{ADMIN}/webhooks/keys/rotate", body)
        keys: list[Mapping[str, Any]] = found["keys"]
        return keys

    async def asides(
        self, *, limit: int = PAGE_MAX, cursor: str = "", ownerless: bool = False
    ) -> Page:
        """Return a page of what is set aside: the tenant's, or tasks without a known owner."""
        return await self._page(
            f"{_asides(ownerless=ownerless)}{query(limit=limit, cursor=cursor)}", "asides"
        )

    async def retry(
        self, ids: Sequence[str] | None, *, ownerless: bool = False
    ) -> Mapping[str, Any]:
        """Make what is set aside due again; None for all of it."""
        wanted = {"all": True} if ids is None else {"ids": list(ids)}
        return await self._write("POST", f"{_asides(ownerless=ownerless)}/retry", wanted)

    async def audit(self, *, limit: int = PAGE_MAX, cursor: str = "") -> Page:
        """Return a page of the changes by admins and operators of the tenant, the newest first."""
        return await self._page(f"{ADMIN}/audit{query(limit=limit, cursor=cursor)}", "records")

    async def cluster(self) -> Mapping[str, Any]:
        """Return the nodes and the shards, as the node asked sees them."""
        return await self._get(f"{ADMIN}/cluster")

    async def transfer(self, shard: int, *, to: str = "") -> Mapping[str, Any]:
        """Transfer a shard's leadership to a node, or to the one that has most of its log."""
        wanted: dict[str, object] = {"shard": shard}
        if to:
            wanted["to"] = to
        return await self._write("POST", f"{ADMIN}/cluster/transfer", wanted)

    async def join(
        self, node_id: str, *, addr: str, http_addr: str, dry_run: bool = False
    ) -> Mapping[str, Any]:
        """Add a node, or report what that would do to each shard."""
        body = {"nodeId": node_id, "addr": addr, "httpAddr": http_addr, "dryRun": dry_run}
        return await self._write("POST", f"{ADMIN}/cluster/join", body)

    async def remove(self, node_id: str, *, dry_run: bool = False) -> Mapping[str, Any]:
        """Remove a node for good, or report what that would do to each shard."""
        body = {"nodeId": node_id, "dryRun": dry_run}
        return await self._write("POST", f"{ADMIN}/cluster/remove", body)

    async def upgrade(self, level: int | None, *, dry_run: bool = False) -> Mapping[str, Any]:
        """Enable newer formats, or report what that would do.

        Args:
            level: The version of the formats; None for the newest that any node knows.
            dry_run: Change nothing.
        """
        body: dict[str, object] = {"dryRun": dry_run}
        if level is not None:
            body["level"] = level
        return await self._write("POST", f"{ADMIN}/cluster/upgrade", body)

    async def begin_backup(self) -> Mapping[str, Any]:
        """Start a backup on the node asked; the answer names the backup."""
        return await self._write("POST", f"{ADMIN}/backup")

    async def backups(self) -> Sequence[Mapping[str, Any]]:
        """Return the backups in the directory of the node asked, the oldest first."""
        answer = await self._get(f"{ADMIN}/backup")
        rows: list[Mapping[str, Any]] = answer.get("backups", [])
        return rows

    async def backup(self, backup: str) -> Mapping[str, Any]:
        """Return the progress of a backup; only the node that takes it knows it."""
        return await self._get(f"{ADMIN}/backup/{part(backup)}")

    async def import_part(
        self,
        part: bytes,
        *,
        backup: str,
        tenant: str,
        level: int,
        forget_keys: bool,
        dry_run: bool,
        record: str = "",
    ) -> Mapping[str, Any]:
        """Import tasks and items of another cluster; repeating the call is harmless.

        Args:
            part: As `codec.arrivals` encodes it.
            backup: The id of the backup it comes from.
            tenant: The tenant of the token, `_` for the default tenant.
            level: The version of the backup's formats.
            forget_keys: Drop idempotency keys that cannot be kept, and import their tasks without.
            dry_run: Change nothing; only return what the import would do.
            record: `record` of the answer to an earlier part, to share its audit record.
        """
        flags = {"forgetKeys": forget_keys, "dryRun": dry_run}
        set_ = {name: "true" for name, value in flags.items() if value}
        if record:
            set_["record"] = record
        asked = query(backup=backup, tenant=tenant, level=level, **set_)
        request = Request(method="POST", path=f"{ADMIN}/import{asked}", body=part, binary=True)
        return await self._call(request, dict[str, Any])


def _asides(*, ownerless: bool) -> str:
    return f"{ADMIN}/cluster/aside" if ownerless else f"{ADMIN}/aside"
