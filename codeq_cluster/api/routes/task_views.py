"""Task views: tasks and their results as the contract's JSON, with examples of their life."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Protocol

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import astuple, replace

from codeq_cluster.api.declared.bodies import Schema, field
from codeq_cluster.api.declared.wide import Int64
from codeq_cluster.api.http.errors import from_failure
from codeq_cluster.api.http.refusals import batch_too_large
from codeq_cluster.api.routes.step_views import StepView
from codeq_cluster.core.dependencies import Input, shown_status
from codeq_cluster.core.handling import Handling, or_none
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.progress import Progress
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.task import (
    Artifact,
    Attempt,
    AttemptOutcome,
    Cancelling,
    FollowUp,
    More,
    Result,
    State,
    Task,
)
from codeq_cluster.errors import OperationTooLarge

ANY_JSON = "Any JSON but null: an object, an array, a text, a number, true or false."
TOO_LARGE = from_failure(OperationTooLarge())

_STATUS = {
    State.READY: "PENDING",
    State.DELAYED: "PENDING",
    State.HELD: "PENDING",
    State.LEASED: "IN_PROGRESS",
    State.DONE: "COMPLETED",
    State.FAILED: "FAILED",
    State.DEAD: "FAILED",
}
_LOCATION = {
    State.READY: "PENDING_LIST",
    State.DELAYED: "DELAYED_ZSET",
    State.HELD: "HELD_SET",
    State.LEASED: "INPROG_SET",
    State.DONE: "NONE",
    State.FAILED: "NONE",
    State.DEAD: "DLQ_SET",
}


def items_field(each: Schema[Any], **schema: object) -> Any:
    """Declare the items of a batch."""
    return field(
        "The items; a refused one does not affect the others.",
        required=True,
        refused=(lambda node: batch_too_large(node.limits.batch_max),),
        each=each,
        minItems=1,
        maxItems=attrgetter("limits.batch_max"),
        **schema,
    )


class AttemptView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """One finished delivery."""

    worker: str
    started_at: str
    ended_at: str
    outcome: str
    error: str = ""
    worker_name: str = ""


class GroupCountsView(Struct):
    """How the members of a group have ended."""

    id: str
    total: int
    completed: int
    failed: int
    cancelled: int
    dead: int


class InputView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """How a task that this one waited for has ended; a result that is `leftOut` is with its task.

    `status` is that of a result, so a dead letter and a cancelled task are FAILED.
    """

    task_id: str
    status: str
    result: Raw | UnsetType = UNSET
    error: str = ""
    left_out: bool = False


class ProgressView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """How far a task is, by what its worker counts; a `total` of 0 is left out: it is unknown."""

    done: Int64
    total: Int64 = 0
    note: str = ""
    at: str


class CancelView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """What a cancel has said: why, and until when the worker has time to end the task."""

    reason: str = ""
    deadline: str


CANCEL = CancelView(reason="the order was withdrawn", deadline="2026-01-31T12:05:00.000Z")


class TaskView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A task; fields without a default are always present.

    `readyAt` is when a delayed task can be claimed, `expiresAt` when a waiting one dies. A run of a
    schedule has its instant in `scheduledFor`, and is `late` if it could not fire in time. A member
    of a group has the group's id in `groupId`; a group's completion task says in `group` what
    became of the members. `uniqueKey` is that of its `unique`, and `revision` how often later
    creates have replaced it. In the answer to such a create, `unique` says what it did: `created`,
    `returned`, `replaced` or `queued`. `inputs` is in the answer to a claim: by ref or id, how the
    tasks have ended that it waited for; so is `steps`: what its function has recorded. `parkedAt`
    is the step that a task waits at without a worker. `progress` is what its worker last said. In
    the answer to a claim, `checkpoint` is what the last worker has left. `cancel` is what a cancel
    with a grace or a reason has said of it. `tags` and `metadata` are what its producer said.
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
    lease_token: Int64 = 0
    run_at: str = ""
    ready_at: str = ""
    expires_at: str = ""
    shard: int
    history: tuple[AttemptView, ...] = ()
    timeout_seconds: int = 0
    backoff_policy: str = ""
    backoff_base_seconds: int = 0
    backoff_max_seconds: int = 0
    worker_name: str = ""
    parent_id: str = ""
    root_id: str = ""
    schedule_id: str = ""
    scheduled_for: str = ""
    late: bool = False
    key: str = ""
    cost: int = 1
    group_id: str = ""
    group: GroupCountsView | UnsetType = UNSET
    inputs: dict[str, InputView] | UnsetType = UNSET
    unique_key: str = ""
    revision: int = 0
    unique: str = ""
    parked_at: str = ""
    steps: list[StepView] | UnsetType = UNSET
    progress: ProgressView | UnsetType = UNSET
    checkpoint: Raw | UnsetType = UNSET
    cancel: CancelView | UnsetType = UNSET
    tags: dict[str, str] | UnsetType = UNSET
    metadata: Raw | UnsetType = UNSET


class ArtifactView(Struct):
    """A product of a task."""

    name: str
    url: str


class FollowUpView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A task that a result has made: its id, or the idempotency key that leads to it."""

    id: str = ""
    idempotency_key: str = ""


