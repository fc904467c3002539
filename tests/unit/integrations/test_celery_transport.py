"""Transport: Kombu's connections, against a real broker."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu import Connection, Consumer, Exchange, Queue
from kombu.exceptions import ChannelError

from codeq_cluster.client import Refused, State, TaskRecord
from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.integrations.celery.channel import BrokerRefused
from codeq_cluster.integrations.celery.transport import BrokerAway
from codeq_cluster.integrations.holding import tag_of
from codeq_cluster.testing.broker import LocalBroker


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    """Open a connection."""
    with Connection(url) as opened:
        opened.connect()
        yield opened


def _publish(connection: Connection, queue: str, body: object, **options: Any) -> None:
    with connection.Producer(serializer="json") as producer:
        producer.publish(body, routing_key=queue, **options)


def _tasks(broker: LocalBroker, queue: str) -> list[TaskRecord]:
    with broker.sync_operator() as operator, broker.sync_client() as client:
        return [client.task(row["id"]) for row in operator.tasks(command=queue).rows]


def _received(
    connection: Connection, *queues: Queue, count: int, act: Callable[[Any], object], **options: Any
) -> list[object]:
    bodies: list[object] = []

    def on_message(message: Any) -> None:
        bodies.append(message.decode())
        act(message)

    with Consumer(connection, list(queues), on_message=on_message, accept=["json"], **options):
        while len(bodies) < count:
            connection.drain_events(timeout=20)
    return bodies


def _ack(message: Any) -> None:
    message.ack()


def test_a_message_is_a_task_and_its_ack_the_end(broker: LocalBroker, url: str) -> None:
    """Priorities decide the order; an acknowledged message is a completed task."""
    with Connection(url) as connection:
        for priority in (0, 9, 5):
            _publish(connection, "acked", priority, priority=priority)
        got = _received(connection, Queue("acked"), count=3, act=_ack)

    assert [9, 5, 0] == got
    assert [State.DONE] * 3 == [task.state for task in _tasks(broker, "acked")]


def test_a_close_waits_for_the_acknowledgements_under_way(
    broker: LocalBroker, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is sent only after the other message was returned, and the close waits for both."""
    for n in range(2):
        _publish(connection, "closed", n)
    held: list[Any] = []
    _received(connection, Queue("closed"), count=2, act=held.append)
    deliveries, leases = connection.default_channel.deliveries, connection.transport.link.leases
    complete, abandon = leases.complete_many, leases.abandon
    returned, ended = asyncio.Event(), list[str]()

    async def late(ended_now: Any, **options: Any) -> Any:
        await returned.wait()
        answers = await complete(ended_now, **options)
        ended.extend(task.id for task, _ in ended_now)
        return answers

    async def first(task: TaskRecord, **options: Any) -> None:
        await abandon(task, **options)
        returned.set()

    monkeypatch.setattr(leases, "complete_many", late)
    monkeypatch.setattr(leases, "abandon", first)
    held[0].ack()
    deliveries.close()

    assert 1 == len(ended)
    assert {State.DONE: 1, State.READY: 1} == Counter(t.state for t in _tasks(broker, "closed"))


def test_a_connection_that_is_dropped_without_a_close_holds_no_message(
    broker: LocalBroker, url: str
) -> None:
    """Its leases would be renewed for as long as the process lives."""
    held: list[Any] = []
    dropped = Connection(url)
    _publish(dropped, "dropped", 1)
    _received(dropped, Queue("dropped"), count=1, act=held.append)
    held.clear()
    del dropped
    gc.collect()
    with Connection(url) as connection:
        again = _received(connection, Queue("dropped"), count=1, act=_ack)

    assert [1] == again
    [task] = _tasks(broker, "dropped")
    assert ["ABANDONED", "COMPLETED"] == [each.outcome for each in task.history]


def test_what_has_ended_is_not_renewed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an acknowledgement only the other message's lease is renewed."""
    options = {"lease_seconds": 1, "confirm_acks": True}
    held: list[Any] = []
    with Connection(url, transport_options=options) as connection:
        for n in range(2):
            _publish(connection, "ended-one", n)
        _received(connection, Queue("ended-one"), count=2, act=held.append)
        leases = connection.transport.link.leases
        heartbeats, renewed, twice = leases.heartbeats, list[str](), threading.Event()

        async def noted(extended: Any, **options: Any) -> Any:
            renewed.extend(tag_of(task) for task, _ in extended)
            if renewed.count(held[1].delivery_tag) == 2:
                twice.set()
            return await heartbeats(extended, **options)

        held[0].ack()
        monkeypatch.setattr(leases, "heartbeats", noted)
        assert twice.wait(20)
        held[1].ack()

    assert {held[1].delivery_tag} == set(renewed)


