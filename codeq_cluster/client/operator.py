"""Operator: what admins ask of their tenant, and operators of the cluster.

The token must be an admin's (scope `codeq:admin`); for the cluster and its backups, an operator's
(`codeq:operator`). Answers are documents as the API has them: programs of operators show them or
look at a field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from codeq_cluster.client.connection import BASE, Connection, as_json, part, query
from codeq_cluster.client.transport import Request

PAGE_MAX = 500  # Of the broker.

_ADMIN = f"{BASE}/admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which dead letters of a queue are meant.

    Attributes:
        error: Only those with exactly this error; empty for any.
        ids: These alone; None for all there are.
        limit: At most so many, the newest; None for the broker's bound.
    """

    error: str = ""
    ids: tuple[str, ...] | None = None
    limit: int | None = None

    def body(self, *, dry_run: bool) -> dict[str, object]:
        """Return the body of the request."""
        fields: dict[str, object] = {"dryRun": dry_run}
        if self.error:
            fields["error"] = self.error
        if self.ids is not None:
            fields["ids"] = list(self.ids)
        if self.limit is not None:
            fields["limit"] = self.limit
        return fields


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a list; `cursor` goes on after it and is empty at the end."""

    rows: Sequence[Mapping[str, Any]]
    cursor: str


class Operator(Connection):
    """The routes of admins and operators; each raises as `Connection._call` does.

    Pages have up to `limit` entries, 1 to `PAGE_MAX`; a page may be short and still have a cursor.
    """

    async def queues(self) -> Sequence[Mapping[str, Any]]:
        """Return how full every queue is, by name."""
        request = Request(method="GET", path=f"{_ADMIN}/queues")
        return await self._call(request, list[dict[str, Any]])

    async def queue(self, command: str) -> Mapping[str, Any]:
        """Return how full a queue is."""
        return await self._get(f"{_ADMIN}/queues/{part(command)}")

    async def pause(self, command: str) -> Mapping[str, Any]:
        """Let nobody claim from a queue; the answer says whether that changed anything."""
        return await self._write("POST", f"{_ADMIN}/queues/{part(command)}/pause", repeatable=True)

    async def resume(self, command: str) -> Mapping[str, Any]:
        """Let a paused queue be claimed from again."""
        return await self._write("POST", f"{_ADMIN}/queues/{part(command)}/resume", repeatable=True)

    async def tasks(
        self,
        *,
        command: str = "",
        status: str = "",
        error: str = "",
        limit: int = PAGE_MAX,
        cursor: str = "",
    ) -> Page:
        """Return a page of tasks: waiting ones in claim order, ended ones newest first."""
        asked = query(command=command, status=status, error=error, limit=limit, cursor=cursor)
        return await self._page(f"{_ADMIN}/tasks{asked}", "tasks")

    async def dead_letters(
        self, command: str, *, error: str = "", limit: int = PAGE_MAX, cursor: str = ""
    ) -> Page:
        """Return a page of a queue's dead letters, the newest first."""
        asked = query(error=error, limit=limit, cursor=cursor)
        return await self._page(f"{_ADMIN}/queues/{part(command)}/dlq{asked}", "tasks")

    async def death_causes(self, command: str, *, error: str = "") -> Mapping[str, Any]:
        """Return how many of a queue's dead letters died of what, the most frequent first."""
        asked = query(groupBy="error", error=error)
        return await self._get(f"{_ADMIN}/queues/{part(command)}/dlq{asked}")

    async def dead_letter(self, command: str, task_id: str) -> Mapping[str, Any]:
        """Return a dead letter and the result it died with."""
        return await self._get(f"{_ADMIN}/queues/{part(command)}/dlq/{part(task_id)}")

    async def requeue(
        self, command: str, selection: Selection, *, dry_run: bool = False
    ) -> Mapping[str, Any]:
        """Make dead letters ready again, or count them; `more` says that some are left."""
        path = f"{_ADMIN}/queues/{part(command)}/dlq/requeue"
        return await self._write("POST", path, selection.body(dry_run=dry_run))

    async def delete_dead_letters(
        self, command: str, selection: Selection, *, dry_run: bool = False
    ) -> Mapping[str, Any]:
        """Delete dead letters, or count them; `more` says that some are left."""
        path = f"{_ADMIN}/queues/{part(command)}/dlq"
        return await self._write("DELETE", path, selection.body(dry_run=dry_run))

    async def topics(self, *, limit: int = PAGE_MAX, cursor: str = "") -> Page:
        """Return a page of topics by name."""
        return await self._page(f"{_ADMIN}/topics{query(limit=limit, cursor=cursor)}", "topics")

    async def topic(self, name: str) -> Mapping[str, Any]:
        """Return a topic."""
        return await self._get(f"{_ADMIN}/topics/{part(name)}")

    async def put_topic(self, name: str, policy: Mapping[str, object]) -> Mapping[str, Any]:
        """Make a topic or change it.

        Args:
            name: The command it governs.
            policy: Fields of the topic; what it does not name is the broker's to decide.
        """
        return await self._write("PUT", f"{_ADMIN}/topics/{part(name)}", policy, repeatable=True)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic; no task is deleted."""
        await self._write("DELETE", f"{_ADMIN}/topics/{part(name)}?deletionPolicy=Delete")

    async def deliveries(
        self, *, status: str = "", limit: int = PAGE_MAX, cursor: str = ""
    ) -> Page:
        """Return a page of result callbacks: all by id, or the dead ones, the latest first."""
        asked = query(status=status, limit=limit, cursor=cursor)
        return await self._page(f"{_ADMIN}/deliveries{asked}", "deliveries")

    async def replay(self, ids: Sequence[str] | None) -> Mapping[str, Any]:
        """Try dead deliveries again, from the first attempt; None for all."""
        wanted = {"all": True} if ids is None else {"ids": list(ids)}
        return await self._write("POST", f"{_ADMIN}/deliveries/replay", wanted)

    async def audit(self, *, limit: int = PAGE_MAX, cursor: str = "") -> Page:
        """Return a page of what admins and operators of the tenant changed, the newest first."""
        return await self._page(f"{_ADMIN}/audit{query(limit=limit, cursor=cursor)}", "records")

    async def cluster(self) -> Mapping[str, Any]:
        """Return the nodes and the shards, as the node asked sees them."""
        return await self._get(f"{_ADMIN}/cluster")

    async def transfer(self, shard: int, *, to: str = "") -> Mapping[str, Any]:
        """Hand a shard's leadership to a node, or to whichever has most of its log."""
        wanted: dict[str, object] = {"shard": shard}
        if to:
            wanted["to"] = to
        return await self._write("POST", f"{_ADMIN}/cluster/transfer", wanted)

    async def join(
        self, node_id: str, *, addr: str, http_addr: str, dry_run: bool = False
    ) -> Mapping[str, Any]:
        """Let a node come in, or say what that would do to each shard."""
        body = {"nodeId": node_id, "addr": addr, "httpAddr": http_addr, "dryRun": dry_run}
        return await self._write("POST", f"{_ADMIN}/cluster/join", body)

    async def remove(self, node_id: str, *, dry_run: bool = False) -> Mapping[str, Any]:
        """Remove a node for good, or say what that would do to each shard."""
        body = {"nodeId": node_id, "dryRun": dry_run}
        return await self._write("POST", f"{_ADMIN}/cluster/remove", body)

    async def upgrade(self, level: int | None, *, dry_run: bool = False) -> Mapping[str, Any]:
        """Let newer formats be used, or say what that would do.

        Args:
            level: Of these; None for the newest that any node knows.
            dry_run: Change nothing.
        """
        body: dict[str, object] = {"dryRun": dry_run}
        if level is not None:
            body["level"] = level
        return await self._write("POST", f"{_ADMIN}/cluster/upgrade", body)

    async def begin_backup(self) -> Mapping[str, Any]:
        """Have the node asked begin a backup; the answer names it."""
        return await self._write("POST", f"{_ADMIN}/backup")

    async def backups(self) -> Sequence[Mapping[str, Any]]:
        """Return the backups where the node asked keeps its own, the oldest first."""
        answer = await self._get(f"{_ADMIN}/backup")
        rows: list[Mapping[str, Any]] = answer.get("backups", [])
        return rows

    async def backup(self, backup: str) -> Mapping[str, Any]:
        """Return how far a backup is; only the node that takes it knows."""
        return await self._get(f"{_ADMIN}/backup/{part(backup)}")

    async def import_part(
        self,
        part: bytes,
        *,
        backup: str,
        tenant: str,
        level: int,
        forget_keys: bool,
        dry_run: bool,
    ) -> Mapping[str, Any]:
        """Have tasks and items of another cluster taken over; the same again does no harm.

        Args:
            part: As `codec.arrivals` makes it.
            backup: It comes from.
            tenant: That of the token, `_` for the default tenant.
            level: Of the formats of the backup.
            forget_keys: Take tasks over without idempotency keys that cannot be kept.
            dry_run: Only say what would become of it.
        """
        flags = {"forgetKeys": forget_keys, "dryRun": dry_run}
        set_ = {name: "true" for name, value in flags.items() if value}
        asked = query(backup=backup, tenant=tenant, level=level, **set_)
        request = Request(method="POST", path=f"{_ADMIN}/import{asked}", body=part, binary=True)
        return await self._call(request, dict[str, Any])

    async def _get(self, path: str) -> Mapping[str, Any]:
        return await self._call(Request(method="GET", path=path), dict[str, Any])

    async def _write(
        self, method: str, path: str, body: object = None, *, repeatable: bool = False
    ) -> Mapping[str, Any]:
        request = Request(
            method=method,
            path=path,
            body=None if body is None else as_json(body),
            repeatable=repeatable,
        )
        return await self._call(request, dict[str, Any])

    async def _page(self, path: str, name: str) -> Page:
        answer = await self._get(path)
        return Page(answer.get(name, []), str(answer.get("cursor", "")))