class ResultView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """How a task ended."""

    task_id: str
    status: str
    result: Raw | UnsetType = UNSET
    error: str = ""
    artifacts: tuple[ArtifactView, ...] = ()
    completed_at: str
    next: tuple[FollowUpView, ...] = ()


class TaskAndResult(Struct, rename="camel"):
    """An ended task with its result."""

    task: TaskView
    result: ResultView


def task_view(task: Task, payload: str, *, shards: int, claimed: bool = False) -> TaskView:
    """Render a task; only the worker that has just claimed it sees the lease token."""
    leased = task.state is State.LEASED
    waiting = task.state in (State.READY, State.DELAYED, State.HELD)
    created_at = rfc3339(task.created_ms)
    is_new = task.updated_ms == task.created_ms
    view = TaskView(
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
        created_at=created_at,
        updated_at=created_at if is_new else rfc3339(task.updated_ms),
        lease_token=task.lease_token if claimed else 0,
        run_at=rfc3339(task.run_at_ms) if task.run_at_ms else "",
        ready_at=rfc3339(task.due_ms) if task.state is State.DELAYED else "",
        expires_at=rfc3339(task.expires_ms) if waiting and task.expires_ms else "",
        shard=shard_of(task.id, shards) if shards > 1 else 0,
        history=tuple(map(attempt_view, task.history)),
        worker_name=task.worker_name,
    )
    if task.handling is not None:
        show_handling(view, task.handling)
    if task.more is not None:
        show_more(view, task.more)
    return view


def show_more(view: TaskView, more: More) -> None:
    """Write what most tasks lack into a view."""
    view.key, view.cost = more.key, more.cost
    view.parent_id, view.root_id = more.parent_id, more.root_id
    if more.run is not None:
        view.schedule_id = more.run.schedule
        view.scheduled_for = rfc3339(more.run.at_ms)
        view.late = more.run.late
    if more.member is not None:
        view.group_id = more.member.group
    if more.unique is not None:
        view.unique_key, view.revision = more.unique.key, more.unique.revision
    if more.durable is not None:
        view.parked_at = more.durable.parked_at
    if more.progress is not None:
        view.progress = progress_view(more.progress)
    if more.cancelling is not None:
        view.cancel = cancel_view(more.cancelling)
    if more.tags:
        view.tags = dict(more.tags)
    if more.metadata:
        view.metadata = Raw(more.metadata.encode())
    if more.completes is not None:
        view.group = GroupCountsView(*astuple(more.completes))


def status_of(task: Task) -> str:
    """Return a task's status in the contract's words."""
    return _STATUS[task.state]


def progress_view(said: Progress) -> ProgressView:
    """Render how far a task is."""
    return ProgressView(done=said.done, total=said.total, note=said.note, at=rfc3339(said.at_ms))


def cancel_view(asked: Cancelling) -> CancelView:
    """Render what a cancel has said of a task."""
    return CancelView(reason=asked.reason, deadline=rfc3339(asked.deadline_ms))


def show_inputs(view: TaskView, inputs: Iterable[Input]) -> None:
    """Write what others have handed to a task into the view of its claim."""
    view.inputs = {
        each.name: InputView(
            task_id=each.parent,
            status=shown_status(each.ended.status),
            result=Raw(each.ended.body.encode()) if each.ended.body else UNSET,
            error=each.ended.error,
            left_out=each.ended.left_out,
        )
        for each in inputs
    }


def result_view(result: Result) -> ResultView:
    """Render a result."""
    return ResultView(
        task_id=result.task_id,
        status=result.status,
        result=Raw(result.body) if result.body else UNSET,
        error=result.error,
        artifacts=tuple(map(_artifact_view, result.artifacts)),
        completed_at=rfc3339(result.completed_ms),
        next=tuple(map(follow_up_view, result.next)),
    )


def follow_up_view(made: FollowUp) -> FollowUpView:
    """Render a task that a result has made."""
    return FollowUpView(id=made.id, idempotency_key=made.key)


