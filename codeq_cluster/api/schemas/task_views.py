"""Task views: tasks, their results and actions on them, as the contract's JSON."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Raw, Struct, UnsetType

from codeq_cluster.core.explaining import Explanation, Reason
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.task import Attempt, Result, State, Task

_STATUS = {
    State.READY: "PENDING",
    State.DELAYED: "PENDING",
    State.LEASED: "IN_PROGRESS",
    State.DONE: "COMPLETED",
    State.FAILED: "FAILED",
    State.DEAD: "FAILED",
}
_LOCATION = {
    State.READY: "PENDING_LIST",
    State.DELAYED: "DELAYED_ZSET",
    State.LEASED: "INPROG_SET",
    State.DONE: "NONE",
    State.FAILED: "NONE",
    State.DEAD: "DLQ_SET",
}


class AttemptView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """One finished delivery."""

    worker: str
    started_at: str
    ended_at: str
    outcome: str
    error: str = ""


class TaskView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A task; fields without a default are always present.

    `readyAt` is when a delayed task can be claimed, `expiresAt` when a waiting one dies.
    """

    id: str
    command: str
    payload: str
    priority: int = 0
    webhook: str = ""
    trace_parent: str = ""
    trace_state: str = ""
    status: str
    last_known_location: str
    worker_id: str = ""
    lease_until: str = ""
    attempts: int
    max_attempts: int = 0
    error: str = ""
    result_key: str = ""
    tenant_id: str = ""
    created_at: str
    updated_at: str
    lease_token: int = 0
    run_at: str = ""
    ready_at: str = ""
    expires_at: str = ""
    shard: int
    history: tuple[AttemptView, ...] = ()


class TaskPage(Struct):
    """A page of a list of tasks; the cursor is missing at its end."""

    tasks: Sequence[TaskView]
    cursor: str | UnsetType = UNSET


class ArtifactView(Struct):
    """A product of a task."""

    name: str
    url: str


class UploadView(Struct):
    """A stored artifact; a result names it by `name` and `url`."""

    name: str
    url: str
    size: int
    etag: str


class ResultView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """How a task ended."""

    task_id: str
    status: str
    result: Raw | UnsetType = UNSET
    error: str = ""
    artifacts: tuple[ArtifactView, ...] = ()
    completed_at: str


class TaskAndResult(Struct, rename="camel"):
    """An ended task with its result."""

    task: TaskView
    result: ResultView


class CreatedItem(Struct, rename="camel"):
    """The outcome of one item of a batch: a task, or an error with its code."""

    task: TaskView | UnsetType = UNSET
    error: str | UnsetType = UNSET
    code: str | UnsetType = UNSET


class CreatedBatch(Struct, rename="camel"):
    """One entry per item, in the items' order."""

    results: list[CreatedItem]


class CancelledTask(Struct, rename="camel"):
    """The task that was cancelled."""

    status: str
    id: str


class CleanedUp(Struct):
    """How many tasks were deleted, and the bounds in force."""

    deleted: int
    before: str
    limit: int


class ExplanationView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """The reason for a task's state; `until` is when the passing of time ends it."""

    task_id: str
    reason: Reason
    message: str
    waiting: bool
    until: str = ""


def task_view(task: Task, payload: str, *, shards: int, claimed: bool = False) -> TaskView:
    """Render a task; only the worker that has just claimed it sees the lease token."""
    leased = task.state is State.LEASED
    waiting = task.state in (State.READY, State.DELAYED)
    return TaskView(
        id=task.id,
        command=task.command,
        payload=payload,
        priority=task.priority,
        webhook=task.webhook,
        trace_parent=task.trace_parent,
        trace_state=task.trace_state,
        status=_STATUS[task.state],
        last_known_location=_LOCATION[task.state],
        worker_id=task.worker if leased else "",
        lease_until=rfc3339(task.lease_until_ms) if leased else "",
        attempts=task.attempts,
        max_attempts=task.max_attempts,
        error=task.error,
        result_key=f"codeq/results/{task.id}" if task.has_result else "",
        tenant_id=task.tenant,
        created_at=rfc3339(task.created_ms),
        updated_at=rfc3339(task.updated_ms),
        lease_token=task.lease_token if claimed else 0,
        run_at=rfc3339(task.run_at_ms) if task.run_at_ms else "",
        ready_at=rfc3339(task.due_ms) if task.state is State.DELAYED else "",
        expires_at=rfc3339(task.expires_ms) if waiting and task.expires_ms else "",
        shard=shard_of(task.id, shards) if shards > 1 else 0,
        history=tuple(map(attempt_view, task.history)),
    )


def result_view(result: Result) -> ResultView:
    """Render a result."""
    return ResultView(
        task_id=result.task_id,
        status=result.status,
        result=Raw(result.body) if result.body else UNSET,
        error=result.error,
        artifacts=tuple(ArtifactView(each.name, each.url) for each in result.artifacts),
        completed_at=rfc3339(result.completed_ms),
    )


def explanation_view(task_id: str, explanation: Explanation) -> ExplanationView:
    """Render the reason for a task's state."""
    return ExplanationView(
        task_id=task_id,
        reason=explanation.reason,
        message=explanation.text,
        waiting=explanation.reason.waiting,
        until=rfc3339(explanation.until_ms) if explanation.until_ms else "",
    )


def attempt_view(attempt: Attempt) -> AttemptView:
    """Render a finished delivery."""
    return AttemptView(
        worker=attempt.worker,
        started_at=rfc3339(attempt.started_ms),
        ended_at=rfc3339(attempt.ended_ms),
        outcome=attempt.outcome.value,
        error=attempt.error,
    )
