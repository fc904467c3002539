"""Django's outbox: rows of an ORM transaction become tasks, on SQLite and a real PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections, transaction
from django.test import override_settings
from django.utils import timezone
from django_tasks.exceptions import TaskResultDoesNotExist

from codeq_cluster.client import Client, Leases, NewTask, SyncClient, Unreachable
from codeq_cluster.integrations.django.models import OutboxRow
from codeq_cluster.integrations.django.outbox import ModelRows, enqueue, retry, status
from codeq_cluster.integrations.relay import Relay
from codeq_cluster.testing.broker import LocalBroker
from tests.unit.integrations.django_project import tasks
from tests.unit.integrations.made_tasks import numbers, tasks_of

BACKEND = "codeq_cluster.integrations.django.backend.CodeqBackend"
COUNT = 20


def _database(engine: str, **fields: object) -> dict[str, Any]:
    return {**connections.databases["default"], "ENGINE": f"django.db.backends.{engine}", **fields}


@pytest.fixture(params=["sqlite", pytest.param("pg", marks=pytest.mark.needs("psql"))])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the alias of a project's database with an empty outbox."""
    alias: str = request.param
    if alias == "pg":
        host = str(request.getfixturevalue("postgresql_directory"))
        made = _database("postgresql", HOST=host, USER="postgres", NAME="postgres")
    else:
        made = _database("sqlite3", NAME=str(tmp_path / "app.db"))
    connections.databases[alias] = made
    call_command("migrate", database=alias, verbosity=0)
    OutboxRow.objects.using(alias).all().delete()
    yield alias
    connections[alias].close()
    del connections[alias], connections.databases[alias]


@pytest.fixture
def client(broker: LocalBroker) -> Iterator[SyncClient]:
    """Return a producer."""
    with broker.sync_client() as client:
        yield client


@pytest.fixture
def project(url: str) -> Iterator[None]:
    """Let the project's settings name the broker of the tests."""
    tasks = {"default": {"BACKEND": BACKEND, "OPTIONS": {"url": url}}}
    with override_settings(TASKS=tasks):
        yield


def _enqueue(database: str, queue: str, count: int) -> None:
    with transaction.atomic(using=database):
        for number in range(count):
            enqueue(NewTask(queue, number), using=database)


def test_the_model_is_what_its_migration_makes(project: None) -> None:
    """A change of the model would need another migration."""
    call_command("makemigrations", "codeq_cluster", check=True, dry_run=True, verbosity=0)


def test_a_commit_makes_each_task_once_and_a_rollback_none(
    database: str, client: SyncClient, broker: LocalBroker
) -> None:
    """A savepoint that is rolled back takes its rows along."""
    queue = f"django-committed-{database}"
    with transaction.atomic(using=database):
        enqueue(NewTask(queue, 1), using=database)
        with transaction.atomic(using=database):
            enqueue(NewTask(queue, 2), using=database)
            transaction.set_rollback(True, using=database)
        enqueue(NewTask(queue, 3), using=database)
    with transaction.atomic(using=database):
        enqueue(NewTask(queue, 4), using=database)
        transaction.set_rollback(True, using=database)
    enqueue(NewTask(queue, 5), using=database)

    assert 3 == Relay(ModelRows(database), client).drain()
    assert [1, 3, 5] == numbers(broker, queue)
    assert 0 == status(database).waiting


def test_rows_flow_in_order_after_a_broker_was_away(
    database: str, closed_url: str, client: SyncClient, broker: LocalBroker
) -> None:
    """A hundred in one request, the oldest first."""
    queue = f"django-away-{database}"
    _enqueue(database, queue, 120)
    away = Client([closed_url.replace("codeq://token@", "http://")], token="t", deadline_s=0.1)
    with SyncClient(away) as nobody, pytest.raises(Unreachable):
        Relay(ModelRows(database), nobody).turn()

    assert 120 == status(database).waiting
    assert 100 == Relay(ModelRows(database), client).turn()
    assert list(range(100)) == numbers(broker, queue)
    assert 20 == Relay(ModelRows(database), client).turn()
    assert list(range(120)) == numbers(broker, queue)


