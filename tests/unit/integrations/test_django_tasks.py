"""Django's Tasks: enqueued, run and read by a real broker, as the project's own code does it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import override_settings
from django_tasks import TaskResult, TaskResultStatus, task, task_backends
from django_tasks.base import Task
from django_tasks.exceptions import InvalidTaskError, TaskResultDoesNotExist, TaskResultMismatch
from django_tasks.signals import task_enqueued, task_finished, task_started

from codeq_cluster.client import Leases, SyncClient
from codeq_cluster.client import Task as Delivery
from codeq_cluster.integrations.django.backend import CodeqBackend
from codeq_cluster.integrations.django.execution import handler_for
from codeq_cluster.integrations.django.messages import NotRun, priority_of
from codeq_cluster.testing.broker import LocalBroker
from tests.unit.integrations.django_project import tasks
from tests.unit.integrations.nested import nested

BACKEND = "codeq_cluster.integrations.django.backend.CodeqBackend"


def _settings(url: str, **options: object) -> dict[str, Any]:
    given = {"url": url, **options}
    return {"default": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": given}}


@pytest.fixture
def backend(url: str) -> Iterator[CodeqBackend]:
    """Return the project's backend, at the broker of the tests."""
    with override_settings(TASKS=_settings(url)):
        yield task_backends["default"]


@pytest.fixture
def on_commit(url: str) -> Iterator[CodeqBackend]:
    """Return a backend that waits for the transaction."""
    with override_settings(TASKS=_settings(url, on_commit="default")):
        yield task_backends["default"]


@pytest.fixture
def client(broker: LocalBroker) -> Iterator[SyncClient]:
    """Return a client that knows nothing of Django."""
    with broker.sync_client() as client:
        yield client


def _work(queue: str, count: int = 1, **options: object) -> None:
    """Run the worker's command until it has had so many deliveries."""
    call_command("codeq_worker", queue=[queue], tasks_max=count, **options)


@pytest.mark.parametrize("function", [tasks.add, tasks.add_async])
def test_a_task_is_enqueued_run_and_read(backend: CodeqBackend, function: Task[Any, int]) -> None:
    """Its result tells each state, for plain functions and coroutines."""
    result = function.using(queue_name="django-read").enqueue(1, two=3)

    assert (TaskResultStatus.READY, False, 0) == (
        result.status,
        result.is_finished,
        result.attempts,
    )
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value
    _work("django-read")
    result.refresh()

    assert (TaskResultStatus.SUCCESSFUL, 4, 1) == (
        result.status,
        result.return_value,
        result.attempts,
    )
    assert result.enqueued_at
    assert result.started_at
    assert result.finished_at
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at
    assert ([1], {"two": 3}, []) == (result.args, result.kwargs, result.errors)
    assert function.func == result.task.func
    assert function.get_result(result.id) == result


@pytest.mark.parametrize("function", [tasks.add, tasks.add_async])
def test_a_task_is_enqueued_and_read_by_a_coroutine(
    backend: CodeqBackend, function: Task[Any, int]
) -> None:
    """No thread is needed for it."""
    queued = function.using(queue_name="django-coroutine")
    result = asyncio.run(queued.aenqueue(4))
    _work("django-coroutine")
    read = asyncio.run(function.aget_result(result.id))

    assert (4, result.id) == (read.return_value, read.id)
    asyncio.run(result.arefresh())
    assert read.finished_at == result.finished_at


def test_values_come_back_as_json_has_them(backend: CodeqBackend) -> None:
    """Whole numbers of any size included; nothing is not an empty object."""
    values = [None, {}, [], "ä\x00\N{SNOWMAN}", 2**70, -1.5, {"a": [1, {"b": None}]}]
    results = [tasks.echo.using(queue_name="django-values").enqueue(each) for each in values]
    _work("django-values", len(values), concurrency=4)

    assert values == [tasks.echo.get_result(each.id).return_value for each in results]
    with pytest.raises(TypeError, match="Unsupported type"):
        tasks.echo.enqueue(object())
    with pytest.raises(ValueError, match="JSON"):
        tasks.echo.enqueue(float("inf"))