def test_a_day_in_a_worker_is_one_delivery(broker: LocalBroker, url: str) -> None:
    """The lease of a message that is neither acknowledged nor rejected is renewed."""
    with Connection(url, transport_options={"lease_seconds": 1}) as connection:
        _publish(connection, "renewed", 1)
        held: list[Any] = []
        _received(connection, Queue("renewed"), count=1, act=held.append)
        (before,) = _tasks(broker, "renewed")
        while (now := _tasks(broker, "renewed")[0]).lease_until == before.lease_until:
            pass
        held[0].ack()

    (after,) = _tasks(broker, "renewed")
    assert State.LEASED is now.state
    assert (State.DONE, 1) == (after.state, after.attempts)


def test_what_a_dead_worker_held_comes_back(broker: LocalBroker, url: str) -> None:
    """Closing gives back at once what was prefetched, and it is marked as redelivered."""
    with Connection(url) as first:
        _publish(first, "returned", 1)
        _received(first, Queue("returned"), count=1, act=lambda _: None)
    seen: list[bool] = []
    with Connection(url) as second:
        _received(
            second,
            Queue("returned"),
            count=1,
            act=lambda message: (seen.append(message.delivery_info["redelivered"]), message.ack()),
        )

    assert [True] == seen


def test_a_rejected_message_is_a_dead_letter_and_a_requeued_one_comes_again(
    broker: LocalBroker, connection: Connection
) -> None:
    """The two ways of `reject`, and `no_ack`."""
    _publish(connection, "requeued", 1)
    _publish(connection, "rejected", 1)
    _publish(connection, "unacked", 1)
    times = iter([True, False])
    _received(
        connection,
        Queue("requeued"),
        count=2,
        act=lambda message: message.requeue() if next(times) else message.ack(),
    )
    _received(connection, Queue("rejected"), count=1, act=lambda message: message.reject())
    _received(connection, Queue("unacked"), count=1, act=lambda _: None, no_ack=True)
    connection.close()

    assert [(State.DONE, 2)] == [(t.state, t.attempts) for t in _tasks(broker, "requeued")]
    [rejected] = _tasks(broker, "rejected")
    assert State.DEAD is rejected.state
    assert "REJECTED: its worker rejected the message" == rejected.error
    assert [State.DONE] == [task.state for task in _tasks(broker, "unacked")]


