"""Dramatiq: its own worker and middleware in this process, against a real broker."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import dramatiq
import pytest
from dramatiq import Message, Middleware, PickleEncoder, QueueJoinTimeout, Worker
from dramatiq.errors import ConnectionClosed, QueueNotFound
from dramatiq.middleware import AgeLimit, Callbacks, CurrentMessage, Pipelines, Retries, TimeLimit
from dramatiq.results import ResultFailure, ResultMissing, Results, ResultTimeout

from codeq_cluster.client import Refused, State, TaskRecord, Unreachable
from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.integrations.dramatiq import CodeqBackend, CodeqBroker
from codeq_cluster.integrations.dramatiq.messages import DELIVERY
from codeq_cluster.integrations.dramatiq.session import BrokerRefused
from codeq_cluster.testing.broker import LocalBroker
from tests.unit.integrations.nested import nested

WITHIN_MS: Final = 20_000
BOTH: Final = pytest.mark.parametrize(
    ("queues", "acks"), [(True, "confirmed"), (False, "unconfirmed")], indirect=["queues"]
)


@pytest.fixture
def queues(
    url: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[CodeqBroker]:
    """Open a broker with Dramatiq's own middleware, whose retries come at once.

    Its parameter is the option `confirm_acks`.
    """
    # Prometheus' exposition would need a port.
    middleware = [AgeLimit(), TimeLimit(), Callbacks(), Pipelines(), CurrentMessage()]
    opened = CodeqBroker(
        url,
        middleware=[*middleware, Retries(min_backoff=1, max_backoff=1)],
        confirm_acks=getattr(request, "param", True),
    )
    opened.add_middleware(Results(backend=CodeqBackend(url)))
    monkeypatch.setattr("dramatiq.broker.global_broker", opened)
    yield opened
    opened.close()


@contextmanager
def _working(broker: CodeqBroker, *, threads: int = 2) -> Iterator[Worker]:
    worker = Worker(broker, worker_timeout=50, worker_threads=threads)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def _actor(broker: CodeqBroker, function: Callable[..., Any], **options: Any) -> Any:
    return dramatiq.actor(function, broker=broker, **options)


def _tasks(broker: LocalBroker, queue: str) -> list[TaskRecord]:
    with broker.sync_operator() as operator, broker.sync_client() as client:
        return [client.task(row["id"]) for row in operator.tasks(command=queue).rows]


@BOTH
def test_messages_run_once_and_are_completed_tasks(
    broker: LocalBroker, queues: CodeqBroker, acks: str
) -> None:
    """A hundred of them, with arguments that are readable in the payload."""
    seen: dict[str, int] = {}
    put = _actor(
        queues,
        lambda name, value: seen.update({name: value}),
        actor_name="put",
        queue_name=f"d-many-{acks}",
    )
    for n in range(100):
        put.send(f"name-{n}", value=n)
    with _working(queues):
        queues.join(f"d-many-{acks}", timeout=WITHIN_MS)

    assert {f"name-{n}": n for n in range(100)} == seen
    tasks = _tasks(broker, f"d-many-{acks}")
    assert {(State.DONE, 1): 100} == Counter((task.state, task.attempts) for task in tasks)
    assert {"value": 99} in [json.loads(task.payload)["kwargs"] for task in tasks]


def test_a_failed_message_is_retried_and_its_retry_is_one_with_its_end(
    broker: LocalBroker, queues: CodeqBroker
) -> None:
    """The retry is a follow-up of the first task: neither can exist without the other."""
    tries: list[int] = []

    def fails_once() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("the first time")

    actor = _actor(queues, fails_once, queue_name="d-retried")
    with _working(queues):
        actor.send()
        queues.join("d-retried", timeout=WITHIN_MS)

    first, second = sorted(_tasks(broker, "d-retried"), key=lambda task: task.created_at)
    assert 2 == len(tries)
    assert [State.DONE, State.DONE] == [first.state, second.state]
    assert first.id == second.parent_id
    assert 1 == json.loads(second.payload)["options"]["retries"]


@BOTH
def test_a_retry_that_is_refused_gives_its_message_back(
    broker: LocalBroker,
    queues: CodeqBroker,
    acks: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A message whose retry cannot be enqueued is not acknowledged and lost."""
    tries: list[str] = []
    leases = queues._sessions.ours.link.leases
    complete, forbidden = leases.complete, iter([True])

    async def refusing(*given: Any, **named: Any) -> None:
        if next(forbidden, False):
            raise Refused("command not allowed for token", status=403, code="forbidden")
        await complete(*given, **named)

    def fails_twice() -> None:
        tries.append("")
        if len(tries) < 3:
            raise RuntimeError("again")

    monkeypatch.setattr(leases, "complete", refusing)
    with broker.sync_operator() as operator:
        operator.put_topic(f"d-barred-{acks}", {"backoffPolicy": "fixed", "backoffBaseSeconds": 1})
    actor = _actor(queues, fails_twice, queue_name=f"d-barred-{acks}")
    with _working(queues):
        actor.send()
        queues.join(f"d-barred-{acks}", timeout=WITHIN_MS)

    assert 3 == len(tries)
    assert "its end was refused" in caplog.text
    [given_back] = [task for task in _tasks(broker, f"d-barred-{acks}") if task.attempts == 2]
    assert ["NACKED", "COMPLETED"] == [each.outcome for each in given_back.history]