@pytest.mark.parametrize(
    ("function", "args", "kind", "text"),
    [
        (tasks.fail, ["no luck"], ValueError, "no luck"),
        (tasks.fail, ["long " * 5000], ValueError, "long long"),
        (tasks.leave, [], SystemExit, "bye"),
        (tasks.return_something_else, [], TypeError, "Unsupported type"),
        (tasks.not_a_number, [], ValueError, "JSON"),
        (tasks.return_much, [2**20], ValueError, "store it, and return where it is"),
        (tasks.return_half_a_character, [], ValueError, "invalid utf-16 surrogate pair"),
        (tasks.return_nested, [200], ValueError, "nests deeper than 200"),
        (tasks.add, ["one", 2, 3], TypeError, "positional argument"),
    ],
)
def test_a_function_that_raises_fails_its_task_for_good(
    backend: CodeqBackend, function: Task[Any, Any], args: list[Any], kind: type, text: str
) -> None:
    """The result has the exception's class and the end of its traceback; the worker goes on."""
    result = function.using(queue_name="django-failing").enqueue(*args)
    _work("django-failing")
    result.refresh()

    assert (TaskResultStatus.FAILED, 1) == (result.status, result.attempts)
    assert result.finished_at
    [error] = result.errors
    assert kind is error.exception_class
    assert text in error.traceback
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_a_small_return_value_below_the_bound_is_taken(backend: CodeqBackend) -> None:
    """The bound of the backend is not above the broker's."""
    count = 2**20 - 64 - len('{"return_value": ""}')
    result = tasks.return_much.using(queue_name="django-much").enqueue(count)
    _work("django-much")

    assert count == len(tasks.return_much.get_result(result.id).return_value)


def test_a_return_value_of_the_depth_bound_is_taken(backend: CodeqBackend) -> None:
    """The bound of the backend is not below the broker's."""
    result = tasks.return_nested.using(queue_name="django-deep").enqueue(199)
    _work("django-deep")

    assert nested(199) == tasks.return_nested.get_result(result.id).return_value


def test_a_retry_is_another_attempt(backend: CodeqBackend, broker: LocalBroker) -> None:
    """`Retry` of the client gives the task back; its result has every attempt and reason."""
    result = tasks.third_time.using(queue_name="django-retried").enqueue()
    for _ in range(2):
        _work("django-retried")
        result.refresh()
        assert TaskResultStatus.READY == result.status
        broker.advance(seconds=2)
    _work("django-retried")
    result.refresh()

    assert (3, 3) == (result.return_value, result.attempts)
    assert ["not yet"] * 2 == [each.traceback for each in result.errors]
    assert result.started_at
    assert result.last_attempted_at
    assert result.started_at < result.last_attempted_at


def test_a_task_waits_for_its_instant_at_the_broker(
    backend: CodeqBackend, client: SyncClient, broker: LocalBroker
) -> None:
    """`run_after` is no worker's affair."""
    then = broker.now.replace(microsecond=0) + timedelta(days=30)
    result = tasks.add.using(queue_name="django-later", run_after=then).enqueue(1)
    record = client.task(result.id)

    assert ("delayed", then) == (record.state, record.run_at)
    assert then == tasks.add.get_result(result.id).task.run_after
    with override_settings(USE_TZ=False):
        naive = tasks.add.using(queue_name="django-later", run_after=datetime(2030, 1, 1))  # noqa: DTZ001
        second = naive.enqueue(1)
        read = tasks.add.get_result(second.id)
    assert datetime(2030, 1, 1) == read.task.run_after  # noqa: DTZ001
    assert read.enqueued_at
    assert read.enqueued_at.tzinfo is None