def test_a_rejected_message_fails_while_the_cluster_knows_no_rejects(
    broker: LocalBroker, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formats of level 1 have none; the message does not come again for that."""

    async def early(*_: Any, **__: Any) -> None:
        raise Refused("formats of level 1", status=503, code="upgrade-under-way")

    _publish(connection, "early", 1)
    monkeypatch.setattr(connection.transport.link.leases, "reject", early)
    _received(connection, Queue("early"), count=1, act=lambda message: message.reject())
    connection.close()

    [task] = _tasks(broker, "early")
    assert (State.FAILED, "REJECTED: its worker rejected the message") == (task.state, task.error)


def test_no_more_is_claimed_than_the_prefetch(broker: LocalBroker, connection: Connection) -> None:
    """Unacknowledged messages are at most the prefetch; an ack lets the next one in."""
    for n in range(5):
        _publish(connection, "prefetched", n)
    held: list[Any] = []
    with Consumer(
        connection, Queue("prefetched"), on_message=held.append, prefetch_count=2, accept=["json"]
    ):
        while len(held) < 2:
            connection.drain_events(timeout=20)
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0.2)
        leased = [t for t in _tasks(broker, "prefetched") if t.state is State.LEASED]
        held[0].ack()
        connection.drain_events(timeout=20)

    assert 2 == len(leased)
    assert 3 == len(held)


def test_a_publish_that_is_repeated_is_one_message(
    broker: LocalBroker, connection: Connection
) -> None:
    """An outcome that was lost, after which Kombu publishes again, makes no second task."""
    lost = iter([True, False])

    def losing(channel: Any) -> None:
        publish = channel.basic_publish

        def published(*given: Any, **options: Any) -> None:
            publish(*given, **options)
            if next(lost):
                raise ConnectionResetError("the answer is lost")

        channel.basic_publish = published

    with connection.Producer(serializer="json") as producer:
        losing(producer.channel)
        producer.publish(
            1,
            routing_key="repeated",
            retry=True,
            retry_policy={"max_retries": 2, "on_revive": losing},
        )

    assert None is next(lost, None)
    assert 1 == len(_tasks(broker, "repeated"))


def test_an_eta_is_held_by_the_broker(broker: LocalBroker, connection: Connection) -> None:
    """A task of next month is delayed there, and no worker has it before."""
    eta = (datetime.now(UTC) + timedelta(days=30)).isoformat()
    _publish(connection, "next-month", 1, headers={"eta": eta})

    assert [State.DELAYED] == [task.state for task in _tasks(broker, "next-month")]
    assert None is connection.default_channel.basic_get("next-month")


def test_exchanges_route_as_they_were_declared(connection: Connection) -> None:
    """Direct by the key, topic by its words; a name with an odd character is one queue."""
    direct, topic = Exchange("direct-x", "direct"), Exchange("topic-x", "topic")
    one = Queue("one@host", direct, routing_key="a")
    two = Queue("two", topic, routing_key="log.#")
    for queue in one, two:
        queue(connection.default_channel).declare()
    with connection.Producer(serializer="json") as producer:
        producer.publish("a", exchange=direct, routing_key="a")
        producer.publish("b", exchange=direct, routing_key="b")
        producer.publish("c", exchange=topic, routing_key="log.x.y")

    assert {"a", "c"} == set(_received(connection, one, two, count=2, act=_ack))


def test_a_task_that_no_queue_is_bound_for_is_refused(url: str) -> None:
    """Not lost: the bindings of its worker's connection are not known to that of its producer."""
    app = Celery("unbound", broker=url, set_as_current=False)
    media = Exchange("media", type="topic")
    app.conf.task_queues = [Queue("unbound"), Queue("video", media, routing_key="video.#")]
    app.conf.task_default_queue = "unbound"
    sent = {"exchange": "media", "routing_key": "video.cut"}
    for given in sent, {"exchange": "C.dq2", "routing_key": "worker@host"}:
        with pytest.raises(BrokerRefused, match="no queue is bound to it for the key"):
            app.send_task("cut", **given)
    app.send_task("cut", queue="video", routing_key="video.cut")
    with pytest.raises(BrokerRefused, match="name the queue"):
        app.send_task("cut", exchange="media", routing_key="image.cut")
    with app.connection_for_read() as connection:
        got = _received(connection, app.amqp.queues["video"], count=1, act=_ack)

    assert 1 == len(got)


def test_queues_are_counted_and_purged(connection: Connection) -> None:
    """A passive declare counts what can be claimed, and refuses a queue that never was."""
    for n in range(3):
        _publish(connection, "counted", n)
    channel = connection.default_channel

    assert 3 == channel.queue_declare("counted", passive=True).message_count
    assert 3 == channel.queue_purge("counted")
    assert None is channel.basic_get("counted")
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        channel.queue_declare("never-was", passive=True)


def test_a_message_comes_to_a_consumer_that_spells_its_queue_in_another_case(
    broker: LocalBroker, connection: Connection
) -> None:
    """Queues ignore case, so it is not given back and claimed again until it is a dead letter."""
    _publish(connection, "spelled", 1)

    assert [1] == _received(connection, Queue("Spelled"), count=1, act=_ack)
    connection.close()
    assert [(State.DONE, 1)] == [(t.state, t.attempts) for t in _tasks(broker, "spelled")]


def test_channels_that_share_a_connection_and_a_queue_end_what_they_claimed(
    broker: LocalBroker, connection: Connection
) -> None:
    """Each hands its message to its own consumer, whose acknowledgement reaches the broker."""
    held: list[Any] = []
    for n in range(2):
        _publish(connection, "shared", n)
        Consumer(
            connection.channel(),
            Queue("shared"),
            on_message=held.append,
            prefetch_count=1,
            accept=["json"],
        ).consume()
    while len(held) < 2:
        connection.drain_events(timeout=20)
    channels = {message.channel for message in held}
    for message in held:
        message.ack()
    connection.close()

    assert 2 == len(channels)
    assert [(State.DONE, 1)] * 2 == [(t.state, t.attempts) for t in _tasks(broker, "shared")]


def test_a_consumer_stays_when_another_channel_s_of_its_queue_is_cancelled(
    broker: LocalBroker, connection: Connection
) -> None:
    """Kombu forgets the callback of the queue for the whole connection then."""
    cancelled = Consumer(connection.channel(), Queue("left"), on_message=_ack, accept=["json"])

    def publish(message: Any) -> None:
        message.ack()
        if message.decode() == 1:
            _publish(connection, "left", 2)

    _publish(connection, "left", 1)
    with Consumer(connection.channel(), Queue("left"), on_message=publish, accept=["json"]):
        cancelled.consume()
        cancelled.cancel()
        for _ in range(2):
            connection.drain_events(timeout=20)
    connection.close()

    assert {(State.DONE, 1)} == {(t.state, t.attempts) for t in _tasks(broker, "left")}


def test_an_acknowledgement_of_what_is_not_held_is_logged(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """It would otherwise be lost in silence: the message of another channel, or of a closed one."""
    connection.default_channel.basic_ack("stranger.7")

    assert ["message stranger.7: not held here, so its end is not sent"] == [
        record.message for record in caplog.records
    ]


def test_a_get_leaves_the_messages_of_other_queues_to_their_consumers(
    connection: Connection,
) -> None:
    """Also on a channel that has claimed more than it has handed out."""
    for n in range(2):
        _publish(connection, "consumed", n)
    _publish(connection, "got", "got")
    got: list[object] = []

    def on_message(message: Any) -> None:
        got.append(message.decode())
        message.ack()
        if len(got) == 1:
            found = message.channel.basic_get("Got")
            got.append(found.decode())
            found.ack()

    with Consumer(connection.channel(), Queue("consumed"), on_message=on_message, accept=["json"]):
        while len(got) < 3:
            connection.drain_events(timeout=20)

    assert [0, "got", 1] == got


def test_a_get_from_a_cluster_that_is_away_fails_as_kombu_expects(tmp_path: Path) -> None:
    """Its callers open another connection after such an error."""
    with LocalBroker(tmp_path) as gone:
        opened = Connection(
            gone.url.replace("http://", f"codeq://{gone.token}@"),
            transport_options={"deadline_seconds": 0},
        )
        channel = opened.default_channel
    with pytest.raises(BrokerAway):
        channel.basic_get("away")
    assert isinstance(BrokerAway(), opened.connection_errors)


def test_a_wrong_token_and_an_absent_cluster_are_told_apart(url: str, closed_url: str) -> None:
    """The first is refused at once, the second tried again by Celery; neither shows a token."""
    with Connection(url.replace("test-token", "other")) as wrong:
        with pytest.raises(BrokerRefused, match="unauthorized"):
            wrong.connect()
        assert "codeq://**@" in wrong.as_uri()
    with (
        Connection(closed_url, transport_options={"deadline_seconds": 0}) as away,
        pytest.raises(BrokerAway, match="no node takes a connection"),
    ):
        away.connect()


def test_a_task_that_is_no_message_is_a_dead_letter_and_the_next_is_delivered(
    broker: LocalBroker, connection: Connection
) -> None:
    """What others put into a queue does not stop its worker."""
    with broker.sync_client() as client:
        strange = client.create("mixed", {"not": "kombu"}, priority=9)
    _publish(connection, "mixed", 1)

    assert [1] == _received(connection, Queue("mixed"), count=1, act=_ack)
    connection.close()
    with broker.sync_client() as client:
        rejected = client.task(strange.id)
    assert State.DEAD is rejected.state
    assert "is no message of Kombu" in rejected.error


def test_a_connection_goes_on_to_the_next_url_of_a_list(url: str, closed_url: str) -> None:
    """As Celery's `broker_url` may be one; several nodes in one of several URLs are refused."""
    away = closed_url.replace("token", "other%2Ftoken")
    options = {"deadline_seconds": 0}
    with Connection([away, url], transport_options=options) as connection:
        connection.ensure_connection(max_retries=2, interval_start=0)
        _publish(connection, "second", 1)

        assert [1] == _received(connection, Queue("second"), count=1, act=_ack)
    with (
        Connection([f"{url},n2:8080", url], transport_options=options) as mixed,
        pytest.raises(ConfigInvalid, match="write one URL with all nodes"),
    ):
        mixed.connect()
