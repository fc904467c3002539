"""Channel: what Kombu asks of a virtual channel, answered by the broker's queues."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from queue import Empty
from typing import Any, Final
from uuid import uuid4
from weakref import finalize

from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.virtual.base import queue_declare_ok_t
from kombu.transport.virtual.exchange import TopicExchange

from codeq_cluster.client import Refused, TaskRecord
from codeq_cluster.integrations.celery.broadcasts import QUEUE, Ears
from codeq_cluster.integrations.celery.deliveries import Deliveries
from codeq_cluster.integrations.celery.events import EXCHANGE, Speaker
from codeq_cluster.integrations.celery.messages import (
    DELIVERIES_MAX,
    KEY,
    command_of,
    message_of,
    payload_of,
    task_of,
)
from codeq_cluster.integrations.chains import Chain
from codeq_cluster.integrations.holding import CLAIM_MAX, LEASE_S, tag_of, this_worker

log = logging.getLogger(__name__)

_REPLIES: Final = re.compile(r"[0-9a-f-]{36}\.reply\..+\.pidbox")
# What a message waits at most for broadcasts that are on their way; then they are late.
BROADCASTS_FIRST_S: Final = 2.0
_NO_ADMIN: Final = frozenset({401, 403})


class BrokerRefused(ChannelError):
    """The broker refused a request, and would refuse it again."""


class Unacknowledged(virtual.QoS):
    """The prefetch of a channel, over the messages that are leased to it."""

    restore_at_shutdown = False

    def __init__(self, channel: Any, prefetch_count: int = 0) -> None:
        """Let go of what Kombu would do at the end of the program: it keeps the channel for it."""
        super().__init__(channel, prefetch_count)
        self._on_collect.cancel()

    @property
    def _deliveries(self) -> Deliveries:
        deliveries: Deliveries = self.channel.deliveries
        return deliveries

    def can_consume(self) -> bool:
        """Return whether another message may be claimed."""
        return self.room() > 0

    def can_consume_max_estimate(self) -> int:
        """Return how many messages may be claimed."""
        return self.room()

    def room(self) -> int:
        """Return how many messages may be claimed, at most what one claim takes."""
        if not self.prefetch_count:
            return CLAIM_MAX
        return min(CLAIM_MAX, int(self.prefetch_count) - self._deliveries.unacknowledged)

    def append(self, message: object, delivery_tag: str) -> None:
        """Note nothing: a message is leased since its claim."""

    def ack(self, delivery_tag: str) -> None:
        """End a message."""
        self._deliveries.acknowledge(delivery_tag, wait=self.channel.confirm_acks)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give a message back, or make it a dead letter."""
        if requeue:
            self._deliveries.give_back(delivery_tag)
        else:
            self._deliveries.reject(delivery_tag)

    def restore_unacked(self) -> list[object]:
        """Give all messages back."""
        self._deliveries.give_all_back()
        return []