def test_a_greater_priority_goes_first(backend: CodeqBackend, tmp_path: Path) -> None:
    """Those above 0 stay above it, and those below 0 below."""
    journal = tmp_path / "journal"
    for priority in 0, -1, 100, 1, -100, 50:
        ranked = tasks.note.using(queue_name="django-ranked", priority=priority)
        last = ranked.enqueue(str(journal), str(priority))
    _work("django-ranked", 6)

    assert ["100", "50", "1", "0", "-1", "-100"] == journal.read_text().split()
    assert 50 == tasks.note.get_result(last.id).task.priority
    assert [0, 3, 4, 5, 9] == [priority_of(each) for each in (-100, -1, 0, 1, 100)]
    assert sorted(map(priority_of, range(-100, 101))) == list(map(priority_of, range(-100, 101)))


def test_a_commit_enqueues_and_a_rollback_does_not(on_commit: CodeqBackend) -> None:
    """The id is known before, so that a row may hold it, and leads to the result after."""
    queued = tasks.whoami.using(queue_name="django-committed")
    told: list[TaskResult[Any]] = []

    def hear(task_result: TaskResult[Any], **_: object) -> None:
        told.append(task_result)

    task_enqueued.connect(hear)
    with transaction.atomic():
        kept = queued.enqueue()
        with pytest.raises(TaskResultDoesNotExist):
            queued.get_result(kept.id)
        assert (None, []) == (kept.enqueued_at, told)
        with transaction.atomic():
            lost = queued.enqueue()
            transaction.set_rollback(True)
    outside = queued.enqueue()
    task_enqueued.disconnect(hear)
    _work("django-committed", 2)

    assert [kept, outside] == told
    assert kept.enqueued_at
    assert [kept.id, 1, "RUNNING"] == queued.get_result(kept.id).return_value
    assert [outside.id, 1, "RUNNING"] == queued.get_result(outside.id).return_value
    with pytest.raises(TaskResultDoesNotExist):
        queued.get_result(lost.id)


def test_a_coroutine_waits_for_the_commit_too(on_commit: CodeqBackend) -> None:
    """Without a transaction there is nothing to wait for."""
    result = asyncio.run(tasks.add.using(queue_name="django-commit-async").aenqueue(5))
    _work("django-commit-async")

    assert 5 == tasks.add.get_result(result.id).return_value


def test_what_is_not_there_is_no_result(backend: CodeqBackend, client: SyncClient) -> None:
    """Neither is the task of a program that knows nothing of Django, nor another function's."""
    foreign = client.create("django-foreign", {"x": 1})
    other = tasks.add.using(queue_name="django-foreign").enqueue(1)

    for name in "123", "django-123", "a/b", "", foreign.id:
        with pytest.raises(TaskResultDoesNotExist):
            tasks.add.get_result(name)
        with pytest.raises(TaskResultDoesNotExist):
            asyncio.run(tasks.add.aget_result(name))
    with pytest.raises(TaskResultMismatch):
        tasks.echo.get_result(other.id)


def test_a_task_that_the_broker_ends_has_failed(
    backend: CodeqBackend, client: SyncClient, broker: LocalBroker
) -> None:
    """It was cancelled, or its workers died too often; its error is none of the function's."""
    queued = tasks.add.using(queue_name="django-ended")
    cancelled, died = queued.enqueue(1), queued.enqueue(2)
    client.cancel(cancelled.id)
    for _ in range(5):
        asyncio.run(_claimed(broker, "django-ended"))
        running = queued.get_result(died.id)
        assert TaskResultStatus.RUNNING == running.status
        broker.advance(minutes=20)
    results = [queued.get_result(each.id) for each in (cancelled, died)]

    assert [TaskResultStatus.FAILED] * 2 == [each.status for each in results]
    assert {NotRun} == {error.exception_class for each in results for error in each.errors}
    assert [1, 5] == [len(each.errors) for each in results]
    assert [0, 5] == [each.attempts for each in results]


