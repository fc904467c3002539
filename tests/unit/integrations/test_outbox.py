"""Outbox: rows of an application's transaction become tasks, on SQLite and a real PostgreSQL."""

from __future__ import annotations

import logging
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from codeq_cluster.client import After, Client, NewTask, Refused, SyncClient, Unique, Unreachable
from codeq_cluster.integrations.outbox import METADATA, Relay, enqueue, retry, status
from codeq_cluster.integrations.outbox.__main__ import main
from codeq_cluster.integrations.outbox.table import TableRows
from codeq_cluster.testing.broker import LocalBroker
from tests.unit.integrations.made_tasks import numbers, tasks_of

_PAGE = Path(__file__).parents[3] / "docs" / "outbox.md"


@pytest.fixture
def postgresql(postgresql_directory: Path) -> str:
    """Return the URL of a PostgreSQL."""
    return f"postgresql+psycopg://postgres@/postgres?host={postgresql_directory}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.needs("psql"))])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """Return an application's database with an empty outbox and a table of its own."""
    url = f"sqlite:///{tmp_path / 'app.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgresql")
    engine = create_engine(url)
    METADATA.drop_all(engine)
    METADATA.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def client(broker: LocalBroker) -> Iterator[SyncClient]:
    """Return a producer."""
    with broker.sync_client() as client:
        yield client


@pytest.fixture(scope="module")
def counted() -> Callable[[], Counter[str]]:
    """Return what asks OpenTelemetry for the counters, each with its sum since the start."""
    reader = InMemoryMetricReader()
    # The process has one, for good, and nothing else here asks for one.
    metrics.set_meter_provider(MeterProvider([reader]))

    def sums() -> Counter[str]:
        found: Counter[str] = Counter()
        data = reader.get_metrics_data()
        resources = data.resource_metrics if data else []
        scopes = [scope for each in resources for scope in each.scope_metrics]
        for metric in [metric for scope in scopes for metric in scope.metrics]:
            for point in metric.data.data_points:
                found[metric.name] += int(getattr(point, "value", 0))
        return found

    return sums


class _Waits(logging.Filter):
    """Lets only the records of a relay that waits pass, after a call for each."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self._act = act

    def filter(self, record: logging.LogRecord) -> bool:
        waits = record.getMessage().startswith("outbox waits: ")
        if waits:
            self._act()
        return waits


def _enqueue(engine: Engine, command: str, count: int) -> None:
    with engine.begin() as connection:
        for number in range(count):
            enqueue(connection, NewTask(command, number))


def test_a_commit_makes_each_task_once_and_a_rollback_none(
    engine: Engine, client: SyncClient, broker: LocalBroker
) -> None:
    """The rows are the application's own, in its own transaction."""
    queue = f"committed-{engine.name}"
    with Session(engine) as session:
        enqueue(session, NewTask(queue, 1))
        session.commit()
        enqueue(session, NewTask(queue, 2))
        session.rollback()
        enqueue(session, NewTask(queue, 3))
        session.commit()
        enqueue(session, NewTask(queue, 4))

        # SQLite has one writer, and a relay of another connection deletes.
        session.rollback()
    settled = Relay(engine, client).drain()

    assert 2 == settled
    assert [1, 3] == numbers(broker, queue)
    assert 0 == status(engine).waiting


def test_a_relay_that_dies_before_the_delete_makes_no_second_task(
    engine: Engine, client: SyncClient, broker: LocalBroker
) -> None:
    """The row is posted again with its own key, and the broker knows it."""
    queue = f"died-{engine.name}"
    _enqueue(engine, queue, 3)

    def cut(_: Connection, __: object, statement: str, *___: object) -> None:
        if statement.startswith("DELETE"):
            raise OperationalError(statement, None, ConnectionError("cut"))

    event.listen(engine, "before_cursor_execute", cut)
    with pytest.raises(OperationalError):
        Relay(engine, client).turn()
    event.remove(engine, "before_cursor_execute", cut)

    assert 3 == status(engine).waiting
    assert [0, 1, 2] == numbers(broker, queue)
    assert 3 == Relay(engine, client).drain()
    assert [0, 1, 2] == numbers(broker, queue)


