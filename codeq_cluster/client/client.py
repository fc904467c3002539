"""Client: the calls of producers and readers, as coroutines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from inspect import signature
from math import ceil, isnan
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from msgspec import Raw, Struct

from codeq_cluster.client.codecs import JSON, Codec
from codeq_cluster.client.connection import BASE, DEADLINE_S, TIMEOUT_S, as_json, part, query
from codeq_cluster.client.events import Events
from codeq_cluster.client.graphs import Graphs
from codeq_cluster.client.groups import Groups
from codeq_cluster.client.producing import (
    BATCH_BYTES_MAX,
    BATCH_MAX,
    Duration,
    NewTask,
    NotCreated,
    body_of,
    fresh_key,
    whole_seconds,
)
from codeq_cluster.client.records import (
    Explanation,
    LogRecord,
    ResultRecord,
    StepsRecord,
    TaskRecord,
)
from codeq_cluster.client.refusals import TOO_EARLY, Refused, Unreachable, said
from codeq_cluster.client.results import NotFinished, Result
from codeq_cluster.client.retrying import pause_s
from codeq_cluster.client.tracing import creating
from codeq_cluster.client.transport import Request
from codeq_cluster.portions import in_parts

WAIT_S_DEFAULT: Final = 60.0

A = ParamSpec("A")
C = TypeVar("C")
R = TypeVar("R")
T = TypeVar("T")

_WAIT_S_MAX: Final = 20  # For one request; a node that hangs costs this much of a wait.
# These codes refuse one task of several: its shard cannot take it now.
_PASSING: Final = frozenset({"no-leader", "outcome-unknown", "overloaded", TOO_EARLY})


class _Ended(Struct):
    task: TaskRecord
    result: ResultRecord


class _Cancelled(Struct):
    status: str = ""


class _Sent(Struct):
    replay: bool = False


class _Tagged(Struct):
    tags: dict[str, str]


class _Item(Struct):
    task: TaskRecord | None = None
    error: str = ""
    code: str = ""
    retryable: bool = False
    detail: str = ""

    def refused(self, task: NewTask) -> NotCreated:
        return NotCreated(task, said(self.error, self.detail), self.code, self.retryable)


class _Items(Struct):
    results: list[_Item]


def _as_arguments(
    make: Callable[A, T],
) -> Callable[
    [Callable[[C, T], Coroutine[Any, Any, R]]],
    Callable[Concatenate[C, A], Coroutine[Any, Any, R]],
]:
    """Return a decorator of methods that take one value; the caller gives the value's fields.

    Other arguments raise TypeError, which names the value's class.
    """

    def decorate(
        method: Callable[[C, T], Coroutine[Any, Any, R]],
    ) -> Callable[Concatenate[C, A], Coroutine[Any, Any, R]]:
        @wraps(method)
        async def call(self: C, /, *given: A.args, **named: A.kwargs) -> R:
            try:
                value = make(*given, **named)
            except TypeError as error:
                fields = make.__name__
                hint = f"{method.__name__}() takes the fields of {fields}, not a {fields}"
                raise TypeError(f"{hint}: {error}") from error
            return await method(self, value)

        own, made = signature(method), signature(make)
        first = next(iter(own.parameters.values()))
        # What `help` and editors show.
        call.__dict__["__signature__"] = own.replace(parameters=[first, *made.parameters.values()])
        return call

    return decorate


class Client(Groups, Graphs, Events):
    """Creates tasks, reads them, follows them and waits for their results.

    Every call raises `Unreachable` when no node took it. It raises `Refused` when the broker
    refused it or its outcome is unknown.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        token: str,
        deadline_s: float = DEADLINE_S,
        timeout_s: float = TIMEOUT_S,
        discover: bool = True,
        ca_file: Path | None = None,
        codec: Codec = JSON,
    ) -> None:
        """Prepare a client; nothing is sent yet.

        Args:
            urls: Base URLs of nodes, at least one, the preferred ones first.
            token: A producer's token; for reading, any token.
            deadline_s: The deadline of a call with all its repetitions.
            timeout_s: The timeout of one request.
            discover: Learn the other nodes.
            ca_file: The only authorities trusted for https.
            codec: Converts payloads and results.
        """
        super().__init__(
            urls,
            token=token,
            deadline_s=deadline_s,
            timeout_s=timeout_s,
            discover=discover,
            ca_file=ca_file,
        )
        self._codec = codec

    @_as_arguments(NewTask)
    async def create(self, task: NewTask) -> TaskRecord:
        """Create a task, exactly once even when the request is repeated, and return it.

        `NewTask` explains each argument. If the caller passes its own key, a task created earlier
        with that key is returned: a program that is started again can repeat the call.
        """
        with creating(task.command):
            request = Request(
                method="POST",
                path=f"{BASE}/tasks",
                body=body_of(_keyed(task), self._codec),
                repeatable=True,
            )
            return await self._call(request, TaskRecord)

    async def create_many(
        self, tasks: Iterable[NewTask], *, chunk: int = BATCH_MAX
    ) -> list[TaskRecord | NotCreated]:
        """Create tasks, at most `chunk` in one request, and return their outcomes, in order.

        Each item is independent: some may be created and others not.

        Raises:
            Refused: The broker refused them all, for instance because the token may not create.
        """
        asked = [_keyed(task) for task in tasks]
        # Encode all of them first: an item that cannot be encoded must not leave others half-way.
        encoded = [body_of(task, self._codec) for task in asked]
        outcomes: list[TaskRecord | NotCreated] = []
        with creating("batch", count=len(asked)):
            for bodies in in_parts(encoded, len, size_max=BATCH_BYTES_MAX, count_max=chunk):
                items = asked[len(outcomes) : len(outcomes) + len(bodies)]
                try:
                    made = await self._created(bodies)
                except (Refused, Unreachable) as error:
                    if not outcomes and isinstance(error, Refused) and 400 <= error.status < 500:
                        raise
                    made = [_not_made(error)] * len(items)
                outcomes += [
                    each.task or each.refused(task) for task, each in zip(items, made, strict=True)
                ]
        return outcomes

    async def task(self, task_id: str) -> TaskRecord:
        """Return a task as it is now."""
        return await self._read(f"{BASE}/tasks/{part(task_id)}", TaskRecord)

    async def wait(self, task_id: str, *, timeout_s: float = WAIT_S_DEFAULT) -> Result:
        """Return how a task ended, as soon as it has: completed, failed, cancelled or dead.

        Args:
            task_id: The id of the task.
            timeout_s: How long to wait, rounded to whole seconds; 0 does not wait, inf for ever.

        Raises:
            NotFinished: The task has not ended in that time.
            ValueError: The time is not a number.
        """
        if isnan(timeout_s):
            raise ValueError("timeout_s: must be a number of seconds")
        until_s = time.monotonic() + timeout_s
        path = f"{BASE}/tasks/{part(task_id)}/result"
        while True:
            wait_s = ceil(min(max(0.0, until_s - time.monotonic()), _WAIT_S_MAX))
            request = Request(method="GET", path=f"{path}?waitSeconds={wait_s}", wait_s=wait_s)
            try:
                ended = await self._call(request, _Ended)
            except Refused as error:
                if error.code != "result-not-found":
                    raise
                if time.monotonic() >= until_s - 1:
                    raise NotFinished(task_id, timeout_s) from None
            else:
                return Result(task=ended.task, record=ended.result, _codec=self._codec)

    async def create_and_wait(
        self,
        command: str,
        payload: object,
        *,
        timeout_s: float = WAIT_S_DEFAULT,
        priority: int = 0,
        max_attempts: int | None = None,
        ttl: Duration | None = None,
    ) -> Result:
        """Create a task and return how it ended.

        For a task with more of its own, such as an idempotency key, `create` it and then `wait`.
        """
        task = await self.create(
            command, payload, priority=priority, max_attempts=max_attempts, ttl=ttl
        )
        return await self.wait(task.id, timeout_s=timeout_s)

    async def explain(self, task_id: str) -> Explanation:
        """Return the one reason a task is where it is."""
        return await self._read(f"{BASE}/tasks/{part(task_id)}/explain", Explanation)

    async def cancel(
        self,
        task_id: str,
        *,
        grace: Duration = 0,
        reason: str = "",
        dependents: bool = False,
    ) -> bool:
        """Cancel a task that has not ended; its worker learns of it at its next heartbeat.

        A cancel whose connection broke is not repeated: a second one would be refused with the code
        `already-terminal`.

        Args:
            task_id: Of the task.
            grace: How long its worker may take to end it, at most a day; what the worker returns by
                then counts. A task that nobody holds is cancelled at once.
            reason: For the worker, and for people.
            dependents: Cancel also what waits for it, and what waits for that.

        Returns:
            False if the worker still has time. A node of release 0.1.0 gives it none.
        """
        said: dict[str, object] = {}
        if seconds := whole_seconds(grace):
            said["graceSeconds"] = seconds
        if reason:
            said["reason"] = reason
        if dependents:
            said["dependents"] = True
        path = f"{BASE}/tasks/{part(task_id)}/cancel"
        request = Request(method="POST", path=path, body=as_json(said), repeatable=False)
        return (await self._call(request, _Cancelled)).status == "cancelled"

    async def tag(
        self, task_id: str, tags: Mapping[str, str] | None = None, *, remove: Sequence[str] = ()
    ) -> Mapping[str, str]:
        """Set and remove tags of a task, whatever its state; return all that it has then.

        Args:
            task_id: Of the task.
            tags: By name; they replace what the task has under these names.
            remove: Names, none of them in `tags`.
        """
        body = {"set": dict(tags or {}), "remove": list(remove)}
        path = f"{BASE}/tasks/{part(task_id)}/tags"
        return (await self._changed("PATCH", path, body, of=_Tagged)).tags

    async def signal(
        self, task_id: str, name: str, payload: object = None, *, idempotency_key: str | None = None
    ) -> bool:
        """Send a task a signal: it ends a wait for it, now or later; True if it had it before.

        Args:
            task_id: Of a task that has not ended.
            name: 1 to 128 of A-Za-z0-9._:@-.
            payload: What the wait returns, at most 64 KiB of JSON.
            idempotency_key: A second signal with the same key is a retry; None for a fresh one.
        """
        key = fresh_key() if idempotency_key is None else idempotency_key
        value = Raw(b"null" if payload is None else self._codec.encode(payload))
        body = {"payload": value, "idempotencyKey": key}
        path = f"{BASE}/tasks/{part(task_id)}/signals/{part(name)}"
        return (await self._changed("POST", path, body, of=_Sent)).replay

    async def steps(self, task_id: str) -> StepsRecord:
        """Return what a task's function has recorded, and the signals to it."""
        return await self._read(f"{BASE}/tasks/{part(task_id)}/steps", StepsRecord)

    async def log(self, task_id: str, *, after: int = 0, limit: int = 200) -> LogRecord:
        """Return lines of a task's log: the first ones whose number is greater than `after`."""
        path = f"{BASE}/tasks/{part(task_id)}/log{query(after=after, limit=limit)}"
        return await self._read(path, LogRecord)

    async def _created(self, bodies: Sequence[bytes]) -> list[_Item]:
        """Create tasks in one request, and retry those that could not be created just now."""
        until_s = time.monotonic() + self._deadline_s
        made = await self._batch(bodies)
        failures = 0
        while passing := [n for n, each in enumerate(made) if each.code in _PASSING]:
            pause = pause_s(failures, Unreachable())
            if time.monotonic() + pause >= until_s:
                break
            await asyncio.sleep(pause)
            failures += 1
            try:
                again = await self._batch([bodies[n] for n in passing])
            except (Refused, Unreachable):
                break  # The others are created, and each of these has its own reason.
            for n, each in zip(passing, again, strict=True):
                made[n] = each
        return made

    async def _batch(self, bodies: Sequence[bytes]) -> list[_Item]:
        """Send tasks in one request, or in halves if the broker refuses that many at once."""
        body = as_json({"tasks": [Raw(body) for body in bodies]})
        request = Request(method="POST", path=f"{BASE}/tasks/batch", body=body)
        try:
            answer = await self._call(request, _Items)
        except Refused as error:
            if error.status != 413 and error.code != "batch-too-large":
                raise
            if len(bodies) == 1:
                return [_not_made(error)]
            half = len(bodies) // 2
            made = await self._batch(bodies[:half])
            try:
                return [*made, *await self._batch(bodies[half:])]
            except (Refused, Unreachable) as later:
                return [*made, *[_not_made(later)] * (len(bodies) - half)]
        if len(answer.results) != len(bodies):
            raise Refused(f"{request.path}: the answer has another length", status=200)
        return answer.results


def _not_made(error: Refused | Unreachable) -> _Item:
    if isinstance(error, Unreachable):
        return _Item(error=str(error), code="unreachable", retryable=True)
    return _Item(error=str(error), code=error.code, retryable=error.retryable)


def _keyed(task: NewTask) -> NewTask:
    if task.idempotency_key is not None or task.unique is not None:
        return task
    return replace(task, idempotency_key=fresh_key())