def _artifact_view(artifact: Artifact) -> ArtifactView:
    return ArtifactView(artifact.name, artifact.url)


def attempt_view(attempt: Attempt) -> AttemptView:
    """Render a finished delivery."""
    return AttemptView(
        worker=attempt.worker,
        started_at=rfc3339(attempt.started_ms),
        ended_at=rfc3339(attempt.ended_ms),
        outcome=attempt.outcome.value,
        error=attempt.error,
        worker_name=attempt.worker_name,
    )


class Said(Protocol):
    """A body with the fields; absent ones say nothing."""

    timeout_seconds: int | None
    backoff_policy: str | None
    backoff_base_seconds: int | None
    backoff_max_seconds: int | None


class Shown(Protocol):
    """A view with the fields."""

    timeout_seconds: int
    backoff_policy: str
    backoff_base_seconds: int
    backoff_max_seconds: int


def read_handling(
    body: Said, number: Callable[[str, int | None], int], policy: Callable[[str | None], str]
) -> Handling | None:
    """Return what a body says; `number` and `policy` check a field and raise the route's error."""
    if (
        body.timeout_seconds is None
        and body.backoff_policy is None
        and body.backoff_base_seconds is None
        and body.backoff_max_seconds is None
    ):
        return None
    return or_none(
        Handling(
            timeout_ms=number("timeoutSeconds", body.timeout_seconds) * 1000,
            backoff=policy(body.backoff_policy),
            backoff_base_ms=number("backoffBaseSeconds", body.backoff_base_seconds) * 1000,
            backoff_max_ms=number("backoffMaxSeconds", body.backoff_max_seconds) * 1000,
        )
    )


def show_handling(view: Shown, handling: Handling | None) -> None:
    """Write it into a view."""
    if handling is None:
        return
    view.timeout_seconds = handling.timeout_ms // 1000
    view.backoff_policy = handling.backoff
    view.backoff_base_seconds = handling.backoff_base_ms // 1000
    view.backoff_max_seconds = handling.backoff_max_ms // 1000


TASK_ID = "0c8a2f4e-6d1b-4f7a-9b3c-5e2d8f1a7c60"
COMMAND = "resize-image"
CURSOR = "q1Zx0cVQcmVzaXplLWltYWdlAAX___5n"
NOON_MS = 1_769_860_800_000  # 2026-01-31T12:00:00Z

_SECOND_MS = 1_000
_MINUTE_MS = 60 * _SECOND_MS
_NEW = Task(
    id=TASK_ID,
    tenant="acme",
    command=COMMAND,
    priority=5,
    max_attempts=5,
    created_ms=NOON_MS,
    updated_ms=NOON_MS,
    state=State.READY,
)
_DELIVERED = Attempt(
    worker="worker-7",
    started_ms=NOON_MS + _SECOND_MS,
    ended_ms=NOON_MS + 9 * _SECOND_MS,
    outcome=AttemptOutcome.COMPLETED,
)
_DIED_MS = NOON_MS + 20 * _MINUTE_MS


def _view(task: Task, *, claimed: bool = False) -> TaskView:
    return task_view(task, '{"image":"cat.png","width":640}', shards=1, claimed=claimed)


TASK = _view(_NEW)
CLAIMED = _view(
    replace(
        _NEW,
        state=State.LEASED,
        worker="worker-7",
        lease_until_ms=NOON_MS + 5 * _MINUTE_MS + _SECOND_MS,
        attempts=1,
        updated_ms=NOON_MS + _SECOND_MS,
        lease_token=281474976710657,
    ),
    claimed=True,
)
FINISHED = _view(
    replace(
        _NEW,
        state=State.DONE,
        attempts=1,
        has_result=True,
        updated_ms=_DELIVERED.ended_ms,
        history=(_DELIVERED,),
    )
)
RESULT = result_view(
    Result(
        task_id=TASK_ID,
        status="COMPLETED",
        body='{"url":"https://example.com/cat-640.png"}',
        artifacts=(Artifact("thumbnail", "https://example.com/cat-64.png"),),
        completed_ms=_DELIVERED.ended_ms,
    )
)
DEAD = _view(
    replace(
        _NEW,
        state=State.DEAD,
        priority=0,
        attempts=5,
        error="MAX_ATTEMPTS",
        has_result=True,
        updated_ms=_DIED_MS,
    )
)
DEAD_RESULT = result_view(
    Result(task_id=TASK_ID, status="FAILED", error=DEAD.error, completed_ms=_DIED_MS)
)
