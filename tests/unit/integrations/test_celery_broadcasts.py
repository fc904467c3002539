"""Broadcasts: fanout exchanges and Celery's remote control, against a real broker."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, states
from celery.contrib.testing.worker import start_worker
from celery.exceptions import TaskRevokedError
from kombu import Connection, Consumer, Exchange, Queue
from kombu.common import Broadcast

from codeq_cluster.client import Client, Unreachable
from codeq_cluster.integrations.celery.broadcasts import QUEUE
from codeq_cluster.integrations.celery.channel import BrokerRefused
from codeq_cluster.integrations.chains import Chain, today
from codeq_cluster.testing.broker import TOKEN, LocalBroker

WITHIN_S = 20


@pytest.fixture(scope="module")
def app(broker: LocalBroker) -> Iterator[Celery]:
    """Run an application with one worker that has one task at a time, and keeps what has run."""
    url = broker.url.replace("http://", f"codeq://{broker.token}@")
    app = Celery("controlled", broker=url, backend=url, set_as_current=False)
    app.conf.update(
        task_default_queue="controlled", worker_prefetch_multiplier=1, task_acks_late=True
    )
    app.ran = []  # type: ignore[attr-defined]

    @app.task(name="until", bind=True, shared=False)
    def until(self: Any, queue: str) -> str:
        """Run until a message is in a queue."""
        app.ran.append(self.request.id)  # type: ignore[attr-defined]
        with Connection(url) as connection, connection.SimpleQueue(queue) as waited:
            waited.get(timeout=WITHIN_S).ack()
        return str(self.request.id)

    with start_worker(app, pool="threads", concurrency=1, perform_ping_check=False) as worker:
        app.hostname = worker.hostname  # type: ignore[attr-defined]
        yield app


def _inspector(app: Celery) -> Any:
    # One destination, one answer: nothing waits for the time to be over.
    return app.control.inspect(destination=[app.hostname], timeout=WITHIN_S)  # type: ignore[attr-defined]


def _said(number: int) -> bytes:
    return json.dumps({"number": number}).encode()


async def _heard(chain: Chain, place: Any, count: int, *, wait_s: float = 30) -> list[int]:
    numbers: list[int] = []
    while len(numbers) < count:
        place, record = await chain.after(place, wait_s=wait_s)
        if record is not None:
            numbers.append(json.loads(record.payload)["number"])
    return numbers


def test_a_task_for_a_broadcast_queue_reaches_each_worker_from_a_producer_that_has_none(
    url: str,
) -> None:
    """Celery sends it without a declaration; before anybody listens it is refused, not lost."""
    producer = Celery("tells", broker=url, set_as_current=False)
    producer.conf.task_queues = [Queue("tells"), Broadcast("everywhere")]
    producer.conf.task_routes = {"tell": {"queue": "everywhere"}}
    with pytest.raises(BrokerRefused, match="exchange 'everywhere': no queue is bound"):
        producer.send_task("tell", (0,))
    heard: list[list[Any]] = [[], []]

    def hear(to: list[Any]) -> Callable[[Any], None]:
        return lambda message: to.append(message.decode()[0])

    with Connection(url) as one, Connection(url) as other:
        consumers = [
            Consumer(each, [Broadcast("everywhere")], on_message=hear(to), accept=["json"])
            for each, to in zip((one, other), heard, strict=True)
        ]
        for each in consumers:
            each.consume()
        producer.send_task("tell", (1,))
        for each, to in zip((one, other), heard, strict=True):
            while not to:
                each.drain_events(timeout=WITHIN_S)

    assert [[[1]], [[1]]] == heard


def test_each_consumer_hears_what_is_said_from_its_begin_on(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In one order, acknowledged or not; nothing is kept for a consumer that is not there."""
    exchange = Exchange("news", "fanout")
    heard: dict[str, list[object]] = {"a": [], "b": []}
    with Connection(url) as speaker, Connection(url) as a, Connection(url) as b:
        producer = speaker.Producer(serializer="json")
        producer.publish(0, exchange=exchange, declare=[exchange])

        def consumer(name: str, connection: Connection) -> Consumer:
            def on_message(message: Any) -> None:
                heard[name].append(message.decode())
                message.ack()

            queue = Queue(f"news-{name}", exchange)
            return Consumer(connection, queue, on_message=on_message, accept=["json"])

        with consumer("a", a), consumer("b", b):
            for number in 1, 2, 2:
                producer.publish(number, exchange=exchange, declare=[exchange])
            for name, connection in ("a", a), ("b", b):
                while len(heard[name]) < 3:
                    connection.drain_events(timeout=WITHIN_S)

    assert {"a": [1, 2, 2], "b": [1, 2, 2]} == heard
    assert "not held here" not in caplog.text