def test_a_relay_that_is_killed_before_the_delete_makes_no_second_task(
    engine: Engine, broker: LocalBroker
) -> None:
    """Its process posts the rows, waits for a lock before it deletes them, and dies there."""
    queue = f"killed-{engine.name}"
    _enqueue(engine, queue, 3)
    database = engine.url.render_as_string(hide_password=False)
    command = (sys.executable, "-m", "codeq_cluster.integrations.outbox", "relay")
    environment = {**os.environ, "CODEQ_OUTBOX_DATABASE": database, "CODEQ_TOKEN": broker.token}

    def relay(*options: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            (*command, "--url", broker.url, *options), env=environment, stdout=subprocess.PIPE
        )

    with engine.begin() as connection, relay() as dies:
        # Readers go on: SQLite locks the file against writers, PostgreSQL these rows.
        connection.execute(text("UPDATE codeq_outbox SET refusal = NULL"))
        while numbers(broker, queue) != [0, 1, 2]:
            assert dies.poll() is None
        dies.kill()

    assert -signal.SIGKILL == dies.returncode
    assert 3 == status(engine).waiting
    with relay("--once") as next_one:
        said, _ = next_one.communicate(timeout=60)
    assert b"3\n" == said
    assert [0, 1, 2] == numbers(broker, queue)
    assert 0 == status(engine).waiting


@pytest.mark.needs("psql")
def test_two_relays_at_once_make_each_row_one_task(
    postgresql: str, client: SyncClient, broker: LocalBroker
) -> None:
    """Rows come while they run; both may post the same ones."""
    engine = create_engine(postgresql)
    METADATA.drop_all(engine)
    METADATA.create_all(engine)
    _enqueue(engine, "raced", 150)
    relays = [Thread(target=Relay(engine, client).drain) for _ in range(2)]
    for each in relays:
        each.start()
    with engine.begin() as connection:
        for number in range(150, 160):
            enqueue(connection, NewTask("raced", number))
    for each in relays:
        each.join()
    Relay(engine, client).drain()
    engine.dispose()

    assert list(range(160)) == numbers(broker, "raced")


def test_rows_wait_for_a_broker_that_is_away_and_then_flow_in_order(
    engine: Engine, closed_url: str, client: SyncClient, broker: LocalBroker
) -> None:
    """A relay fails without losing its rows, and the next one posts them."""
    queue = f"away-{engine.name}"
    _enqueue(engine, queue, 120)
    away = Client([closed_url.replace("codeq://token@", "http://")], token="t", deadline_s=0.1)
    with SyncClient(away) as nobody, pytest.raises(Unreachable):
        Relay(engine, nobody).turn()

    assert 120 == status(engine).waiting
    relay = Relay(engine, client)
    assert 100 == relay.turn()
    assert list(range(100)) == numbers(broker, queue)
    assert 20 == relay.turn()
    assert list(range(120)) == numbers(broker, queue)


