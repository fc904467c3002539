"""Rows: tasks as rows of a list, without payloads."""

from __future__ import annotations

from urllib.parse import urlsplit

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict

from codeq_cluster.api.routes.task_views import TaskView, task_view
from codeq_cluster.auth import Identity, Role
from codeq_cluster.codec.keyspace import PLACE_OF, QueuePlace
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.stepping import durable_of
from codeq_cluster.core.task import State, Task, worker_shown

# The page's name of each state, and the place of its tasks.
PLACES = {
    "ready": QueuePlace.PENDING,
    "in-progress": QueuePlace.INPROG,
    "delayed": QueuePlace.DELAYED,
    "held": QueuePlace.HELD,
    "completed": QueuePlace.DONE,
    "failed": QueuePlace.FAILED,
    "dead": QueuePlace.DLQ,
}
_NAMES = {place: name for name, place in PLACES.items()}
STATES = {state: _NAMES[place] for state, place in PLACE_OF.items()}
ERROR_CHARS_MAX = 300  # Characters in a row; the task's own view has the whole text.


class TaskRow(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A task in a list.

    Attributes:
        since: When its state began.
        until: When its delay or its lease ends.
        worker: The holder of its lease.
    """

    id: str
    command: str
    state: str
    priority: int = 0
    attempts: int = 0
    max_attempts: int = 0
    created_at: str
    since: str
    until: str | UnsetType = UNSET
    worker: str | UnsetType = UNSET
    error: str = ""


class TaskRows(Struct, rename="camel", kw_only=True):
    """A page of a list; the last page has no cursor."""

    tasks: list[TaskRow]
    cursor: str | UnsetType = UNSET


class TaskDetail(TaskView, rename="camel", omit_defaults=True, kw_only=True):
    """A task as the API shows it, but without its payload, and what the page shows beside that.

    Attributes:
        payload: Left out.
        state, since, until, worker: As in a row.
        webhook: Only its host for a caller who may not see payloads.
        metadata: Left out for that caller.
        expires_at: When it dies if it was not delivered, whatever its state.
        kept_until: When it is deleted.
        dead_queue: The queue that keeps it as a dead letter.
        beside: How many steps and signals stand beside it.
        logged: How many lines its log has got.
    """

    payload: str = ""
    state: str
    since: str
    until: str | UnsetType = UNSET
    worker: str | UnsetType = UNSET
    kept_until: str | UnsetType = UNSET
    payload_bytes: int
    result_bytes: int
    idempotency_key: str = ""
    dead_queue: str = ""
    beside: int = 0
    logged: int = 0


def task_row(task: Task) -> TaskRow:
    """Render a task of a list."""
    until_ms, worker = _until_ms(task), worker_shown(task)
    return TaskRow(
        id=task.id,
        command=task.command,
        state=STATES[task.state],
        priority=task.priority,
        attempts=task.attempts,
        max_attempts=task.max_attempts,
        created_at=rfc3339(task.created_ms),
        since=rfc3339(_since_ms(task)),
        until=_instant(until_ms),
        worker=worker if task.state is State.LEASED else UNSET,
        error=task.error[:ERROR_CHARS_MAX],
    )


def task_detail(task: Task, caller: Identity, *, shards: int) -> TaskDetail:
    """Render the fields of a task that the caller may see."""
    beside = durable_of(task)
    fields = asdict(task_view(task, "", shards=shards)) | asdict(task_row(task))
    if not sees_payloads(caller):
        fields["metadata"] = UNSET
    fields |= {
        "error": task.error,
        "webhook": shown_url(task.webhook, caller),
        "expires_at": rfc3339(task.expires_ms) if task.expires_ms else "",
    }
    return TaskDetail(
        **fields,
        kept_until=_instant(task.retain_until_ms if task.state.terminal else 0),
        payload_bytes=task.payload_bytes,
        result_bytes=task.result_bytes,
        idempotency_key=task.idempotency_key,
        dead_queue=task.dead_queue,
        beside=beside.steps + beside.signals,
        logged=beside.logged,
    )


def sees_payloads(caller: Identity) -> bool:
    """Return whether the caller may see payloads."""
    return Role.ADMIN in caller.roles


def shown_url(url: str, caller: Identity) -> str:
    """Return a URL; only its host for a caller who may not see secrets in the rest."""
    if not url or sees_payloads(caller):
        return url
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}/…"


def _since_ms(task: Task) -> int:
    match task.state:
        case State.READY:
            return task.ready_ms or task.created_ms
        case State.LEASED:
            return task.claimed_ms
        case _:
            return task.updated_ms


def _until_ms(task: Task) -> int:
    match task.state:
        case State.DELAYED:
            return task.due_ms
        case State.LEASED:
            return task.lease_until_ms
        case _:
            return 0


def _instant(ms: int) -> str | UnsetType:
    return rfc3339(ms) if ms else UNSET
