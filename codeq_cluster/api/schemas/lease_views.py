"""Lease views: claimed tasks, and how their leases continue or end."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from codeq_cluster.api.schemas.task_views import ResultView, TaskView


class ClaimedBatch(Struct, rename="camel"):
    """The tasks now leased to the caller, in claim order."""

    tasks: list[TaskView]


class ExtendedLease(Struct, rename="camel"):
    """The new end of the lease."""

    ok: bool
    lease_until: str


class AbandonedTask(Struct, rename="camel"):
    """Where the task went: `requeued`, or `dlq` if it has had all its attempts."""

    status: str


class RefusedTask(Struct, rename="camel"):
    """Where the task went, as for an abandoned one, and the delay until it is ready again."""

    status: str
    delay_seconds: int


class SubmittedItem(Struct, rename="camel"):
    """The outcome of one item of a batch: a result, or an error with its code."""

    task_id: str
    result: ResultView | UnsetType = UNSET
    error: str | UnsetType = UNSET
    code: str | UnsetType = UNSET


class SubmittedBatch(Struct, rename="camel"):
    """One entry per item, in the items' order."""

    results: list[SubmittedItem]