async def _claimed(broker: LocalBroker, queue: str) -> Delivery[Any]:
    async with Leases([broker.url], token=broker.token) as leases:
        [record] = await leases.claim([queue], lease_s=10, worker_name="dies")
    return Delivery(record=record, payload=None)


def test_a_payload_calls_tasks_alone(
    backend: CodeqBackend, client: SyncClient, broker: LocalBroker
) -> None:
    """A producer cannot name any function; what this release lacks goes back to its queue."""
    plain = f"{tasks.__name__}.plain"
    for name in plain, "os.getcwd", f"{tasks.__name__}.of_the_next_release", "no.such.module":
        client.create("django-named", {"task": name, "args": [], "kwargs": {}})
    client.create("django-named", {"task": 5})
    _work("django-named", 5)
    with broker.sync_operator() as operator:
        found = operator.tasks(command="django-named").rows

    assert ["PENDING"] * 5 == [row["status"] for row in found]
    assert {"NACKED"} == {row["history"][-1]["outcome"] for row in found}
    errors = [row["history"][-1]["error"] for row in found]
    assert 2 == sum("is no task: decorate it" in each for each in errors)
    kinds = ("ImportError", "ModuleNotFoundError")
    assert 2 == sum(each.startswith(kinds) for each in errors)
    assert 1 == sum("the payload is no call of a Django task" in each for each in errors)


def test_a_worker_tells_as_djangos_own_do(
    backend: CodeqBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """Signals are sent around the function, and a receiver's error is not the task's."""
    told: list[str] = []

    def hear(task_result: TaskResult[Any], **_: object) -> None:
        told.append(f"{task_result.task.name} {task_result.status}")
        raise LookupError("a receiver's")

    for signal in task_started, task_finished:
        signal.connect(hear)
    with caplog.at_level(logging.INFO, logger="django_tasks"):
        tasks.add.using(queue_name="django-told").enqueue(1)
        tasks.fail.using(queue_name="django-told").enqueue("no")
        _work("django-told", 2)
    for signal in task_started, task_finished:
        signal.disconnect(hear)

    assert ["add RUNNING", "add SUCCESSFUL", "fail RUNNING", "fail FAILED"] == told
    [failure] = [each for each in caplog.records if "state=FAILED" in each.getMessage()]
    assert failure.exc_info


def test_a_worker_keeps_no_connection_to_the_database(
    backend: CodeqBackend, broker: LocalBroker
) -> None:
    """It ends after the task that opened it, as after a request."""
    result = tasks.query.using(queue_name="django-database").enqueue()
    delivery = asyncio.run(_claimed(broker, "django-database"))
    left: list[object] = []

    def run() -> None:
        left.append(bytes(handler_for(backend)(delivery)))
        left.append(connection.connection)

    thread = Thread(target=run)
    thread.start()
    thread.join()

    assert [b'{"return_value": 42}', None] == left
    assert TaskResultStatus.RUNNING == tasks.query.get_result(result.id).status


@task
def _no_name() -> None:
    pass


_other_name, _no_name = _no_name, None


def test_a_task_that_no_worker_could_run_is_refused(backend: CodeqBackend) -> None:
    """Its caller hears of it, and not a log of a worker."""
    with pytest.raises(InvalidTaskError, match="no worker finds it"):
        _other_name.enqueue()
    with pytest.raises(InvalidTaskError, match="A-Za-z0-9"):
        tasks.add.using(queue_name="no queue!")
    with pytest.raises(InvalidTaskError, match="aware"):
        tasks.add.using(run_after=datetime(2030, 1, 1))  # noqa: DTZ001 - that is the fault
    with pytest.raises(InvalidTaskError, match="between -100 and 100"):
        tasks.add.using(priority=101)


def test_a_queue_that_settings_do_not_name_is_refused(url: str) -> None:
    """Of a task that was made before the settings, too."""
    other = tasks.add.using(queue_name="mail")
    named = {"default": {**_settings(url)["default"], "QUEUES": ["default"]}}
    with override_settings(TASKS=named):
        with pytest.raises(InvalidTaskError, match="not valid for backend"):
            other.enqueue(1)
        with pytest.raises(InvalidTaskError, match="not valid for backend"):
            asyncio.run(other.aenqueue(1))
        with pytest.raises(CommandError, match="mail: not in QUEUES"):
            _work("mail")


def test_a_worker_runs_what_another_project_spells_in_another_case(
    backend: CodeqBackend, url: str
) -> None:
    """Queues ignore case; Django's own check of their names does not."""
    result = tasks.add.using(queue_name="django-spelled").enqueue(1, two=3)
    named = {"default": {**_settings(url)["default"], "QUEUES": ["Django-Spelled"]}}
    with override_settings(TASKS=named):
        _work("Django-Spelled")
        read = tasks.add.using(queue_name="Django-Spelled").get_result(result.id)

    assert (4, "Django-Spelled") == (read.return_value, read.task.queue_name)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "url: missing; write codeq://TOKEN@HOST:PORT"),
        ({"url": "http://token@n1:8080"}, "must begin with codeq://"),
        ({"url": "codeq://n1:8080"}, "no token; write"),
        ({"url": "codeq://token@"}, "no node"),
        ({"url": "codeq://token@n1", "deadline_seconds": "soon"}, "must be a number"),
        ({"url": "codeq://token@n1", "commit": True}, "commit: unknown; there are"),
        ({"url": "codeq://token@n1", "on_commit": True}, "must be an alias in DATABASES"),
        ({"url": "codeq://token@n1", "outbox": "other"}, "must be an alias in DATABASES"),
        (
            {"url": "codeq://token@n1", "outbox": "default", "on_commit": "default"},
            "a row of the outbox needs no other wait",
        ),
    ],
)
def test_wrong_options_are_errors_of_the_system_check(options: dict[str, Any], text: str) -> None:
    """`manage.py check` says what to write, and shows no token; so does the first enqueue."""
    backend = CodeqBackend("jobs", {"QUEUES": ["a"], "OPTIONS": options})
    [error] = backend.check()

    assert error.is_serious()
    assert text in error.msg
    assert "TASKS['jobs']" in error.msg
    assert "token@" not in error.msg
    with pytest.raises(Exception, match="TASKS"):
        _ = backend.link


