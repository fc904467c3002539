"""Sync: the same calls for programs without an event loop; each call waits for its answer."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from codeq_cluster.client.background import Background
from codeq_cluster.client.client import Client
from codeq_cluster.client.connection import Connection
from codeq_cluster.client.groups import GroupRecord, OpenGroup
from codeq_cluster.client.operator import Operator
from codeq_cluster.client.producing import NewTask

A = ParamSpec("A")
T = TypeVar("T")
C_co = TypeVar("C_co", bound=Connection, covariant=True)


class _Sync(Generic[C_co]):
    """A connection whose event loop runs in its own thread; a context manager.

    Any number of threads may share it, but no other process: in one that was forked, and after it
    was closed, its calls raise `ConnectionGone`.
    """

    def __init__(self, connection: C_co) -> None:
        """Take over a connection that nobody else uses."""
        self._connection = connection
        self._background = Background(connection, name="codeq client")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to all nodes; calls, also those of other threads, fail then."""
        self._background.close()

    def raft_status(self) -> Mapping[str, Any]:
        """Return the groups of the node that answers, as it sees them."""
        return self._wait(self._connection.raft_status())

    def ids(self, prefix: str) -> tuple[str, ...]:
        """Return the first ids of tasks that begin with a prefix of at least 8 characters."""
        return self._wait(self._connection.ids(prefix))

    @property
    def nodes(self) -> tuple[str, ...]:
        """Base URLs of the nodes known so far."""
        return self._connection.nodes

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        return self._background.run(call)


def _waiting(
    method: Callable[Concatenate[C_co, A], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Sync[C_co], A], T]:
    """Return a method that calls a coroutine method and waits for its answer."""

    def call(self: _Sync[C_co], /, *given: A.args, **named: A.kwargs) -> T:
        return self._wait(method(self._connection, *given, **named))

    functools.update_wrapper(call, method)
    return call


def _yielding(
    method: Callable[Concatenate[C_co, A], AsyncGenerator[T, None]],
) -> Callable[Concatenate[_Sync[C_co], A], Iterator[T]]:
    """Return a method that yields what an async generator yields; closing the iterator ends it."""

    def call(self: _Sync[C_co], /, *given: A.args, **named: A.kwargs) -> Iterator[T]:
        found = method(self._connection, *given, **named)
        try:
            while True:
                yield self._wait(_next(found))
        finally:
            self._background.finish(found.aclose())

    functools.update_wrapper(call, method)
    return call


async def _next(found: AsyncGenerator[T, None]) -> T:
    return await anext(found)


def _opened(
    method: Callable[Concatenate[Client, A], OpenGroup],
) -> Callable[Concatenate[SyncClient, A], SyncGroup]:
    """Return a method that prepares a group for a `with` block."""

    def call(self: SyncClient, /, *given: A.args, **named: A.kwargs) -> SyncGroup:
        return SyncGroup(self, method(self._connection, *given, **named))

    functools.update_wrapper(call, method)
    return call


class SyncClient(_Sync[Client]):
    """A `Client` for programs without an event loop: the same calls with the same arguments.

    A group is for a plain `with`; closing the iterator of `events` ends it.

    `with SyncClient(Client(urls, token=token)) as client: client.create("greet", {})`
    """

    create = _waiting(Client.create)
    create_many = _waiting(Client.create_many)
    task = _waiting(Client.task)
    wait = _waiting(Client.wait)
    create_and_wait = _waiting(Client.create_and_wait)
    explain = _waiting(Client.explain)
    cancel = _waiting(Client.cancel)
    signal = _waiting(Client.signal)
    tag = _waiting(Client.tag)
    steps = _waiting(Client.steps)
    log = _waiting(Client.log)
    events_cursor = _waiting(Client.events_cursor)
    graph = _waiting(Client.graph)
    neighbours = _waiting(Client.neighbours)
    begin_group = _waiting(Client.begin_group)
    add_to_group = _waiting(Client.add_to_group)
    groups = _waiting(Client.groups)
    group_record = _waiting(Client.group_record)
    seal_group = _waiting(Client.seal_group)
    cancel_group = _waiting(Client.cancel_group)
    group_results = _waiting(Client.group_results)
    events = _yielding(Client.events)
    group = _opened(Client.group)