def test_a_relay_that_fails_tries_less_and_less_often_and_begins_again_after_a_success(
    tmp_path: Path, client: SyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """The pause doubles from the poll's on; the database is away, is there once, and away again."""
    engine = create_engine(f"sqlite:///{tmp_path / 'app.db'}")
    METADATA.create_all(engine)
    relay = Relay(engine, client, poll_s=0.01)
    turns = iter([False, False, False, True, True, False, False])

    def cut(_: Connection, __: object, statement: str, *___: object) -> None:
        if statement.startswith("SELECT") and not next(turns, True):
            raise OperationalError(statement, None, ConnectionError("cut"))

    def stop_after_five() -> None:
        if len(caplog.records) == 4:
            relay.stop()

    event.listen(engine, "before_cursor_execute", cut)
    with caplog.filtering(_Waits(stop_after_five)):
        relay.run()
    engine.dispose()

    pauses = [record.__dict__["retry_s"] for record in caplog.records]
    assert [0.01, 0.02, 0.04, 0.01, 0.02] == pauses


def test_a_relay_pauses_for_half_a_minute_at_most(
    engine: Engine, closed_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A cluster that comes back is seen in time, and `stop` ends the pause."""
    _enqueue(engine, "paused", 1)
    away = Client([closed_url.replace("codeq://token@", "http://")], token="t", deadline_s=0.1)
    waits = Event()
    with (
        caplog.filtering(_Waits(waits.set)),
        SyncClient(away) as nobody,
        Relay(engine, nobody, poll_s=3600),
    ):
        assert waits.wait(60)

    assert [30.0] == [record.__dict__["retry_s"] for record in caplog.records]
    assert 1 == status(engine).waiting


def test_what_a_relay_does_is_counted(
    engine: Engine,
    closed_url: str,
    client: SyncClient,
    counted: Callable[[], Counter[str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Rows that became tasks, rows set aside, and passes that failed."""
    before = counted()
    with engine.begin() as connection:
        enqueue(connection, NewTask("no queue!", 0))
    _enqueue(engine, f"counted-{engine.name}", 2)
    Relay(engine, client).drain()
    _enqueue(engine, f"counted-{engine.name}", 1)
    away = Client([closed_url.replace("codeq://token@", "http://")], token="t", deadline_s=0.1)
    waits = Event()
    with caplog.filtering(_Waits(waits.set)), SyncClient(away) as nobody, Relay(engine, nobody):
        assert waits.wait(60)

    assert {
        "codeq.outbox.posted": 2,
        "codeq.outbox.refused": 1,
        "codeq.outbox.failures": 1,
    } == counted() - before


def test_a_thread_relays_until_its_block_ends(
    engine: Engine, client: SyncClient, broker: LocalBroker
) -> None:
    """A row that comes while it runs is a task when the block has ended."""
    queue = f"thread-{engine.name}"
    deleted = Event()

    def seen(_: Connection, __: object, statement: str, *___: object) -> None:
        if statement.startswith("DELETE"):
            deleted.set()

    event.listen(engine, "after_cursor_execute", seen)
    with Relay(engine, client, poll_s=0.01):
        _enqueue(engine, queue, 2)
        assert deleted.wait(60)

    assert [0, 1] == numbers(broker, queue)
    assert 0 == status(engine).waiting


def test_a_refused_row_is_set_aside_with_its_reason_and_others_go_on(
    engine: Engine,
    client: SyncClient,
    broker: LocalBroker,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`status` tells of it and fails; `retry` lets it wait again."""
    queue = f"refused-{engine.name}"
    database = engine.url.render_as_string(hide_password=False)
    with engine.begin() as connection:
        enqueue(connection, NewTask("no queue!", 0))
        enqueue(connection, NewTask(queue, 1))

    assert 2 == Relay(engine, client).drain()
    assert [1] == numbers(broker, queue)
    found = status(engine)
    assert (0, 1) == (found.waiting, found.refused)
    assert found.refusal
    assert 1 == main(["status", "--database", database])
    assert found.refusal in capsys.readouterr().out
    assert 1 == retry(engine)
    assert 1 == status(engine).waiting


def test_rows_that_are_too_many_for_now_wait_and_hold_no_others_up(tmp_path: Path) -> None:
    """More of them than one batch has; they are no fault of the rows, so none is set aside."""
    engine = create_engine(f"sqlite:///{tmp_path / 'app.db'}")
    METADATA.create_all(engine)
    with (
        LocalBroker(tmp_path, settings={"limits": {"queuesMax": 1}}) as broker,
        broker.sync_client() as client,
    ):
        relay = Relay(engine, client)
        client.create("first", 0)
        _enqueue(engine, "second", 110)
        _enqueue(engine, "first", 2)
        with pytest.raises(Refused, match="too many queues"):
            relay.drain()
        while_full = numbers(broker, "first"), status(engine)
        for task in tasks_of(broker, "first"):
            client.cancel(task.id)
        broker.advance(days=2)
        settled = relay.drain()
        made = numbers(broker, "second")
    engine.dispose()

    assert ([0, 0, 1], 110, 0) == (while_full[0], while_full[1].waiting, while_full[1].refused)
    assert 110 == settled
    assert list(range(110)) == made


def test_more_rows_of_a_unique_key_than_merge_into_one_task_wait_for_its_end(
    engine: Engine, client: SyncClient, broker: LocalBroker
) -> None:
    """Each row has an idempotency key, of which a task keeps a thousand."""
    queue = f"merged-{engine.name}"
    with engine.begin() as connection:
        for number in range(1010):
            enqueue(connection, NewTask(queue, number, unique="one"))
        enqueue(connection, NewTask(f"{queue}-other", 0))
    relay = Relay(engine, client)
    with pytest.raises(Refused, match="1000 idempotency keys"):
        relay.drain()
    found = status(engine)
    [holder] = tasks_of(broker, queue)
    client.cancel(holder.id)
    settled = relay.drain()

    assert (9, 0) == (found.waiting, found.refused)
    assert [0] == numbers(broker, f"{queue}-other")
    assert 9 == settled


def test_a_row_that_waits_for_an_unknown_task_is_set_aside(
    engine: Engine, client: SyncClient, broker: LocalBroker
) -> None:
    """No later try finds a task whose retention is over, and the rows behind it must not wait."""
    queue = f"orphan-{engine.name}"
    with engine.begin() as connection:
        enqueue(connection, NewTask(queue, 0, depends_on=["gone"]))
        enqueue(connection, NewTask(queue, 1))

    assert 2 == Relay(engine, client).drain()
    assert [1] == numbers(broker, queue)
    assert (0, 1) == (status(engine).waiting, status(engine).refused)
    assert "unknown dependency: gone" == status(engine).refusal


def test_an_old_row_is_reported_as_late(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    """An operator learns that no relay gets through."""
    database = engine.url.render_as_string(hide_password=False)
    _enqueue(engine, "late", 1)

    assert 0 == main(["status", "--database", database])
    with engine.begin() as connection:
        then = datetime.now(UTC) - timedelta(minutes=5)
        connection.execute(text("UPDATE codeq_outbox SET enqueued_at = :then"), {"then": str(then)})
    assert 1 == main(["status", "--database", database])
    assert "no relay gets through" in capsys.readouterr().out
    assert 0 == main(["status", "--database", database, "--late-after", "600"])


@pytest.mark.parametrize(
    ("database", "url", "says"),
    [
        ("sqlite:///{there}", "", "invalid token"),
        ("sqlite:///{there}", "127.0.0.1", "must be http://HOST:PORT"),
        ("sqlite:///{missing}", "", "unable to open database file"),
        ("nosuch://x", "", "nosuch"),
        ("nonsense", "", "Could not parse"),
    ],
    ids=["token", "url", "no-database", "no-driver", "no-url"],
)
def test_what_keeps_the_command_from_its_work_is_said_without_a_traceback(
    tmp_path: Path,
    broker: LocalBroker,
    capsys: pytest.CaptureFixture[str],
    *,
    database: str,
    url: str,
    says: str,
) -> None:
    """Its status is none that `status` has for rows."""
    there = f"sqlite:///{tmp_path / 'app.db'}"
    main(["create", "--database", there])
    engine = create_engine(there)
    _enqueue(engine, "waits", 1)
    engine.dispose()
    of = database.format(there=tmp_path / "app.db", missing=tmp_path / "none" / "app.db")

    to = ["--url", url or broker.url, "--token", "wrong"]
    assert 2 == main(["relay", "--once", "--database", of, *to])
    assert says in capsys.readouterr().err


def test_a_row_keeps_everything_that_a_task_can_say(engine: Engine) -> None:
    """A delay becomes an instant, because it counts from the enqueue."""
    task = NewTask(
        "full",
        {"a": 1.5},
        priority=7,
        ttl=timedelta(hours=1),
        timeout=2.5,
        key="k",
        delay=60,
        depends_on=["x", After("y", on_dead="fail")],
        unique=Unique("u", throttle=timedelta(seconds=3)),
    )
    before = datetime.now(UTC)
    with engine.begin() as connection:
        key = enqueue(connection, task)
    [row] = TableRows(engine).oldest(count_max=2)
    kept = row.new_task

    assert key == kept.idempotency_key
    assert kept.run_at is not None
    assert timedelta(seconds=60) <= kept.run_at - before < timedelta(seconds=90)
    assert b'{"a":1.5}' == bytes(kept.payload)  # type: ignore[call-overload]
    for name in "command", "priority", "ttl", "timeout", "key", "depends_on", "unique":
        assert getattr(task, name) == getattr(kept, name), name


@pytest.mark.parametrize(
    "task",
    [
        NewTask("bad", 1, run_at=datetime(2030, 1, 1)),  # noqa: DTZ001 - that is the fault
        NewTask("bad", 1, idempotency_key=""),
    ],
)
def test_a_task_that_no_relay_could_post_is_an_error_of_its_caller(
    engine: Engine, task: NewTask
) -> None:
    """It would be refused when nobody is there to read why."""
    with engine.begin() as connection, pytest.raises(ValueError, match="must be"):
        enqueue(connection, task)


def test_the_pages_commands_run_as_they_are_written(tmp_path: Path, broker: LocalBroker) -> None:
    """Create the table, relay in a process of its own, show and retry."""
    lines = re.findall(
        r"^python -m (codeq_cluster\.integrations\.outbox .+)$", _PAGE.read_text(), re.MULTILINE
    )
    database = f"sqlite:///{tmp_path / 'app.db'}"
    env = {**os.environ, "CODEQ_OUTBOX_DATABASE": database, "CODEQ_TOKEN": broker.token}
    words = [
        shlex.split(re.sub(r"--url \S+", f"--once --url {broker.url}", each)) for each in lines
    ]

    def run(*command: str) -> str:
        whole = (sys.executable, "-m", *command)
        done = subprocess.run(whole, env=env, check=True, capture_output=True, timeout=60)
        return done.stdout.decode()

    create, relay, *others = words
    run(*create)
    engine = create_engine(database)
    _enqueue(engine, "page", 2)
    engine.dispose()

    assert "2\n" == run(*relay)
    assert [0, 1] == numbers(broker, "page")
    assert ["0 rows wait, the oldest for 0 s\n", "0 rows wait again\n"] == [
        run(*each) for each in others
    ]