def test_two_channels_of_a_connection_hear_a_copy_each(url: str) -> None:
    """The messages of a queue that both consume go to the consumer of the channel that heard it."""
    queue, heard = Queue("shared-news", Exchange("shared-news", "fanout")), list[tuple[str, int]]()
    with Connection(url) as connection:
        for name in "a", "b":

            def note(message: Any, name: str = name) -> None:
                heard.append((name, message.decode()))

            Consumer(connection.channel(), queue, on_message=note, accept=["json"]).consume()
        connection.Producer(serializer="json").publish(1, exchange=queue.exchange)
        while len(heard) < 2:
            connection.drain_events(timeout=WITHIN_S)

    assert [("a", 1), ("b", 1)] == sorted(heard)


def test_a_worker_answers_and_takes_commands(app: Celery) -> None:
    """Every question and command of Celery's own control."""
    inspector, host = _inspector(app), app.hostname  # type: ignore[attr-defined]

    assert {host: {"ok": "pong"}} == inspector.ping()
    assert {host: ["until"]} == inspector.registered()
    assert [{host: {"ok": "new rate limit set successfully"}}] == app.control.rate_limit(
        "until", "100/s", reply=True, destination=[host], timeout=WITHIN_S
    )
    assert 2 == inspector.stats()[host]["pool"]["max-concurrency"] + 1


@pytest.mark.parametrize(
    ("wait_s", "order"), [(WITHIN_S, ["said", "sent"]), (0.1, ["sent", "said"])]
)
def test_a_message_waits_for_a_broadcast_that_was_said_before_it(
    url: str, monkeypatch: pytest.MonkeyPatch, wait_s: float, order: list[str]
) -> None:
    """A revoke is heard before the task that is published next, unless it takes too long."""
    monkeypatch.setattr("codeq_cluster.integrations.celery.channel.BROADCASTS_FIRST_S", wait_s)
    fanout, queue = Exchange(f"orders-{wait_s}", "fanout"), Queue(f"ordered-{wait_s}")
    came: list[str] = []

    def note(message: Any) -> None:
        came.append(message.decode())
        message.ack()

    # Other options, other requests: those of the one that listens wait at the gate alone.
    with (
        Connection(url, transport_options={"deadline_seconds": 31}) as speaker,
        Connection(url) as listener,
        Consumer(listener.channel(), [queue], on_message=note, accept=["json"]) as messages,
        Consumer(listener.channel(), [Queue("", fanout)], on_message=note, accept=["json"]) as fan,
    ):
        open_gate = _gate(listener, monkeypatch)
        producer = speaker.Producer(serializer="json")
        producer.publish("said", exchange=fanout, declare=[fanout])
        while not fan.channel.hears_more():
            pass
        producer.publish("sent", routing_key=queue.name)
        while messages.channel.deliveries.arrived_for_s() == inf and not came:
            with suppress(TimeoutError):
                listener.drain_events(timeout=0.05)
        if wait_s < WITHIN_S:
            listener.drain_events(timeout=WITHIN_S)
        open_gate()
        while len(came) < len(order):
            listener.drain_events(timeout=WITHIN_S)

    assert order == came