def test_sound_options_pass_the_check_without_a_cluster() -> None:
    """Being away is no fault of the settings; a queue's name may be."""
    options = {"url": "codeqs://n1,n2?ca=/etc/ca.pem", "token": "t", "on_commit": "default"}

    assert [] == list(CodeqBackend("jobs", {"QUEUES": ["a"], "OPTIONS": options}).check())
    [error] = CodeqBackend("jobs", {"QUEUES": ["no queue!"], "OPTIONS": options}).check()
    assert "'no queue!'" in error.msg


def test_the_command_says_what_it_lacks(url: str, closed_url: str) -> None:
    """Every error is one line."""
    other = {"default": {"BACKEND": "django_tasks.backends.dummy.DummyBackend"}}
    with override_settings(TASKS=other), pytest.raises(CommandError, match="no CodeqBackend"):
        call_command("codeq_worker")
    with override_settings(TASKS=_settings(url)):
        with pytest.raises(CommandError, match="name some by --queue"):
            call_command("codeq_worker")
        with pytest.raises(CommandError, match="--backend mail"):
            call_command("codeq_worker", backend="mail")
        with pytest.raises(CommandError, match="concurrency=0"):
            call_command("codeq_worker", queue=["a"], concurrency=0)
    wrong = _settings(url.replace("codeq://", "codeq://not-").replace("not-test", "nobody's"))
    with override_settings(TASKS=wrong), pytest.raises(CommandError, match="token"):
        call_command("codeq_worker", queue=["a"])