class Channel(virtual.Channel):
    """A virtual channel whose queues are the broker's.

    Exchanges and bindings are this connection's own, as for most virtual transports: a publisher
    routes by what it has declared itself, which Celery does with each task.
    """

    QoS = Unacknowledged
    do_restore = False
    supports_fanout = True
    body_encoding = "utf-8"
    from_transport_options = (
        *("deadletter_queue", "lease_seconds", "max_deliveries", "confirm_acks"),
    )

    lease_seconds = LEASE_S
    max_deliveries = DELIVERIES_MAX
    confirm_acks = False

    def __init__(self, connection: Any, **options: Any) -> None:
        super().__init__(connection, **options)
        self._link = connection.link
        self._no_ack: set[str] = set()
        # By queue. Kombu keeps one for a whole connection, which may be another channel's.
        self._takers: dict[str, Callable[[dict[str, Any]], Any]] = {}
        self.deliveries = Deliveries(
            self._link, lease_s=int(self.lease_seconds), wake=connection.wake, worker=this_worker()
        )
        # A channel that is dropped without a close would renew its leases for ever.
        finalize(self, self.deliveries.drop).atexit = False
        self._ears = Ears(self._link, connection.wake)
        finalize(self, self._ears.drop).atexit = False
        self._speaker = Speaker(self._link)
        finalize(self, self._speaker.drop).atexit = False

    def prepare_message(  # noqa: PLR0917 - Kombu's signature
        self,
        body: Any,
        priority: int | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: dict[str, Any] | None = None,
        properties: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return a message; the caller's own properties carry the key over repeated publishes."""
        properties = {} if properties is None else properties
        properties.setdefault(KEY, uuid4().hex)
        message: dict[str, Any] = super().prepare_message(
            body, priority, content_type, content_encoding, headers, properties
        )
        return message

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str]:
        """Return a body as a text and how it is written: as it is, or base64 for bytes."""
        encoding = "base64" if isinstance(body, bytes) else "utf-8"
        encoded: tuple[Any, str] = super().encode_body(body, encoding)
        return encoded

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, **options: Any
    ) -> Any:
        """Publish; once it returned, the message is on a majority of the nodes, unless an event."""
        message["properties"].setdefault(KEY, uuid4().hex)
        if exchange == EXCHANGE:
            self._inplace_augment_message(message, exchange, routing_key)
            self._speaker.say(payload_of(message))
            return None
        if exchange and not self._is_routed(exchange, routing_key):
            self._inplace_augment_message(message, exchange, routing_key)
            self._put_elsewhere(message, exchange, routing_key)
            return None
        return super().basic_publish(message, exchange, routing_key, **options)

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[..., Any],
        consumer_tag: str,
        **options: Any,
    ) -> None:
        """Consume from a queue."""
        (self._no_ack.add if no_ack else self._no_ack.discard)(queue)
        for name, exchange, key in tuple(self.list_bindings()):
            if name == queue and exchange == EXCHANGE:
                pattern = TopicExchange(self).key_to_pattern(key)
                listen = partial(self._ears.listen_to_events, queue, pattern)
                self._hear("events", queue, listen)
            elif name == queue and self.typeof(exchange).type == "fanout":
                self._listen(queue, exchange)
        super().basic_consume(queue, no_ack, callback, consumer_tag, **options)
        self._takers[queue] = self.connection._callbacks[queue]  # noqa: SLF001 - of Kombu's base

    def basic_cancel(self, consumer_tag: str) -> None:
        """Consume from a queue no more."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues:
            self._takers.pop(queue, None)
            if not _is_of_replies(queue):
                self._ears.leave(queue)

    def after_reply_message_received(self, queue: str) -> None:
        """Forget a queue of replies, which nobody reads any more."""
        self.connection.call(lambda: self._ears.leave(queue, alone=True))

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:
        """Return one message, or None."""
        try:
            raw = self._get(queue)
        except Empty:
            return None
        message = self.Message(raw, channel=self)
        if no_ack:
            self.deliveries.acknowledge(message.delivery_tag)
        return message

    def deliver_next(self) -> bool:
        """Deliver one message that has come, or claim some in the background."""
        if (heard := self._ears.next(self._active_queues)) is not None:
            queue, said = heard
            self._takers[queue](message_of(said, tag=tag_of(said)))
            return True
        task = None if self._awaits_broadcasts() else self.deliveries.next()
        if task is not None:
            self._deliver(task)
            return True
        room = self.qos.room()
        if self._active_queues and room > 0:
            commands = list(dict.fromkeys(map(command_of, self._active_queues)))
            self.deliveries.fetch(commands, count=room)
        return False

    def hears_more(self) -> bool:
        """Return whether a broadcast is here, or known to have been said."""
        return self._ears.hears_more()

    def close(self) -> None:
        """Return what is not acknowledged to its queues."""
        if not self.closed:
            self._ears.close()
            self._speaker.close()
            self.deliveries.close()
        super().close()

    def _awaits_broadcasts(self) -> bool:
        """Return whether a message is here, and a broadcast may have been said before it."""
        return self.deliveries.arrived_for_s() < BROADCASTS_FIRST_S and any(
            channel.hears_more() for channel in tuple(self.connection.channels)
        )

    def _deliver(self, task: TaskRecord) -> None:
        queue = self._queue_of(task.command)
        if queue is None:
            # Its consumer was cancelled while the claim was under way.
            self.deliveries.give_back(tag_of(task))
            return
        message = self._message(task)
        if message is None:
            return
        if queue in self._no_ack:
            self.deliveries.acknowledge(tag_of(task))
        self._takers[queue](message)

    def _queue_of(self, command: str) -> str | None:
        """Return the queue of Kombu's that is consumed as one here, or None."""
        wanted = command.lower()  # Its publisher's spelling: queues ignore case.
        consumed = (each for each in self._active_queues if command_of(each).lower() == wanted)
        return next(consumed, None)

    def _message(self, task: TaskRecord) -> dict[str, Any] | None:
        """Return the message of a task, or None if it is none of Kombu's, and a dead letter now."""
        tag = tag_of(task)
        try:
            return message_of(task, tag=tag)
        except ValueError as error:
            log.error("%s; it is rejected", error)  # noqa: TRY400 - the text says it all
            self.deliveries.reject(tag, str(error))
            return None

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> list[str]:
        """Return the queues for a message; an inspector's replies find the one it alone has."""
        if _is_of_replies(queue := f"{routing_key}.{exchange}"):
            return [queue]
        found: list[str] = super()._lookup(exchange, routing_key, default)
        return found

    def _is_routed(self, exchange: str, routing_key: str) -> bool:
        """Return whether this connection has declared where a message goes."""
        known = exchange in self.state.exchanges
        return (known and self.typeof(exchange).type == "fanout") or bool(
            self._lookup(exchange, routing_key)
        )

    def _put_elsewhere(self, message: dict[str, Any], exchange: str, routing_key: str) -> None:
        """Send a message that only other connections may have declared a queue for.

        Celery publishes to its `Broadcast` queues without their declaration.

        Raises:
            BrokerRefused: A task would be lost, or nobody has declared the exchange.
        """
        known = exchange in self.state.exchanges
        if known and "task" not in message["headers"]:
            return  # It is for whoever is bound, as with every broker.
        if known or not self._say(exchange, message, if_heard=True):
            raise BrokerRefused(
                f"exchange {exchange!r}: no queue is bound to it for the key {routing_key!r} on "
                "this connection, and other connections' bindings are not known: name the queue, "
                "as queue=… of apply_async and task_routes, or declare it with the message"
            )

    def _put_fanout(self, exchange: str, message: dict[str, Any], *_: Any, **__: Any) -> None:
        self._say(exchange, message)

    def _say(self, name: str, message: dict[str, Any], *, if_heard: bool = False) -> bool:
        """Tell all who listen to a name; return False if nobody is told."""
        chain, write = Chain(self._link.client, name, queue=QUEUE), message["properties"][KEY]
        heard: bool = self.connection.ask(
            chain.say(payload_of(message), write=write, if_heard=if_heard)
        )
        return heard

    def _queue_bind(self, *_: Any) -> None:
        """Do nothing: a queue that nobody consumes from hears nothing."""

    def _listen(self, queue: str, name: str) -> None:
        what = "broadcasts and no remote control"
        self._hear(what, queue, lambda: self._ears.listen(queue, name))

    def _hear(self, what: str, queue: str, call: Callable[[], None]) -> None:
        try:
            self.connection.call(call)
        except BrokerRefused as error:
            log.warning("queue %s: no %s: %s", queue, what, error)

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        if _is_of_replies(queue):
            self._say(queue, message, if_heard=True)
            return
        task = task_of(
            queue, message, now=datetime.now(UTC), deliveries_max=int(self.max_deliveries)
        )
        fields = {name: getattr(task, name) for name in task.__dataclass_fields__}
        self.connection.ask(self._link.client.create(**fields))

    def _get(self, queue: str, **_: Any) -> dict[str, Any]:
        task = self.connection.call(lambda: self.deliveries.get(command_of(queue)))
        message = None if task is None else self._message(task)
        if message is None:
            raise Empty
        return message

    def queue_declare(self, queue: str | None = None, passive: bool = False, **options: Any) -> Any:
        """Return a queue; its messages are counted if it is asked for by a passive declare.

        Celery declares a queue with each connection that publishes, and asks for no count.
        """
        if queue and _is_of_replies(queue):
            # Before the question is published, so that no reply comes too early.
            self._listen(queue, queue)
        if passive:
            return super().queue_declare(queue, passive=True, **options)
        return queue_declare_ok_t(queue or f"amq.gen-{uuid4()}", 0, 0)

    def _has_queue(self, queue: str, **_: Any) -> bool:
        """Return whether a queue holds something, or is one that this connection has declared."""
        return any(queue == name for name, _, _ in self.list_bindings()) or self._size(queue) > 0

    def _size(self, queue: str) -> int:
        """Return how many messages can be claimed; 0 if the token may not ask."""
        try:
            found = self.connection.ask(self._link.operator.queue(command_of(queue)))
        except BrokerRefused as error:
            if error.code in _NO_ADMIN:
                return 0  # The token itself was accepted when the connection was made.
            raise
        return int(found["ready"])

    def _purge(self, queue: str) -> int:
        """End all waiting messages of a queue and return how many; needs an admin's token."""
        ended, more = 0, True
        while more:
            answer = self.connection.ask(self._link.operator.purge(command_of(queue)))
            ended += int(answer["purged"])
            more = bool(answer["more"])
        return ended


def _is_of_replies(queue: str) -> bool:
    """Return whether a queue is one of Kombu's for the replies to one inspector."""
    return _REPLIES.fullmatch(queue) is not None


def refused(error: Refused) -> BrokerRefused:
    """Return a refusal as an error of a channel, which is not repeated."""
    made = BrokerRefused(f"{error.code or error.status}: {error}")
    made.code = error.status
    return made