def _gate(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let a connection read no entry of a chain until the returned function is called."""
    link, gate = connection.transport.link, asyncio.Event()
    read = link.client.group_results

    async def late(*args: Any, **options: Any) -> Any:
        await gate.wait()
        return await read(*args, **options)

    async def opened() -> None:
        gate.set()

    monkeypatch.setattr(link.client, "group_results", late)
    return lambda: link.run(opened())


def test_a_revoked_task_that_waits_does_not_run(app: Celery, url: str, broker: LocalBroker) -> None:
    """It waits behind another one, its result is REVOKED, and the other one ends as it would."""
    runs = app.tasks["until"].delay("go-on")
    waits = app.tasks["until"].delay("never")
    host = app.hostname  # type: ignore[attr-defined]
    app.control.revoke(waits.id, reply=True, destination=[host], timeout=WITHIN_S)
    with Connection(url) as connection, connection.SimpleQueue("go-on") as queue:
        queue.put("now")

    assert runs.id == runs.get(timeout=WITHIN_S)
    with pytest.raises(TaskRevokedError):
        waits.get(timeout=WITHIN_S)
    assert states.REVOKED == waits.state
    with broker.sync_operator() as operator:
        while (queue := operator.queue("controlled"))["ready"] or queue["inProgress"]:
            pass
    assert [runs.id] == app.ran  # type: ignore[attr-defined]


def test_an_inspector_leaves_nothing_that_waits(app: Celery, broker: LocalBroker) -> None:
    """It ends what it has listened to, and a reply to one that has gone is not kept."""
    inspector = _inspector(app)
    with broker.sync_operator() as operator:
        inspector.ping()
        before = operator.queue(QUEUE)["delayed"]
        for _ in range(3):
            assert inspector.ping()
        with app.connection() as connection:
            gone = app.control.mailbox(connection).oid
            connection.Producer(serializer="json").publish(
                {"late": 1}, exchange=Exchange("reply.celery.pidbox"), routing_key=gone
            )

        assert before == operator.queue(QUEUE)["delayed"]


async def test_a_listener_that_closed_its_chain_may_listen_again(broker: LocalBroker) -> None:
    """In between nothing is said to it."""
    async with broker.client() as client:
        chain = Chain(client, "closed", queue=QUEUE)
        await chain.open()
        await chain.close()
        await chain.say(_said(1), write="1", if_heard=True)
        place = await chain.open()
        await chain.say(_said(2), write="2", if_heard=True)

        assert [2] == await _heard(chain, place, 1)


async def test_many_speakers_at_once_are_all_heard_by_all(broker: LocalBroker) -> None:
    """Each message once, in one order."""
    async with broker.client() as client:
        chains = [Chain(client, "crowd", queue=QUEUE) for _ in range(3)]
        places = [await chain.open() for chain in chains]
        hears = [_heard(chain, place, 20) for chain, place in zip(chains, places, strict=True)]
        says = [Chain(client, "crowd", queue=QUEUE).say(_said(n), write=str(n)) for n in range(20)]
        (*heard, _) = await asyncio.gather(*hears, asyncio.gather(*says))

    assert Counter(range(20)) == Counter(heard[0])
    assert [heard[0]] * 3 == heard


async def test_what_was_said_by_one_that_died_is_heard_and_its_repetition_is_not(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wrote the entry and woke nobody; its caller tries again."""
    async with broker.client() as client, broker.client() as dies:

        async def cut(self: Client, task_id: str) -> None:
            raise Unreachable(f"{self} {task_id}")

        chain, speaker = Chain(client, "cut", queue=QUEUE), Chain(dies, "cut", queue=QUEUE)
        place = await chain.open()
        with monkeypatch.context() as patch:
            patch.setattr(dies, "cancel", cut.__get__(dies))
            with pytest.raises(Unreachable):
                await speaker.say(_said(1), write="one")

        assert [1] == await _heard(chain, place, 1, wait_s=0)
        await speaker.say(_said(1), write="one")
        await speaker.say(_said(2), write="two")
        assert [1, 2] == await _heard(chain, place, 2)


@pytest.mark.parametrize("ahead", ["listener", "speaker", "both"])
async def test_a_chain_goes_on_over_midnight(broker: LocalBroker, ahead: str) -> None:
    """Whoever's clock is there first closes the day; nothing is lost in between."""
    days = {"listener": today(), "speaker": today()}
    async with broker.client() as client:
        listener = Chain(client, f"night-{ahead}", queue=QUEUE, today=lambda: days["listener"])
        speaker = Chain(client, f"night-{ahead}", queue=QUEUE, today=lambda: days["speaker"])
        place = await listener.open()
        await speaker.say(_said(1), write="1")
        for each in days:
            if ahead in {each, "both"}:
                days[each] += 1
        if ahead != "speaker":
            for _ in range(3):
                place_now, record = await listener.after(place, wait_s=0)
                place = place if record is not None else place_now
        await speaker.say(_said(2), write="2")
        await speaker.say(_said(3), write="3")
        late = Chain(client, f"night-{ahead}", queue=QUEUE, today=lambda: days["speaker"] + 1)
        await late.say(_said(4), write="4")

        assert [1, 2, 3, 4] == await _heard(listener, place, 4, wait_s=0)


async def test_a_chain_whose_last_entry_somebody_cancels_goes_on(broker: LocalBroker) -> None:
    """A person who empties the queue ends no worker's remote control."""
    async with broker.client() as client:
        chain = Chain(client, "purged", queue=QUEUE)
        place = await chain.open()
        await client.cancel(place.task_id)
        place, record = await chain.after(place)
        assert record is None
        await chain.say(_said(1), write="1")

        assert [1] == await _heard(chain, place, 1)


def test_a_token_that_may_not_speak_leaves_a_worker_without_remote_control(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its queues are consumed as before, and its log says what is missing."""
    scopes = ["codeq:claim", "codeq:heartbeat", "codeq:abandon", "codeq:nack", "codeq:result"]
    every = {"token": TOKEN, "subject": "all", "scopes": [*scopes, "codeq:admin"]}
    works = {"token": "works", "subject": "one", "scopes": scopes}
    tokens = [{**each, "eventTypes": ["*"]} for each in (every, works)]
    auth = {
        "producer": [{"kind": "static", "tokens": tokens[:1]}],
        "worker": [{"kind": "static", "tokens": tokens}],
    }
    with LocalBroker(tmp_path, settings={"auth": auth}) as broker:
        with broker.sync_client() as client:
            client.create("plain", {"not": "kombu"})
        url = broker.url.replace("http://", "codeq://works@")
        queues = [Queue("plain"), Queue("deaf", Exchange("news", "fanout"))]
        with (
            Connection(url) as connection,
            Consumer(connection, queues),
            broker.sync_operator() as operator,
        ):
            while not operator.tasks(command="plain", status="FAILED").rows:
                with suppress(TimeoutError):
                    connection.drain_events(timeout=0.1)

    assert "queue deaf: no broadcasts and no remote control" in caplog.text
