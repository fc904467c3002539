"""Ports: what the HTTP layer needs from the broker, declared here and provided by the node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from codeq_cluster.broker.requests import (
    Found,
    NewResult,
    NewTask,
    PeerStatus,
    QueueDepth,
    ShardStatus,
)
from codeq_cluster.core.outcomes import (
    Cancelled,
    Claimed,
    Created,
    Extended,
    Rejected,
    Returned,
    Submitted,
)
from codeq_cluster.core.task import Result
from codeq_cluster.errors import CodeqError

__all__ = ["Broker", "Found", "NewResult", "NewTask", "PeerStatus", "QueueDepth", "ShardStatus"]


class Broker(Protocol):
    """The broker behind the routes: every shard, wherever it is led.

    `timeout_s` bounds a call from its start, a wait not counted. Calls raise `CodeqError` when
    the operation could not be carried out or its outcome is not known, unless said otherwise.
    A cancelled call leaves nothing behind: its client has gone away.
    """

    async def create(
        self, tenant: str, items: Sequence[NewTask], *, timeout_s: float
    ) -> list[Created | Rejected | CodeqError]:
        """Create the tasks, each on its own; one answer an item, order kept, errors as values.

        `Created.payload` is always filled.
        """

    async def claim(
        self,
        tenant: str,
        worker: str,
        *,
        commands: tuple[str, ...],
        count: int,
        lease_ms: int,
        wait_s: float,
        timeout_s: float,
    ) -> Claimed:
        """Lease up to `count` tasks; wait up to `wait_s` for the first one.

        When the call is cancelled, no task stays leased by it.
        """

    async def heartbeat(
        self,
        tenant: str,
        worker: str,
        task_id: str,
        *,
        extend_ms: int,
        token: int,
        timeout_s: float,
    ) -> Extended | Rejected:
        """Extend a lease."""

    async def abandon(
        self, tenant: str, worker: str, task_id: str, *, token: int, timeout_s: float
    ) -> Returned | Rejected:
        """Give a leased task back to its queue."""

    async def nack(
        self,
        tenant: str,
        worker: str,
        task_id: str,
        *,
        delay_ms: int,
        reason: str,
        token: int,
        timeout_s: float,
    ) -> Returned | Rejected:
        """Give a leased task back after a delay; `delay_ms` 0 for the back-off policy."""

    async def submit(
        self, tenant: str, worker: str, items: Sequence[NewResult], *, timeout_s: float
    ) -> list[Submitted | Rejected | CodeqError]:
        """End leased tasks with results; one answer an item, order kept, errors as values."""

    async def cancel(self, tenant: str, task_id: str, *, timeout_s: float) -> Cancelled | Rejected:
        """End a task that is not terminal yet."""

    async def task(
        self, tenant: str, task_id: str, *, stale: bool, timeout_s: float
    ) -> Found | None:
        """Return the tenant's task, or None; `stale` reads the local replica."""

    async def result(
        self, tenant: str, task_id: str, *, wait_s: float, stale: bool, timeout_s: float
    ) -> tuple[Found, Result | None] | None:
        """Return a task and its result, waiting up to `wait_s` for one; None for no such task."""

    async def queues(self, tenant: str, *, timeout_s: float) -> list[QueueDepth]:
        """Return the depth of every queue of the tenant."""

    def shard_status(self) -> list[ShardStatus]:
        """Return one status a local group, by shard."""

    def missing(self) -> list[str]:
        """Name what keeps this node from being ready; empty when it is ready."""
