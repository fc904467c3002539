"""Events: what Celery's workers and producers tell of themselves, against a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from kombu import Connection

from codeq_cluster.integrations.celery import events
from codeq_cluster.integrations.celery.events import EXCHANGE, QUEUE
from codeq_cluster.testing.broker import TOKEN, LocalBroker

WITHIN_S = 60


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let speakers look for a listener often."""
    monkeypatch.setattr(events, "_COLLECTED_S", 0.05)
    monkeypatch.setattr(events, "_AGAIN_S", 0.05)


@pytest.fixture
def app(url: str) -> Iterator[Celery]:
    """Make an application with one task, whose producers tell of what they send."""
    app = Celery("told", broker=url, backend=url, set_as_current=False)
    app.conf.update(task_default_queue="told", task_send_sent_event=True)

    @app.task(name="double", shared=False)  # type: ignore[untyped-decorator]
    def double(number: int) -> int:
        return 2 * number

    yield app
    app.close()


class _Watcher:
    """Celery's own receiver on a connection of its own; it keeps what it gets."""

    def __init__(self, app: Celery, url: str, **options: Any) -> None:
        self.heard: list[dict[str, Any]] = []
        self._connection = Connection(url)
        receiver = app.events.Receiver(
            self._connection, handlers={"*": self.heard.append}, **options
        )
        self._consuming = receiver.consumer_context(wakeup=False)

    def __enter__(self) -> Self:
        self._consumes_on, *_ = self._consuming.__enter__()
        return self

    def __exit__(self, *failed: object) -> None:
        self._consuming.__exit__(*failed)
        self._connection.close()

    def until(self, holds: Callable[[list[dict[str, Any]]], bool]) -> None:
        """Receive until a condition holds of what was heard."""
        until_s = time.monotonic() + WITHIN_S
        while not holds(self.heard):
            assert time.monotonic() < until_s, self.heard
            with suppress(TimeoutError):
                self._consumes_on.drain_events(timeout=1)


def _of(heard: list[dict[str, Any]], task_id: str) -> list[str]:
    """Return the types of a task's events, those of its worker in their order."""
    return [each["type"] for each in heard if each.get("uuid") == task_id]


def _types(heard: list[dict[str, Any]]) -> set[str]:
    return {each["type"] for each in heard}


def test_two_watchers_see_each_step_of_a_task_and_its_worker(app: Celery, url: str) -> None:
    """In the worker's order, and that the task was sent."""
    with _Watcher(app, url) as first, _Watcher(app, url) as second:
        with start_worker(
            app, pool="threads", concurrency=1, perform_ping_check=False, task_events=True
        ):
            sent = app.tasks["double"].delay(21)
            result = sent.get(timeout=WITHIN_S)
        for watcher in first, second:
            watcher.until(lambda heard: {"task-succeeded", "task-sent"} <= _types(heard))

    assert 42 == result
    for watcher in first, second:
        steps = [each for each in _of(watcher.heard, sent.id) if each != "task-sent"]
        assert ["task-received", "task-started", "task-succeeded"] == steps
        assert ["42"] == [each["result"] for each in watcher.heard if "result" in each]


def test_a_watcher_of_some_events_does_not_hear_the_others(app: Celery, url: str) -> None:
    """Its routing key is a topic's, as with RabbitMQ."""
    with _Watcher(app, url, routing_key="mine.#") as some, Connection(url) as speaker:
        with app.events.Dispatcher(speaker, hostname="h") as dispatcher:
            for kind in "mine-a", "other-b", "mine-c", "other-d", "mine-last":
                dispatcher.send(kind)
        some.until(lambda heard: "mine-last" in _types(heard))

    assert ["mine-a", "mine-c", "mine-last"] == [each["type"] for each in some.heard]


def test_an_event_is_written_only_for_a_minute_in_which_somebody_listens(
    url: str, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same events are dropped, and then written, before their connection is closed."""
    monkeypatch.setattr(events, "_minute", lambda: 1)  # Long ago, so nobody else listens.
    monkeypatch.setattr(events, "_WRITTEN_MAX", 4)
    monkeypatch.setattr(events, "_COLLECTED_S", WITHIN_S)

    def written() -> int:
        with broker.sync_operator() as operator:
            return len(operator.tasks(command=QUEUE, limit=500).rows)

    def tell() -> None:
        with Connection(url) as connection, connection.Producer(serializer="json") as producer:
            for number in range(10):
                producer.publish({"number": number}, exchange=EXCHANGE, routing_key="a")

    before = written()
    tell()
    alone = written()
    with broker.sync_client() as client:
        client.begin_group({"id": "celery-events.1", "seal": True})
    tell()

    assert before == alone
    assert before + 3 == written()


def test_a_watcher_goes_on_after_what_is_no_event(
    app: Celery, url: str, broker: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody may create tasks in the queue of the events."""
    with _Watcher(app, url) as watcher, Connection(url) as speaker:
        with broker.sync_client() as client:
            strange = client.create(QUEUE, {"not": "events"}, delay=60)
        with app.events.Dispatcher(speaker, hostname="h") as dispatcher:
            dispatcher.send("after-it")
        watcher.until(lambda heard: "after-it" in _types(heard))
        with broker.sync_client() as client:
            client.cancel(strange.id)

    assert f"task {strange.id} holds no events" in caplog.text


def test_a_token_that_may_not_listen_is_told_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker's token without the right to create: the watcher's log says what is missing."""
    every = {"token": TOKEN, "subject": "all", "scopes": ["codeq:admin"], "eventTypes": ["*"]}
    works = {"token": "works", "subject": "one", "scopes": ["codeq:claim"], "eventTypes": ["*"]}
    auth = {
        "producer": [{"kind": "static", "tokens": [every]}],
        "worker": [{"kind": "static", "tokens": [every, works]}],
    }
    with LocalBroker(tmp_path, settings={"auth": auth}) as broker:
        app = Celery("deaf", set_as_current=False)
        url = broker.url.replace("http://", "codeq://works@")
        with _Watcher(app, url) as watcher:
            watcher.until(lambda _: "no events" in caplog.text)

    assert "no events: unauthorized" in caplog.text
