"""Messages: a call of a Django task as a task of the broker, and back."""

from __future__ import annotations

import json
import re
from datetime import datetime
from traceback import format_exception
from typing import Any, Final

import msgspec
from django.conf import settings
from django.core.exceptions import SuspiciousOperation
from django.utils import timezone
from django.utils.module_loading import import_string
from msgspec import Raw, Struct

from codeq_cluster.client import Result, State, TaskRecord
from codeq_cluster.integrations.bodies import fault_of
from codeq_cluster.integrations.django.framework import (
    Task,
    TaskError,
    TaskResult,
    TaskResultStatus,
    task_backends,
)

# The broker keeps 8,192 characters of an error, and its first line says which exception it was.
_ERROR_CHARS_MAX: Final = 8000
_RETURN_BYTES_MAX: Final = 2**20  # The broker's default bound on a result, less what frames it.
_FRAME_BYTES: Final = 64
_CLASS: Final = re.compile(r"[\w.<>]+\.\w+")
_NO_ERROR: Final = frozenset({"COMPLETED", "ABANDONED", "KEY_HELD", "QUEUE_HELD", "LIMIT_HELD"})
_STATUSES: Final = {
    State.LEASED: TaskResultStatus.RUNNING,
    State.DONE: TaskResultStatus.SUCCESSFUL,
    State.FAILED: TaskResultStatus.FAILED,
    State.DEAD: TaskResultStatus.FAILED,
}


class NotRun(Exception):
    """The broker ended a delivery, not the function: by a lost lease, a cancel or a dead letter."""


class Message(Struct, frozen=True, omit_defaults=True):
    """The payload of a task.

    Attributes:
        task: Where the task is, as `module.name`.
        priority: Django's, -100 to 100.
        id: Of the result, if the producer has chosen it.
    """

    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    priority: int = 0
    id: str = ""


class _Returned(Struct):
    return_value: Any = None


def message_of(result: TaskResult) -> Message:
    """Return what is sent for a new result, whose id is empty if the broker draws it."""
    return Message(
        task=result.task.module_path,
        args=result.args,
        kwargs=result.kwargs,
        priority=int(result.task.priority),
        id=result.id,
    )


def as_json(value: object) -> Raw:
    """Return a value as JSON text, with whole numbers of any size.

    Raises:
        ValueError: It holds a number that JSON has not, such as NaN.
        TypeError: It holds something else.
    """
    return Raw(json.dumps(msgspec.to_builtins(value), allow_nan=False).encode())


def returned(value: object) -> Raw:
    """Return what a function has returned, normalized, as the broker keeps it.

    Raises:
        ValueError: It cannot be JSON, or is larger or nests deeper than a result may.
    """
    text = as_json({"return_value": value})
    encoded = bytes(text)
    if len(encoded) > _RETURN_BYTES_MAX - _FRAME_BYTES:
        raise ValueError(
            f"the return value has {len(encoded)} bytes of JSON; "
            f"must be at most {_RETURN_BYTES_MAX - _FRAME_BYTES}: store it, and return where it is"
        )
    fault = fault_of(encoded)
    if fault:
        raise ValueError(f"the broker does not take the return value: {fault}")
    return text


def error_of(raised: BaseException) -> TaskError:
    """Return an exception as Django's results have it."""
    kind = type(raised)
    return TaskError(
        exception_class_path=f"{kind.__module__}.{kind.__qualname__}",
        traceback="".join(format_exception(raised)),
    )


def error_text(error: TaskError) -> str:
    """Return an error as the broker keeps it: its class, then the traceback or its end."""
    head = f"{error.exception_class_path}\n"
    text: str = error.traceback
    if len(head) + len(text) > _ERROR_CHARS_MAX:
        text = f"…\n{text[len(head) + 2 - _ERROR_CHARS_MAX :]}"
    return head + text