def test_rows_may_be_passed_over(database: str) -> None:
    """Those whose tasks are too many for now."""
    queue = f"django-passed-{database}"
    _enqueue(database, queue, 4)
    rows = ModelRows(database)
    first, _, third, _ = rows.oldest(count_max=4)
    others = rows.oldest(count_max=4, but=[first.key, third.key])
    rows.settle(posted=[row.key for row in rows.oldest(count_max=4)], refused={})

    assert [b"1", b"3"] == [row.payload for row in others]


def test_a_relay_that_is_killed_before_the_delete_makes_no_second_task(
    database: str, url: str, project: None, broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its process is killed while the database lets it delete nothing; the next one ends it."""
    queue = f"django-killed-{database}"
    _enqueue(database, queue, COUNT)
    with ExitStack() as held:
        held.enter_context(transaction.atomic(using=database))
        # As much as keeps others from a delete, and not from a read.
        OutboxRow.objects.using(database).filter(refusal=None).update(refusal=None)
        program = (
            "import django; django.setup()\n"
            "from django.db import connections\n"
            "from django.core.management import call_command\n"
            f"connections.databases[{database!r}] = {connections.databases[database]!r}\n"
            f"call_command('codeq_relay', database={database!r})\n"
        )
        relay = subprocess.Popen(
            [sys.executable, "-c", program], env={**os.environ, "CODEQ_URL": url}
        )
        try:
            asyncio.run(_arrived(broker, queue, COUNT))
        finally:
            relay.kill()
            assert -9 == relay.wait(60)

    assert COUNT == status(database).waiting
    assert list(range(COUNT)) == numbers(broker, queue)
    call_command("codeq_relay", database=database, once=True)
    assert f"{COUNT}\n" == capsys.readouterr().out
    assert list(range(COUNT)) == numbers(broker, queue)
    assert 0 == status(database).waiting


async def _arrived(broker: LocalBroker, queue: str, count: int) -> None:
    """Wait until so many tasks have come, and put them back."""
    async with Leases([broker.url], token=broker.token) as leases:
        claimed = []
        while len(claimed) < count:
            claimed += await leases.claim([queue], count=count, lease_s=60, wait_s=30)
        for task in claimed:
            await leases.abandon(task)


@pytest.mark.needs("psql")
@pytest.mark.parametrize("database", ["pg"], indirect=True)
def test_two_relays_at_once_make_each_row_one_task(
    database: str, client: SyncClient, broker: LocalBroker
) -> None:
    """Rows come while they run; both may post the same ones."""
    _enqueue(database, "django-raced", 150)

    def relay() -> None:
        Relay(ModelRows(database), client).drain()
        connections[database].close()

    relays = [Thread(target=relay) for _ in range(2)]
    for each in relays:
        each.start()
    _enqueue(database, "django-raced-too", 10)
    for each in relays:
        each.join()
    Relay(ModelRows(database), client).drain()

    assert list(range(150)) == numbers(broker, "django-raced")
    assert list(range(10)) == numbers(broker, "django-raced-too")


def test_a_row_that_comes_after_a_read_is_not_deleted_with_it(
    database: str, client: SyncClient, broker: LocalBroker
) -> None:
    """Rows are known by their keys: another one may have the number of a deleted one."""
    queue = f"django-numbers-{database}"
    _enqueue(database, queue, 1)
    rows = ModelRows(database)
    [first] = rows.oldest(count_max=2)
    number = OutboxRow.objects.using(database).get().id
    OutboxRow.objects.using(database).all().delete()
    enqueue(NewTask(queue, 7), using=database)
    OutboxRow.objects.using(database).update(id=number)
    rows.settle(posted=[first.key], refused={})

    assert 1 == status(database).waiting
    assert 1 == Relay(rows, client).drain()
    assert [7] == numbers(broker, queue)


def test_a_refused_row_is_set_aside_and_the_command_says_why(
    database: str, client: SyncClient, broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Others go on; `--retry` lets it wait again, and an old row is late."""
    queue = f"django-refused-{database}"
    enqueue(NewTask("no queue!", 0), using=database)
    enqueue(NewTask(queue, 1), using=database)
    Relay(ModelRows(database), client).drain()
    found = status(database)

    assert [1] == numbers(broker, queue)
    assert (0, 1) == (found.waiting, found.refused)
    with pytest.raises(SystemExit):
        call_command("codeq_relay", database=database, status=True)
    assert found.refusal in capsys.readouterr().out
    call_command("codeq_relay", database=database, retry=True)
    call_command("codeq_relay", database=database, status=True)
    told = capsys.readouterr().out.splitlines()
    assert ["1 rows wait again", "1 rows wait, the oldest for 0 s"] == told
    then = timezone.now() - timedelta(minutes=5)
    OutboxRow.objects.using(database).update(enqueued_at=then)
    with pytest.raises(SystemExit):
        call_command("codeq_relay", database=database, status=True)
    assert "no relay gets through" in capsys.readouterr().out
    assert 0 == retry(database)


@pytest.mark.needs("psql")
@pytest.mark.parametrize("database", ["pg"], indirect=True)
def test_a_relay_goes_on_when_its_database_is_there_again(
    database: str, client: SyncClient, broker: LocalBroker
) -> None:
    """A connection that broke is opened again at the next turn, however long it may be kept."""
    connections.databases[database]["CONN_MAX_AGE"] = None
    connections[database].close()
    _enqueue(database, "django-broken", 2)
    relay = Relay(ModelRows(database), client)
    with connections[database].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        own = cursor.fetchone()
    other = connections[database].copy()
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", own)
    other.close()
    with pytest.raises(ModelRows.passing):
        relay.turn()

    assert 2 == relay.drain()
    assert [0, 1] == numbers(broker, "django-broken")


def test_a_django_task_is_a_row_of_its_transaction(
    database: str, url: str, client: SyncClient, broker: LocalBroker
) -> None:
    """With `outbox` its id is known at once, and leads to the result when a relay has posted it."""
    queue = f"django-through-{database}"
    options = {"url": url, "outbox": database}
    backend = {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": options}
    with override_settings(TASKS={"default": backend}):
        queued = tasks.whoami.using(queue_name=queue)
        with transaction.atomic(using=database):
            kept = queued.enqueue()
            with transaction.atomic(using=database):
                lost = queued.enqueue()
                transaction.set_rollback(True, using=database)
        then = broker.now.replace(microsecond=0) + timedelta(days=1)
        later = queued.using(run_after=then, priority=100).enqueue()
        waits = queued.get_result(kept.id)
        assert (kept.id, "READY", queue) == (waits.id, waits.status, waits.task.queue_name)
        assert then == asyncio.run(queued.aget_result(later.id)).task.run_after
        assert waits.enqueued_at
        [first, *_] = ModelRows(database).oldest(count_max=2)
        assert first.group is not None
        client.begin_group(first.group)  # As by a relay that dies before it deletes the row.
        relayed = Relay(ModelRows(database), client).drain()
        call_command("codeq_worker", queue=[queue], tasks_max=1)
        outcome = queued.get_result(kept.id)
        delayed = queued.get_result(later.id)
        with pytest.raises(TaskResultDoesNotExist):
            queued.get_result(lost.id)

    assert 2 == relayed
    assert [kept.id, 1, "RUNNING"] == outcome.return_value
    assert (100, then) == (delayed.task.priority, delayed.task.run_after)
    assert 2 == len(tasks_of(broker, queue))


@override_settings(USE_TZ=False)
def test_a_project_without_time_zones_has_an_outbox_too(
    database: str, client: SyncClient, broker: LocalBroker
) -> None:
    """A delay counts from the enqueue; an instant without a zone is an error of its caller."""
    queue = f"django-zones-{database}"
    before = timezone.datetime.now().astimezone()
    enqueue(NewTask(queue, 1, delay=3600), using=database)
    [row] = ModelRows(database).oldest(count_max=2)

    assert row.new_task.run_at is not None
    assert timedelta(0) <= row.new_task.run_at - before - timedelta(hours=1) < timedelta(minutes=1)
    assert status(database).oldest_seconds < 60
    with pytest.raises(ValueError, match="time zone"):
        enqueue(NewTask(queue, 2, run_at=timezone.now()), using=database)


def test_a_broker_that_is_away_is_one_line_of_the_command(database: str, closed_url: str) -> None:
    """With `--once` somebody waits for it."""
    options = {"url": closed_url, "deadline_seconds": 0}
    enqueue(NewTask("django-away-once", 1), using=database)
    with (
        override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}}),
        pytest.raises(CommandError, match=closed_url.rpartition(":")[2]),
    ):
        call_command("codeq_relay", database=database, once=True)