class SyncGroup:
    """An `OpenGroup` for programs without an event loop."""

    def __init__(self, client: SyncClient, group: OpenGroup) -> None:
        self._client = client
        self._group = group

    @property
    def id(self) -> str:
        """Its name."""
        return self._group.id

    def __enter__(self) -> Self:
        self._client.begin_group(self._group.body)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._client.seal_group(self.id)

    def add(self, *tasks: NewTask) -> GroupRecord:
        """Add tasks, a hundred in one request; each may have an idempotency key."""
        return self._client.add_to_group(self.id, tasks)


class SyncOperator(_Sync[Operator]):
    """An `Operator` for programs without an event loop: the same calls with the same arguments."""

    queues = _waiting(Operator.queues)
    queue_page = _waiting(Operator.queue_page)
    keys = _waiting(Operator.keys)
    key = _waiting(Operator.key)
    put_key = _waiting(Operator.put_key)
    delete_key = _waiting(Operator.delete_key)
    queue = _waiting(Operator.queue)
    pause = _waiting(Operator.pause)
    purge = _waiting(Operator.purge)
    resume = _waiting(Operator.resume)
    tasks = _waiting(Operator.tasks)
    dead_letters = _waiting(Operator.dead_letters)
    death_causes = _waiting(Operator.death_causes)
    dead_letter = _waiting(Operator.dead_letter)
    requeue = _waiting(Operator.requeue)
    delete_dead_letters = _waiting(Operator.delete_dead_letters)
    topics = _waiting(Operator.topics)
    topic = _waiting(Operator.topic)
    put_topic = _waiting(Operator.put_topic)
    delete_topic = _waiting(Operator.delete_topic)
    limits = _waiting(Operator.limits)
    limit = _waiting(Operator.limit)
    put_limit = _waiting(Operator.put_limit)
    delete_limit = _waiting(Operator.delete_limit)
    schedules = _waiting(Operator.schedules)
    schedule = _waiting(Operator.schedule)
    put_schedule = _waiting(Operator.put_schedule)
    delete_schedule = _waiting(Operator.delete_schedule)
    pause_schedule = _waiting(Operator.pause_schedule)
    resume_schedule = _waiting(Operator.resume_schedule)
    trigger_schedule = _waiting(Operator.trigger_schedule)
    backfill_schedule = _waiting(Operator.backfill_schedule)
    apply_schedules = _waiting(Operator.apply_schedules)
    preview_schedule = _waiting(Operator.preview_schedule)
    count_bulk = _waiting(Operator.count_bulk)
    start_bulk = _waiting(Operator.start_bulk)
    bulk_jobs = _waiting(Operator.bulk_jobs)
    bulk_job = _waiting(Operator.bulk_job)
    stop_bulk = _waiting(Operator.stop_bulk)
    deliveries = _waiting(Operator.deliveries)
    replay = _waiting(Operator.replay)
    webhook_keys = _waiting(Operator.webhook_keys)
    rotate_webhook_key = _waiting(Operator.rotate_webhook_key)
    asides = _waiting(Operator.asides)
    retry = _waiting(Operator.retry)
    audit = _waiting(Operator.audit)
    cluster = _waiting(Operator.cluster)
    transfer = _waiting(Operator.transfer)
    join = _waiting(Operator.join)
    remove = _waiting(Operator.remove)
    upgrade = _waiting(Operator.upgrade)
    begin_backup = _waiting(Operator.begin_backup)
    backups = _waiting(Operator.backups)
    backup = _waiting(Operator.backup)
    import_part = _waiting(Operator.import_part)
