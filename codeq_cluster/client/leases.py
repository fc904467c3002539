"""Leases: what workers ask of a cluster; every request about a task carries its lease token."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from codeq_cluster.client.refusals import Refused
from codeq_cluster.client.session import BASE, Session, part


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task that was claimed.

    Attributes:
        attempt: Which delivery this is, from 1.
        attempts_max: The last one; then the task is a dead letter.
        payload_text: JSON as the producer wrote it, every digit of a number included.
        lease_token: Fences this delivery from every other.
        fields: All the broker said of it.
    """

    id: str
    command: str
    attempt: int
    attempts_max: int
    payload_text: str
    lease_token: int
    fields: Mapping[str, object]

    @property
    def payload(self) -> Any:
        """The payload, decoded."""
        return json.loads(self.payload_text)


class Leases(Session):
    """The routes of workers; each raises as `Session._call` does."""

    async def claim(
        self, commands: Sequence[str], *, count: int, lease_s: int, wait_s: int
    ) -> list[Task]:
        """Claim tasks.

        Args:
            commands: None at all for every one the token allows.
            count: At most so many, from 1 to the broker's bound, 100 by default.
            lease_s: How long they are ours without a heartbeat.
            wait_s: How long to wait for the first, 0 to 30.
        """
        asked = {
            "commands": list(commands),
            "count": count,
            "leaseSeconds": lease_s,
            "waitSeconds": wait_s,
        }
        path = f"{BASE}/tasks/claim/batch"
        answer = await self._call("POST", path, body=json.dumps(asked), wait_s=wait_s)
        rows = answer.get("tasks", [])
        return [_task(row) for row in rows] if isinstance(rows, list) else []

    async def heartbeat(self, task: Task, *, extend_s: int) -> None:
        """Extend a lease to `extend_s` seconds from now."""
        await self._on(task, "heartbeat", {"extendSeconds": extend_s})

    async def complete(self, task: Task, result: str) -> None:
        """End a task with a result, JSON text that is not null."""
        await self._on(task, "result", {"status": "COMPLETED"}, result=result)

    async def fail(self, task: Task, error: str) -> None:
        """End a task with an error; it is not tried again."""
        await self._on(task, "result", {"status": "FAILED", "error": error})

    async def nack(self, task: Task, reason: str, *, delay_s: int = 0) -> bool:
        """Give a task back after a delay, the broker's back-off for 0; True when it died of it."""
        fields: dict[str, object] = {"reason": reason}
        if delay_s > 0:
            fields["delaySeconds"] = delay_s
        answer = await self._on(task, "nack", fields)
        return answer.get("status") == "dlq"

    async def abandon(self, task: Task) -> bool:
        """Give a task back at once; True when this was its last attempt and it died of it."""
        answer = await self._on(task, "abandon", {})
        return answer.get("status") == "dlq"

    async def _on(
        self, task: Task, verb: str, fields: Mapping[str, object], *, result: str = ""
    ) -> Mapping[str, object]:
        body = json.dumps({**fields, "leaseToken": task.lease_token})
        if result:
            body = f'{body[:-1]}, "result": {result}}}'
        return await self._call("POST", f"{BASE}/tasks/{part(task.id)}/{verb}", body=body)


def _task(row: object) -> Task:
    try:
        assert isinstance(row, dict)
        return Task(
            id=str(row["id"]),
            command=str(row["command"]),
            attempt=int(row["attempts"]),
            attempts_max=int(row.get("maxAttempts", 0)),
            payload_text=str(row["payload"]),
            lease_token=int(row["leaseToken"]),
            fields=row,
        )
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise Refused(f"a claimed task has an unknown form: {error!r}", status=200) from error