def priority_of(priority: int) -> int:
    """Return the broker's priority, 0 to 9, for one of Django's, -100 to 100; 4 for 0.

    Those above 0 stay above, and those below 0 below.
    """
    return 4 + (priority + 19) // 20 if priority > 0 else 4 - (24 - priority) // 25


def aware(instant: datetime | None) -> datetime | None:
    """Return an instant with its time zone; without `USE_TZ` it is one of the current zone."""
    return timezone.make_aware(instant) if instant and timezone.is_naive(instant) else instant


def result_of(record: TaskRecord, *, backend: str, ended: Result | None = None) -> TaskResult:
    """Return Django's result for a task of the broker.

    Args:
        backend: The alias of the backend.
        ended: How it has ended; None if it has not.

    Raises:
        SuspiciousOperation: It is no call of a Django task.
        ImportError: This release of the application does not have the function's module.
    """
    message = _read(record.payload)
    history = record.history
    workers = [each.worker_name or each.worker for each in history]
    starts = [each.started_at for each in history]
    if record.state is State.LEASED:
        workers.append(record.worker_name or record.worker_id)
        # Of the claim, or of the last renewal of its lease.
        starts.append(record.updated_at)
    # The broker forgets the oldest of more than twenty.
    workers = [""] * (record.attempts - len(workers)) + workers
    result = TaskResult(
        task=_task_of(message, record, backend),
        id=message.id or record.id,
        status=_STATUSES.get(record.state, TaskResultStatus.READY),
        enqueued_at=_shown(record.created_at),
        started_at=_shown(starts[0] if starts else None),
        finished_at=_shown(ended.record.completed_at if ended else None),
        last_attempted_at=_shown(starts[-1] if starts else None),
        args=message.args,
        kwargs=message.kwargs,
        backend=backend,
        errors=_errors(record),
        worker_ids=workers,
    )
    if ended is not None and ended.ok:
        value = msgspec.convert(json.loads(ended.text), _Returned).return_value
        put(result, _return_value=value)
    return result


def put(result: TaskResult, **fields: object) -> None:
    """Set fields of a result, which is frozen for others."""
    for name, value in fields.items():
        object.__setattr__(result, name, value)


def _read(payload: str) -> Message:
    try:
        return msgspec.convert(json.loads(payload), Message)
    except msgspec.ValidationError as error:
        raise SuspiciousOperation(f"the payload is no call of a Django task: {error}") from error


def _task_of(message: Message, record: TaskRecord, backend: str) -> Task:
    found = import_string(message.task)
    if not isinstance(found, Task):
        raise SuspiciousOperation(f"{message.task} is no task: decorate it with @task")
    return found.using(
        priority=message.priority,
        queue_name=_queue_of(record, backend),
        run_after=_shown(record.run_at),
        backend=backend,
    )


def _queue_of(record: TaskRecord, backend: str) -> str:
    """Return a task's queue as the project names it; its producer may write another case."""
    queue = record.command
    named = (each for each in task_backends[backend].queues if each.lower() == queue.lower())
    return next(named, queue)


def _errors(record: TaskRecord) -> list[TaskError]:
    over = record.state in {State.FAILED, State.DEAD}
    # Of the last error the history keeps the beginning, and the task all.
    before = record.history[:-1] if over else record.history
    texts = [each.error or each.outcome for each in before if each.outcome not in _NO_ERROR]
    return [_error(each) for each in (*texts, *([record.error] if over else ()))]


def _error(text: str) -> TaskError:
    path, newline, traceback = text.partition("\n")
    if newline and _CLASS.fullmatch(path):
        return TaskError(exception_class_path=path, traceback=traceback)
    own = f"{NotRun.__module__}.{NotRun.__qualname__}"
    return TaskError(exception_class_path=own, traceback=text)


def _shown(instant: datetime | None) -> datetime | None:
    """Return an instant as `USE_TZ` has it."""
    naive: bool = instant is not None and not settings.USE_TZ
    shown: datetime | None = timezone.make_naive(instant) if naive else instant
    return shown