@BOTH
def test_a_next_step_that_is_too_large_makes_its_message_a_dead_letter(
    broker: LocalBroker, queues: CodeqBroker, acks: str
) -> None:
    """Its actor has run, and would run a hundred times for an end that is never taken."""
    runs: list[str] = []

    def grows(_: str) -> str:
        runs.append("")
        return "x" * 2**21

    actor = _actor(queues, grows, queue_name=f"d-grown-{acks}")
    with _working(queues):
        (actor.message("") | actor.message()).run()
        queues.join(f"d-grown-{acks}", timeout=WITHIN_MS)

    assert 1 == len(runs)
    [dead] = _tasks(broker, f"d-grown-{acks}")
    assert (State.DEAD, 1) == (dead.state, dead.attempts)
    assert dead.error.startswith("its end was refused: request body exceeds 1048576 bytes")


def test_a_pipelines_next_step_is_one_with_the_end_of_the_last(
    broker: LocalBroker, queues: CodeqBroker
) -> None:
    """A crash between them can neither lose a step nor run it twice."""
    actor = _actor(
        queues, lambda n: n + 1, actor_name="plus", queue_name="d-piped", store_results=True
    )
    pipe = actor.message(1) | actor.message() | actor.message()
    with _working(queues):
        pipe.run()
        got = pipe.get_result(block=True, timeout=WITHIN_MS)

    assert 4 == got
    first, second, third = sorted(_tasks(broker, "d-piped"), key=lambda task: task.created_at)
    assert [first.id, second.id] == [second.parent_id, third.parent_id]


def test_a_message_out_of_retries_has_failed_with_its_exception(
    broker: LocalBroker, queues: CodeqBroker
) -> None:
    """Its task shows the error, and the actor of `on_retry_exhausted` follows it."""
    told: list[int] = []

    def fails() -> None:
        raise LookupError("no such user")

    _actor(
        queues,
        lambda data, retried: told.append(retried["retries"]),
        actor_name="told",
        queue_name="d-told",
    )
    actor = _actor(queues, fails, queue_name="d-dead", max_retries=0, on_retry_exhausted="told")
    with _working(queues):
        message = actor.send()
        queues.join("d-dead", timeout=WITHIN_MS)
        queues.join("d-told", timeout=WITHIN_MS)

    [task] = _tasks(broker, "d-dead")
    assert (State.FAILED, "REJECTED: LookupError('no such user')") == (task.state, task.error)
    assert [0] == told
    assert [task.id] == [each.parent_id for each in _tasks(broker, "d-told")]
    assert message.message_id in task.payload


