"""Broker: Dramatiq's queues on this broker's."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import dramatiq
from dramatiq import Message, Middleware
from dramatiq.common import current_millis, q_name
from dramatiq.errors import QueueJoinTimeout, QueueNotFound
from dramatiq.threading import is_gevent_active

from codeq_cluster.client import NewTask, Refused
from codeq_cluster.errors import CodeqError, ConfigInvalid
from codeq_cluster.integrations.bodies import follow_up
from codeq_cluster.integrations.dramatiq.consumer import Consumer, Delivery
from codeq_cluster.integrations.dramatiq.messages import DELIVERIES_MAX, key_of, task_of
from codeq_cluster.integrations.dramatiq.session import BrokerRefused, Sessions, as_dramatiq
from codeq_cluster.integrations.holding import LEASE_S
from codeq_cluster.integrations.target import DEADLINE_S, target_of

_FOLLOW_UPS_MAX: Final = 100  # The broker's bound on what follows one task.
_TAKEN: Final = "idempotency-conflict"
_WAITS: Final = ("ready", "delayed", "held", "inProgress")
_NO_ADMIN: Final = "; counting and flushing queues needs an admin's token, scope codeq:admin"


class CodeqBroker(dramatiq.Broker):
    """A broker whose queues are those of a cluster.

    There are no delay queues: a delayed message waits at the cluster.
    """

    queues: set[str]

    def __init__(
        self,
        url: str,
        *,
        middleware: Sequence[Middleware] | None = None,
        token: str = "",
        lease_seconds: int = LEASE_S,
        max_deliveries: int = DELIVERIES_MAX,
        deadline_seconds: float = DEADLINE_S,
        confirm_acks: bool = True,
    ) -> None:
        """Prepare a broker; nothing is sent yet.

        Args:
            url: `codeq://TOKEN@HOST:PORT,HOST:PORT`, `codeqs` for TLS; `?ca=FILE` names the only
                authorities trusted.
            middleware: In place of Dramatiq's own.
            token: In place of the one in the URL.
            lease_seconds: How long a message stays away after its worker was killed, 5 or more.
            max_deliveries: Deliveries before a message is a dead letter, 1 to 1000.
            deadline_seconds: How long one request is repeated before Dramatiq hears of it.
            confirm_acks: Each acknowledgement waits for the broker. False is faster: a thread goes
                on with its next message meanwhile.

        Raises:
            ConfigInvalid: The URL or a number is impossible, or gevent is active.
        """
        if is_gevent_active():
            raise ConfigInvalid("gevent is not supported; use the command dramatiq, with threads")
        if lease_seconds < 5:
            raise ConfigInvalid(f"lease_seconds={lease_seconds}: must be 5 or more")
        if not 1 <= max_deliveries <= 1000:
            raise ConfigInvalid(f"max_deliveries={max_deliveries}: must be 1 to 1000")
        target = target_of(url, token=token, deadline_s=deadline_seconds)
        super().__init__(None if middleware is None else list(middleware))
        self.queues = set()
        self._sessions = Sessions(target, lease_s=lease_seconds)
        self._deliveries_max = max_deliveries
        self._confirm_acks = confirm_acks
        self._after = threading.local()

    def close(self) -> None:
        """Return what this process holds, and close its connections."""
        self._sessions.close()

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue; it begins with its first message."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.emit_after("declare_queue", queue_name)

    def get_declared_queues(self) -> set[str]:
        """Return the names of all queues declared so far."""
        return self.queues.copy()

    def consume(
        self, queue_name: str, prefetch: int = 1, timeout: int = 30000
    ) -> dramatiq.Consumer:
        """Return a consumer of a queue.

        Args:
            queue_name: The queue.
            prefetch: How many of its messages this process may hold.
            timeout: How long to wait for a message, in milliseconds.

        Raises:
            QueueNotFound: It was never declared.
        """
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        return Consumer(
            self._sessions.ours,
            queue_name,
            prefetch=prefetch,
            timeout_s=timeout / 1000,
            confirm_acks=self._confirm_acks,
        )

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Enqueue a message; once it returned, the message is on a majority of the nodes.

        Enqueuing the same message again, for instance after `ConnectionClosed`, makes no second
        one. What middleware enqueues after a message ran is created with its acknowledgement.

        Args:
            message: The message.
            delay: Before its first delivery, in milliseconds, rounded up to whole seconds.

        Raises:
            ConnectionClosed: No node answered, or the outcome is unknown.
            BrokerRefused: The broker refused it.
            ValueError: The delay or the priority is impossible.
        """
        key = key_of(message, delay_ms=delay)
        self.emit_before("enqueue", message, delay)
        following: list[bytes] | None = getattr(self._after, "following", None)
        follows = following is not None and len(following) < _FOLLOW_UPS_MAX
        task = task_of(
            message,
            delay_ms=delay,
            now_ms=current_millis(),
            deliveries_max=self._deliveries_max,
            key=None if follows else key,
        )
        if following is not None and follows:
            following.append(follow_up(task))
        else:
            self._create(task)
        self.emit_after("enqueue", message, delay)
        return message

    def emit_after(self, signal: str, *args: Any, **kwargs: Any) -> None:
        """Call the middleware.

        What it enqueues after a message ran, as a retry or the next step of a pipeline, would be
        lost if that failed, because the message is acknowledged all the same; and a crash between
        the two would double it. So it is kept for the acknowledgement.
        """
        delivery = args[0] if args else None
        if signal != "process_message" or not isinstance(delivery, Delivery):
            super().emit_after(signal, *args, **kwargs)
            return
        self._after.following = following = list[bytes]()
        try:
            super().emit_after(signal, *args, **kwargs)
        finally:
            self._after.following = None
            delivery.following = tuple(following)

    def flush(self, queue_name: str) -> None:
        """Cancel all waiting messages of a queue; needs an admin's token."""
        session, more = self._sessions.ours, True
        while more:
            try:
                more = session.ask(session.link.operator.purge(q_name(queue_name)))["more"]
            except BrokerRefused as error:
                raise BrokerRefused(f"{error}{_NO_ADMIN}") from error

    def flush_all(self) -> None:
        """Cancel all waiting messages of all declared queues."""
        for queue_name in self.queues:
            self.flush(queue_name)

    def join(self, queue_name: str, *, interval: int = 100, timeout: int | None = None) -> None:
        """Wait until a queue is empty and nothing of it is in progress; needs an admin's token.

        Args:
            queue_name: The queue.
            interval: Between two looks, in milliseconds.
            timeout: In milliseconds; None waits for ever.

        Raises:
            QueueJoinTimeout: It has not become empty in time.
        """
        until_s = None if timeout is None else time.monotonic() + timeout / 1000
        session = self._sessions.ours
        while True:
            try:
                found = session.ask(session.link.operator.queue(q_name(queue_name)))
            except BrokerRefused as error:
                raise BrokerRefused(f"{error}{_NO_ADMIN}") from error
            if not any(found.get(each) for each in _WAITS):
                return
            if until_s is not None and time.monotonic() >= until_s:
                raise QueueJoinTimeout(queue_name)
            time.sleep(interval / 1000)

    def _create(self, task: NewTask) -> None:
        session = self._sessions.ours
        fields = {name: getattr(task, name) for name in task.__dataclass_fields__}
        try:
            session.link.run(session.link.client.create(**fields))
        except CodeqError as error:
            # It is there already; middleware has only written other options this time.
            if not (isinstance(error, Refused) and error.code == _TAKEN):
                raise as_dramatiq(error) from error
