"""Outbox: a committed row is one task, a rolled-back one is none, whatever happens to relays."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

from codeq_cluster.client import NewTask, SyncClient, Unique
from codeq_cluster.integrations.outbox import Outbox, Relay
from codeq_cluster.integrations.outbox.__main__ import main
from codeq_cluster.testing.broker import LocalBroker
from codeq_cluster.testing.ports import free_ports
from tests.harness.postgres import Postgres, running

OUTBOX = Outbox()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """Run one broker for all tests here; each test has its own commands."""
    with LocalBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Run a server of PostgreSQL for all tests."""
    with running() as server:
        yield server


@contextmanager
def database(url: str) -> Iterator[Engine]:
    """Make the table in a database."""
    engine = create_engine(url)
    OUTBOX.table.create(engine)
    yield engine
    engine.dispose()


@pytest.fixture(
    params=["sqlite", pytest.param("postgresql", marks=pytest.mark.needs("pg_createcluster"))]
)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """Return a database of the test."""
    url = f"sqlite:///{tmp_path / 'application.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres").database()
    with database(url) as made:
        yield made


def relay(engine: Engine, broker: LocalBroker) -> Relay:
    """Return a relay of the outbox to the broker."""
    return Relay(engine, [broker.url], token=broker.token, outbox=OUTBOX, poll_s=0.01)


def named(engine: Engine, command: str) -> str:
    """Return the command of a test for this kind of database."""
    return f"{command}-{engine.name}"


def enqueue(engine: Engine, command: str, *payloads: object, **options: Any) -> None:
    """Enqueue tasks in one transaction."""
    with Session(engine) as session, session.begin():
        for payload in payloads:
            OUTBOX.enqueue(session, NewTask(command, payload, **options))


def payloads(broker: LocalBroker, command: str) -> list[Any]:
    """Return the payloads of all tasks of a command, as they are claimed."""
    with broker.sync_operator() as operator:
        count = len(operator.tasks(command=command, limit=500).rows)
    worker = broker.worker(concurrency=1)
    seen: list[Any] = []

    @worker.task(command)
    def note(task: Any) -> None:
        seen.append(task.payload)

    with broker.working(worker):
        broker.settle()
    assert count == len(seen)
    return seen


def test_a_committed_row_is_one_task_and_a_rolled_back_one_none(
    engine: Engine, broker: LocalBroker
) -> None:
    """In the order of the transactions, and the table is empty afterwards."""
    enqueue(engine, named(engine, "committed"), 1, 2)
    with Session(engine) as session:
        OUTBOX.enqueue(session, NewTask(named(engine, "committed"), "never"))
        session.rollback()
    enqueue(engine, named(engine, "committed"), 3)
    moved = relay(engine, broker)
    moved.run(until_empty=True)
    with engine.connect() as connection:
        left = OUTBOX.backlog(connection)

    assert [1, 2, 3] == payloads(broker, named(engine, "committed"))
    assert (0, 0.0, 0) == (left.waiting, left.oldest_s, left.refused)
    assert (3, 0, "") == (moved.created, moved.refused, moved.trouble)