def test_messages_of_unknown_actors_and_unreadable_ones_fail(
    broker: LocalBroker, queues: CodeqBroker
) -> None:
    """What others put into a queue does not stop its worker."""
    queues.declare_queue("d-strange")
    nobody = Message("d-strange", "nobody", (), {}, {})
    wrong = {"actor_name": ["x"], "message_id": 1, "args": 1, "kwargs": [], "options": 1}
    payloads = [{"not": "dramatiq"}, *(nobody.asdict() | {name: wrong[name]} for name in wrong)]
    with broker.sync_client() as client:
        strange = [client.create("d-strange", each, priority=9).id for each in payloads]
    queues.enqueue(nobody)
    with _working(queues):
        queues.join("d-strange", timeout=WITHIN_MS)

    errors = {task.id: task.error for task in _tasks(broker, "d-strange")}
    assert ["UNREADABLE: "] * 6 == [errors.pop(task_id)[:12] for task_id in strange]
    assert ["REJECTED: ActorNotFound('nobody')"] == list(errors.values())
    assert {State.DEAD} == {task.state for task in _tasks(broker, "d-strange") if task.id in errors}


def test_an_unreadable_message_is_not_held_if_its_end_is_not_taken(
    broker: LocalBroker, queues: CodeqBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dramatiq makes another consumer then; the message leaves room, and returns by its lease."""
    queues.declare_queue("d-away")
    session = queues._sessions.ours

    async def away(*_: Any, **__: Any) -> None:
        raise Unreachable("no node answers")

    with broker.sync_client() as client:
        client.create("d-away", {"not": "dramatiq"})
    consumer = queues.consume("d-away", prefetch=1, timeout=WITHIN_MS)
    with monkeypatch.context() as patch:
        patch.setattr(session.link.leases, "fail", away)
        with pytest.raises(ConnectionClosed, match="no node"):
            next(consumer)
    consumer.close()

    assert 0 == session.holding.count("d-away")
    broker.advance(minutes=2)
    again = queues.consume("d-away", prefetch=1, timeout=WITHIN_MS)
    assert None is next(again)
    again.close()
    assert [(State.FAILED, 2)] == [(t.state, t.attempts) for t in _tasks(broker, "d-away")]


def test_a_delay_is_held_by_the_broker(broker: LocalBroker, queues: CodeqBroker) -> None:
    """A message of next month is with no worker, and neither is one with an eta."""
    actor = _actor(queues, lambda: None, actor_name="later", queue_name="d-later")
    month_ms = 30 * 86_400_000
    actor.send_with_options(delay=month_ms)
    actor.send_with_options(eta=int(time.time() * 1000) + month_ms)
    consumer = queues.consume("d-later", prefetch=5, timeout=1)
    got = next(consumer)
    consumer.close()

    assert None is got
    assert set() == queues.get_declared_delay_queues()
    assert [State.DELAYED] * 2 == [task.state for task in _tasks(broker, "d-later")]


def test_a_shorter_delay_comes_first(queues: CodeqBroker) -> None:
    """Delayed messages do not wait for each other."""
    order: list[int] = []
    actor = _actor(queues, order.append, actor_name="append", queue_name="d-delays")
    actor.send_with_options(args=(2,), delay=1900)
    actor.send_with_options(args=(1,), delay=900)
    with _working(queues):
        queues.join("d-delays", timeout=WITHIN_MS)

    assert [1, 2] == order


def test_priorities_of_the_broker_decide_the_order(queues: CodeqBroker) -> None:
    """The greater one goes first, as with RabbitMQ; another number is refused."""
    actor = _actor(queues, lambda: None, actor_name="noted", queue_name="d-priority")
    for priority in (0, 9, 5):
        actor.send_with_options(args=(priority,), broker_priority=priority)
    consumer = queues.consume("d-priority", prefetch=3, timeout=5000)
    got = [next(consumer) for _ in range(3)]
    consumer.requeue(got)
    consumer.close()

    assert [(9,), (5,), (0,)] == [message.args for message in got]
    with pytest.raises(ValueError, match="broker_priority=10: must be 0 to 9"):
        actor.send_with_options(args=(10,), broker_priority=10)
    with pytest.raises(ValueError, match="must be 0 to 366 days"):
        actor.send_with_options(args=(10,), delay=-1)


def test_no_more_is_held_than_the_prefetch(broker: LocalBroker, queues: CodeqBroker) -> None:
    """An acknowledgement lets the next message in; closing gives back what was not handed out."""
    queues.declare_queue("d-prefetch")
    for n in range(5):
        queues.enqueue(Message("d-prefetch", "any", (n,), {}, {}))
    consumer = queues.consume("d-prefetch", prefetch=2, timeout=2000)
    held = [next(consumer), next(consumer)]
    leased = [t for t in _tasks(broker, "d-prefetch") if t.state is State.LEASED]
    narrow = queues.consume("d-prefetch", prefetch=2, timeout=1)
    assert None is next(narrow)
    consumer.ack(held[0])
    third = next(consumer)

    assert 2 == len(leased)
    assert {0, 1, 2} == {message.args[0] for message in (*held, third)}
    consumer.requeue([held[1], third])
    consumer.close()
    states = Counter(task.state for task in _tasks(broker, "d-prefetch"))
    assert {State.DONE: 1, State.READY: 4} == states


@pytest.mark.parametrize("queues", [False], indirect=True)
def test_a_broker_that_closes_waits_for_what_was_acknowledged(
    broker: LocalBroker, queues: CodeqBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread has waited for it, and yet none of it is given back."""
    queues.declare_queue("d-closed")
    for n in range(20):
        queues.enqueue(Message("d-closed", "any", (n,), {}, {}))
    consumer = queues.consume("d-closed", prefetch=20, timeout=5000)
    session = queues._sessions.ours
    leases, holding = session.link.leases, session.holding
    complete, abandon, close = leases.complete_many, leases.abandon, holding.close
    closing, given_back = asyncio.Event(), list[str]()

    async def late(*given: Any, **options: Any) -> Any:
        await closing.wait()
        return await complete(*given, **options)

    async def noted(task: TaskRecord, **options: Any) -> bool:
        given_back.append(task.id)
        return await abandon(task, **options)

    async def closed() -> None:
        closing.set()
        await close()

    monkeypatch.setattr(leases, "complete_many", late)
    monkeypatch.setattr(leases, "abandon", noted)
    monkeypatch.setattr(holding, "close", closed)
    held = 0
    while held < 20:
        if (message := next(consumer)) is not None:
            consumer.ack(message)
            held += 1
    queues.close()

    assert [] == given_back
    assert {(State.DONE, 1): 20} == Counter(
        (task.state, task.attempts) for task in _tasks(broker, "d-closed")
    )


def test_a_worker_that_stops_returns_what_it_did_not_begin(
    broker: LocalBroker, queues: CodeqBroker
) -> None:
    """Not after a lease, and what runs is finished."""
    begun, may_end = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        may_end.wait(20)

    actor = _actor(queues, slow, queue_name="d-stopped")
    for _ in range(3):
        actor.send()
    with _working(queues, threads=1):
        assert begun.wait(20)
        threading.Timer(0.1, may_end.set).start()

    states = Counter(task.state for task in _tasks(broker, "d-stopped"))
    assert {State.DONE: 1, State.READY: 2} == states


def test_a_paused_worker_acknowledges_what_it_has_and_goes_on(
    broker: LocalBroker, queues: CodeqBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dramatiq makes another consumer then; nothing that ran is delivered again."""
    monkeypatch.setattr("dramatiq.worker.CONSUMER_RESTART_DELAY_SECS", 0.01)
    begun, may_end = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        may_end.wait(20)

    actor = _actor(queues, slow, queue_name="d-paused")
    with _working(queues, threads=1) as worker:
        actor.send()
        assert begun.wait(20)
        threading.Timer(0.2, may_end.set).start()
        worker.pause()
        actor.send()
        worker.resume()
        queues.join("d-paused", timeout=WITHIN_MS)

    assert {(State.DONE, 1): 2} == Counter(
        (t.state, t.attempts) for t in _tasks(broker, "d-paused")
    )


def test_an_enqueue_that_is_repeated_is_one_message(
    broker: LocalBroker, queues: CodeqBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if middleware writes another option at each attempt, as tracing does."""
    queues.declare_queue("d-repeated")

    class Traces(Middleware):
        def before_enqueue(self, broker: Any, message: Any, delay: Any) -> None:
            message.options["traced"] = time.monotonic_ns()

    queues.add_middleware(Traces())
    link = queues._sessions.ours.link
    create, lost = link.client.create, iter([True])

    async def losing(*given: Any, **named: Any) -> TaskRecord:
        made = await create(*given, **named)
        if next(lost, False):
            raise Refused("the answer is lost", status=0, code="outcome-unknown")
        return made

    monkeypatch.setattr(link.client, "create", losing)
    message = Message("d-repeated", "any", (), {}, {})
    with pytest.raises(ConnectionClosed, match="the answer is lost"):
        queues.enqueue(message)
    queues.enqueue(message)

    assert None is next(lost, None)
    assert 1 == len(_tasks(broker, "d-repeated"))


def test_a_message_that_an_actor_enqueues_again_is_another_one(
    broker: LocalBroker, queues: CodeqBroker
) -> None:
    """Its id is the same, but it comes from a delivery; nothing is taken for a repetition."""
    runs: list[str] = []

    def again() -> None:
        current = CurrentMessage.get_current_message()
        assert current is not None
        runs.append(current.options[DELIVERY])
        if len(runs) < 3:
            queues.enqueue(current.copy())

    actor = _actor(queues, again, queue_name="d-again")
    with _working(queues):
        actor.send()
        queues.join("d-again", timeout=WITHIN_MS)

    assert 3 == len(set(runs)) == len(runs)


def test_an_end_whose_answer_is_lost_is_sent_again_under_its_lease(
    broker: LocalBroker, queues: CodeqBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dramatiq is told that the connection broke, and the message is held until the end counts."""
    monkeypatch.setattr("dramatiq.worker.POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0.01)
    leases = queues._sessions.ours.link.leases
    complete, lost = leases.complete, iter([True, False])

    async def losing(*given: Any, **named: Any) -> None:
        if next(lost):
            raise Refused("no leader", status=503, code="no-leader", retryable=True)
        await complete(*given, **named)

    monkeypatch.setattr(leases, "complete", losing)
    actor = _actor(queues, lambda: None, actor_name="ends", queue_name="d-ended")
    with _working(queues):
        actor.send()
        queues.join("d-ended", timeout=WITHIN_MS)

    assert None is next(lost, None)
    assert [(State.DONE, 1)] == [(t.state, t.attempts) for t in _tasks(broker, "d-ended")]


def test_a_long_message_is_one_delivery(broker: LocalBroker, url: str) -> None:
    """Its lease is renewed for as long as its process lives, and no longer."""
    queues = CodeqBroker(url, middleware=[], lease_seconds=5)
    queues.declare_queue("d-long")
    queues.enqueue(Message("d-long", "any", (), {}, {}))
    consumer = queues.consume("d-long", prefetch=1, timeout=5000)
    message = next(consumer)
    assert message is not None
    (before,) = _tasks(broker, "d-long")
    while (now := _tasks(broker, "d-long")[0]).lease_until == before.lease_until:
        pass
    consumer.ack(message)
    queues.close()

    (after,) = _tasks(broker, "d-long")
    assert State.LEASED is now.state
    assert (State.DONE, 1) == (after.state, after.attempts)


def test_results_are_kept_and_missing_ones_told_apart(queues: CodeqBroker) -> None:
    """Values, exceptions, and what is not there yet; one that is too large fails its reader."""

    def fails() -> None:
        raise LookupError("no such user")

    add = _actor(
        queues, lambda a, b: a + b, actor_name="add", queue_name="d-results", store_results=True
    )
    failing = _actor(queues, fails, queue_name="d-results", store_results=True, max_retries=0)
    large = _actor(
        queues, lambda: "x" * 2**21, actor_name="large", queue_name="d-results", store_results=True
    )
    deep = _actor(
        queues, lambda: nested(250), actor_name="deep", queue_name="d-results", store_results=True
    )
    backend = queues.get_results_backend()
    unsent = add.message(1, 2)
    with pytest.raises(ResultMissing):
        unsent.get_result(backend=backend)
    with pytest.raises(ResultTimeout):
        unsent.get_result(backend=backend, block=True, timeout=10)
    with _working(queues):
        added, failed, enlarged = add.send(1, 2), failing.send(), large.send()
        deepened = deep.send()
        options = {"backend": backend, "block": True, "timeout": WITHIN_MS}

        assert 3 == added.get_result(**options)
        assert nested(250) == deepened.get_result(**options)
        with pytest.raises(ResultFailure, match="no such user"):
            failed.get_result(**options)
        with pytest.raises(ResultFailure, match=r"the result has \d+ bytes"):
            enlarged.get_result(**options)


def test_another_encoder_keeps_what_json_cannot(
    broker: LocalBroker, queues: CodeqBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pickled messages are base64 in a payload of JSON."""
    monkeypatch.setattr("dramatiq.message.global_encoder", PickleEncoder())
    seen: list[object] = []
    actor = _actor(queues, seen.append, actor_name="pickled", queue_name="d-pickled")
    actor.send({1, 2})
    with _working(queues):
        queues.join("d-pickled", timeout=WITHIN_MS)

    assert [{1, 2}] == seen


def test_flush_cancels_what_waits_and_join_has_a_limit(
    broker: LocalBroker, queues: CodeqBroker
) -> None:
    """Delayed messages too."""
    actor = _actor(queues, lambda: None, actor_name="flushed", queue_name="d-flushed")
    actor.send()
    actor.send_with_options(delay=60_000)
    with pytest.raises(QueueJoinTimeout):
        queues.join("d-flushed", timeout=1)
    queues.flush_all()

    assert None is queues.join("d-flushed", timeout=1)
    with pytest.raises(QueueNotFound):
        queues.consume("d-undeclared")


def test_a_wrong_token_and_an_absent_cluster_are_told_apart(url: str, closed_url: str) -> None:
    """The first is refused for good, the second a lost connection, which Dramatiq repeats."""
    message = Message("d-away", "any", (), {}, {})
    wrong = CodeqBroker(url.replace("test-token", "other"), middleware=[])
    with pytest.raises(BrokerRefused, match="invalid token"):
        wrong.enqueue(message)
    wrong.close()
    away = CodeqBroker(closed_url, middleware=[], deadline_seconds=0)
    with pytest.raises(ConnectionClosed, match="no node takes a connection"):
        away.enqueue(message)
    away.close()
    with pytest.raises(ConfigInvalid, match="lease_seconds=1: must be 5 or more"):
        CodeqBroker(url, lease_seconds=1)
    with pytest.raises(ConfigInvalid, match="max_deliveries=0: must be 1 to 1000"):
        CodeqBroker(url, max_deliveries=0)
