"""Execution: one delivery of a Django task, in a thread of a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import close_old_connections, reset_queries
from django.utils import timezone
from msgspec import Raw

from codeq_cluster.client import Fail, Retry
from codeq_cluster.client import Task as Delivery
from codeq_cluster.integrations.django.framework import (
    BaseTaskBackend,
    TaskContext,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from codeq_cluster.integrations.django.messages import (
    error_of,
    error_text,
    put,
    result_of,
    returned,
)


def handler_for(backend: BaseTaskBackend) -> Callable[[Delivery[Any]], Raw]:
    """Return the handler of a worker for the tasks of a backend.

    What a function returns is the result; what it raises fails the task for good, but for `Retry`.
    A task that this release of the application does not have goes back to its queue.
    """

    def handle(delivery: Delivery[Any]) -> Raw:
        # A thread keeps its connections, as a thread that serves requests does.
        close_old_connections()
        reset_queries()
        try:
            return _run(backend, result_of(delivery.record, backend=backend.alias))
        finally:
            close_old_connections()

    return handle


def _run(backend: BaseTaskBackend, result: TaskResult) -> Raw:
    """Call the function, and tell of it as Django's own backends do."""
    # A receiver's error is logged, and neither repeats nor fails the task.
    task_started.send_robust(type(backend), task_result=result)
    context = (TaskContext(task_result=result),) if result.task.takes_context else ()
    try:
        value = normalize_json(result.task.call(*context, *result.args, **result.kwargs))
        kept = returned(value)
    except Retry:
        raise
    except BaseException as error:  # The end of a thread is no way to end a worker.
        raised = error_of(error)
        result.errors.append(raised)
        put(result, finished_at=timezone.now(), status=TaskResultStatus.FAILED)
        task_finished.send_robust(type(backend), task_result=result)
        following = error.next if isinstance(error, Fail) else ()
        raise Fail(error_text(raised), next=following) from error
    put(result, finished_at=timezone.now(), status=TaskResultStatus.SUCCESSFUL, _return_value=value)
    task_finished.send_robust(type(backend), task_result=result)
    return kept
