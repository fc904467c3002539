"""Backend: Django's Tasks, kept and handed out by the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Any, Final
from uuid import uuid4

from asgiref.sync import sync_to_async
from django.core.checks import CheckMessage
from django.core.exceptions import ImproperlyConfigured, SuspiciousOperation
from django.db import transaction
from django.utils import timezone
from django.utils.module_loading import import_string

from codeq_cluster.client import NotFinished, Refused, Result, State, TaskRecord
from codeq_cluster.integrations.django.framework import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from codeq_cluster.integrations.django.messages import (
    as_json,
    aware,
    message_of,
    priority_of,
    put,
    result_of,
)
from codeq_cluster.integrations.django.options import faults, is_queue, target_from
from codeq_cluster.integrations.link import Link, lasting
from codeq_cluster.integrations.rows import named_row
from codeq_cluster.integrations.target import Target

# Begins the id of a result that is known before its task is created: the name of a group of one.
_CHOSEN: Final = "django-"
_NOT_FOUND: Final = 404
_ENDED: Final = frozenset({State.DONE, State.FAILED, State.DEAD})


class CodeqBackend(BaseTaskBackend):
    """A backend for `TASKS`; any thread, process and loop may use it.

    A task is enqueued when the call returns, on a majority of the nodes. Within a transaction of
    the database that `on_commit` names, it is enqueued after the commit, and never after a
    rollback. With `outbox` it is a row of that database, which a relay makes a task.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def check(self, **_: Any) -> Iterable[CheckMessage]:
        """Return what is wrong with the settings, without asking the cluster."""
        return list(faults(self.alias, self.options, self.queues))

    @cached_property
    def target(self) -> Target:
        """The cluster.

        Raises:
            ImproperlyConfigured: The settings are wrong.
        """
        if found := self.check():
            raise ImproperlyConfigured("; ".join(each.msg for each in found))
        return target_from(self.options)

    @property
    def link(self) -> Link:
        """The connection to it, of this process."""
        return lasting(self.target)

    def validate_task(self, task: Task) -> None:
        """Raise `InvalidTask` for what the broker would not take."""
        super().validate_task(task)
        if not is_queue(task.queue_name):
            raise InvalidTask(f"queue {task.queue_name!r}: must be 1 to 128 of A-Za-z0-9._:-")

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Create a task of the broker, once.

        Raises:
            InvalidTask: The task is not valid, or no worker would find its function.
            TypeError: An argument cannot be JSON.
            ValueError: An argument cannot be JSON.
            Refused: The broker does not take it, or the outcome is unknown.
            Unreachable: No node took it.
        """
        result = self._new(task, args, kwargs)
        outbox, waits_for = self.options.get("outbox"), self.options.get("on_commit")
        if outbox:
            name = _name(result)
            row = named_row(name, _on_the_wire(result), key=name.removeprefix(_CHOSEN))
            _outbox().write(row, using=outbox)
            self._enqueued(result, result.id)
        elif waits_for and transaction.get_connection(waits_for).in_atomic_block:
            # The caller may write the id into a row of this transaction.
            name, body = _name(result), _on_the_wire(result)

            def create() -> None:
                self._enqueued(result, self.link.run(self._create_named(name, body)))

            transaction.on_commit(create, using=waits_for)
        else:
            self._enqueued(result, self.link.run(self._create(_body(result))))
        return result

    async def aenqueue(
        self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> TaskResult:
        """As `enqueue`."""
        if self.options.get("on_commit") or self.options.get("outbox"):
            # A transaction belongs to the thread of the synchronous code around it.
            return await super().aenqueue(task, args, kwargs)
        result = self._new(task, args, kwargs)
        created = await asyncio.wrap_future(self.link.start(self._create(_body(result))))
        await sync_to_async(self._enqueued)(result, created)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        """Return a result, as a majority of the nodes has it, or the outbox before them.

        Raises:
            TaskResultDoesNotExist: There is none, its retention is over, it is no call of a Django
                task, or it is of a transaction that has not committed.
            ImportError: This release of the application does not have the function's module.
        """
        try:
            found = self.link.run(self._found(result_id))
        except TaskResultDoesNotExist:
            outbox = self.options.get("outbox")
            if not outbox or not result_id.startswith(_CHOSEN):
                raise
            row = _outbox().waiting(result_id.removeprefix(_CHOSEN), using=outbox)
            # Without a row a relay may have posted it just now.
            found = (row, None) if row else self.link.run(self._found(result_id))
        return self._shown(result_id, found)

    async def aget_result(self, result_id: str) -> TaskResult:
        """As `get_result`."""
        if self.options.get("outbox"):
            return await super().aget_result(result_id)
        found = await asyncio.wrap_future(self.link.start(self._found(result_id)))
        return self._shown(result_id, found)

    def _new(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        self.validate_task(task)
        path = task.module_path
        if not isinstance(import_string(path), Task):
            raise InvalidTask(f"{path} is no task, so no worker finds it: decorate it with @task")
        return TaskResult(
            task=task,
            id="",
            status=TaskResultStatus.READY,
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )

    async def _create(self, body: dict[str, Any]) -> str:
        return (await self.link.client.create(**body)).id

    async def _create_named(self, name: str, body: dict[str, Any]) -> str:
        """Create a task that is found by a name: the only member of a group."""
        await self.link.client.begin_group({"id": name, "tasks": [body], "seal": True})
        return name

    def _enqueued(self, result: TaskResult, result_id: str) -> None:
        put(result, id=result_id, enqueued_at=timezone.now())
        task_enqueued.send(type(self), task_result=result)

    async def _found(self, result_id: str) -> tuple[TaskRecord, Result | None]:
        client = self.link.client
        try:
            if result_id.startswith(_CHOSEN):
                [member] = (await client.group_results(result_id)).members
                result_id = member.task_id
            record = await client.task(result_id)
            if record.state not in _ENDED:
                return record, None
            ended = await client.wait(result_id, timeout_s=0)
        except NotFinished:  # An admin has requeued the dead letter just now.
            return record, None
        except Refused as error:
            if error.status != _NOT_FOUND:
                raise
            raise TaskResultDoesNotExist(result_id) from None
        return ended.task, ended

    def _shown(self, result_id: str, found: tuple[TaskRecord, Result | None]) -> TaskResult:
        record, ended = found
        try:
            return result_of(record, backend=self.alias, ended=ended)
        except SuspiciousOperation as error:
            raise TaskResultDoesNotExist(f"{result_id}: {error}") from error


def _outbox() -> ModuleType:
    """Return the module with the model, which needs the applications to be there."""
    return import_module("codeq_cluster.integrations.django.outbox")


def _name(result: TaskResult) -> str:
    """Give a result an id before its task is there, and return it."""
    name = f"{_CHOSEN}{uuid4().hex}"
    put(result, id=name)
    return name


def _on_the_wire(result: TaskResult) -> dict[str, Any]:
    """Return a new task of the broker as a request has it."""
    body = _body(result)
    run_at = body.pop("run_at")
    return {**body, "runAt": run_at} if run_at else body


def _body(result: TaskResult) -> dict[str, Any]:
    """Return the fields of a new task of the broker."""
    task = result.task
    return {
        "command": task.queue_name,
        "payload": as_json(message_of(result)),
        "priority": priority_of(task.priority),
        "run_at": aware(task.run_after),
    }