def test_rows_outlive_a_relay_that_dies_before_it_deletes_them(
    engine: Engine, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one sends them again, with the same keys."""

    class Killed(BaseException):
        """A process's end."""

    def killed(*_: object) -> None:
        raise Killed

    enqueue(
        engine, named(engine, "killed"), *range(5), unique=Unique("same", on="reject"), delay=3600
    )
    enqueue(engine, named(engine, "killed"), *range(150))
    with monkeypatch.context() as dying:
        dying.setattr(Outbox, "settle", killed)
        with pytest.raises(Killed):
            relay(engine, broker).run(until_empty=True)
    relay(engine, broker).run(until_empty=True)
    with broker.sync_operator() as operator:
        made = operator.tasks(command=named(engine, "killed"), limit=500).rows

    assert 151 == len(made)


def test_two_relays_at_once_make_each_task_once(engine: Engine, broker: LocalBroker) -> None:
    """They read the same rows, and both delete them."""
    enqueue(engine, named(engine, "twice"), *range(250))
    together = threading.Barrier(2)

    def run() -> None:
        mine = relay(engine, broker)
        together.wait()
        mine.run(until_empty=True)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert sorted(range(250)) == sorted(payloads(broker, named(engine, "twice")))


def test_rows_wait_while_the_broker_is_away(engine: Engine, tmp_path: Path) -> None:
    """They flow as soon as it is there."""
    port, link = free_ports(2)
    place = {"port": port, "raft": {"peers": {"n1": f"127.0.0.1:{link}"}}}
    url = f"http://127.0.0.1:{port}"
    place["raft"]["peerHTTPAddrs"] = {"n1": url}  # type: ignore[index]
    enqueue(engine, "away", *range(3))
    with LocalBroker(tmp_path / "unused") as other:
        token = other.token
    with Relay(engine, [url], token=token, outbox=OUTBOX, poll_s=0.01, deadline_s=0.5) as waits:
        while not waits.trouble:
            threading.Event().wait(0.01)
        with engine.connect() as connection:
            held = OUTBOX.backlog(connection)
        with LocalBroker(tmp_path / "broker", settings=place) as broker:
            broker.url = url
            while waits.created < 3:
                threading.Event().wait(0.01)
            with broker.sync_operator() as operator:
                made = operator.tasks(command="away").rows

    assert 3 == held.waiting
    assert held.oldest_s > 0
    assert 3 == len(made)


def test_a_refused_row_stays_and_holds_no_other_up(
    broker: LocalBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command names the reason; once that is gone, the row may be tried again."""
    url = f"sqlite:///{tmp_path / 'application.db'}"
    with database(url) as engine:
        enqueue(engine, "no such/name", 1)
        enqueue(engine, "fine", 2)
        cluster = ("--url", broker.url, "--token", broker.token, "--until-empty")
        place = ("--database", url)
        codes = [main(["relay", *place, *cluster]), main(["status", *place, "--json"])]
        shown = json.loads(capsys.readouterr().out.splitlines()[-1])
        main(["status", *place])
        told = capsys.readouterr().out
        main(["retry", *place])
        again = capsys.readouterr().out
        with engine.connect() as connection:
            waiting = OUTBOX.backlog(connection)

    assert [0, 1] == codes
    assert (0, 1) == (shown["waiting"], shown["refused"])
    assert "command" in shown["reasons"][0]
    assert "1 refused; mend the cause, and run retry:" in told
    assert "1 wait again\n" == again
    assert (1, 0) == (waiting.waiting, waiting.refused)
    assert [2] == payloads(broker, "fine")


def test_a_delay_counts_from_the_transaction(engine: Engine, broker: LocalBroker) -> None:
    """A relay that comes later does not make the task later."""
    with Session(engine) as session, session.begin():
        OUTBOX.enqueue(session, NewTask(named(engine, "delayed"), 1, delay=timedelta(hours=1)))
    relay(engine, broker).run(until_empty=True)
    with broker.sync_operator() as operator:
        [row] = operator.tasks(command=named(engine, "delayed")).rows

    assert "runAt" in row
    assert "PENDING" == row["status"]


def test_what_cannot_be_created_fails_in_the_transaction(engine: Engine) -> None:
    """So it is rolled back with the application's own changes."""
    with Session(engine) as session, pytest.raises(TypeError):
        OUTBOX.enqueue(session, NewTask("wrong", object()))


def test_the_page_works_as_written(
    broker: LocalBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program creates one task; the commands are those of this package."""
    page = (Path(__file__).parents[3] / "docs" / "outbox.md").read_text()
    [program] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    [commands] = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(program.replace("http://n1:8080", broker.url).replace("TOKEN", broker.token), {})
    for line in commands.splitlines():
        words = line.partition(" codeq_cluster.integrations.outbox ")[2]
        words = words.replace("postgresql+psycopg://shop", "sqlite:///shop.db")
        words = words.replace("http://n1:8080", broker.url).replace("TOKEN", broker.token)
        more = ["--until-empty"] if words.startswith("relay") else []

        assert 0 == main([*words.split(), *more])

    assert [{"order": 7}] == payloads(broker, "email")


_STEPS = st.lists(st.sampled_from(["commit", "roll back", "relay", "killed relay"]), max_size=12)


@settings(max_examples=15, deadline=None)
@given(_STEPS)
def test_each_committed_row_is_one_task(
    broker: LocalBroker, tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    """Over any order of transactions, relays and their deaths between the create and the delete."""
    directory = tmp_path_factory.mktemp("outbox")
    command = directory.name
    committed: list[int] = []
    with (
        database(f"sqlite:///{directory / 'application.db'}") as engine,
        SyncClient(broker.client()) as client,
    ):
        for number, step in enumerate([*steps, "relay"]):
            match step:
                case "commit":
                    enqueue(engine, command, number)
                    committed.append(number)
                case "roll back":
                    with Session(engine) as session:
                        OUTBOX.enqueue(session, NewTask(command, number))
                case "relay":
                    relay(engine, broker).run(until_empty=True)
                case _:
                    with engine.connect() as connection:
                        rows = OUTBOX.first(connection, 100)
                    client.create_encoded([body.encode() for _, body in rows])
    assert committed == payloads(broker, command)
