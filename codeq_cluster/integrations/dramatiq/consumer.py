"""Consumer: the messages of one queue, from their claim to their acknowledgement."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, wait
from typing import Any, Final

import dramatiq
from dramatiq import Message, MessageProxy
from dramatiq.errors import DecodeError

from codeq_cluster.client import TaskRecord
from codeq_cluster.errors import CodeqError
from codeq_cluster.integrations.dramatiq.messages import message_of
from codeq_cluster.integrations.dramatiq.session import Session, as_dramatiq
from codeq_cluster.integrations.ends import ACKNOWLEDGED
from codeq_cluster.integrations.holding import END_WITHIN_S, tag_of
from codeq_cluster.integrations.link import is_unfit, may_pass

_ERROR_CHARS_MAX: Final = 1000
# Short messages end one after the other: a claim for each would cost more than they do.
_MORE_ROOM_WITHIN_S: Final = 0.01

log = logging.getLogger(__name__)


class Delivery(MessageProxy):
    """A message that this process holds.

    Attributes:
        task: As claimed.
        following: What middleware enqueued after it ran, to be created with its end.
    """

    def __init__(self, message: Message[Any], task: TaskRecord) -> None:
        super().__init__(message)
        self.task = task
        self.following: Sequence[bytes] = ()

    @property
    def why_failed(self) -> str:
        """What the task shows as its error."""
        cause = self._exception
        why = "its worker rejected the message" if cause is None else f"{cause!r}"
        return f"REJECTED: {why}"[:_ERROR_CHARS_MAX]


class Consumer(dramatiq.Consumer):
    """An iterator over a queue; its acknowledgements are for any thread.

    What was handed out stays held when the consumer is closed: Dramatiq makes another one after a
    pause or an error, and acknowledges there.
    """

    def __init__(
        self,
        session: Session,
        queue_name: str,
        *,
        prefetch: int,
        timeout_s: float,
        confirm_acks: bool,
    ) -> None:
        """Prepare it; the first message asked for is claimed.

        Args:
            queue_name: What is consumed.
            prefetch: How many messages of the queue may be held, beside those that end.
            confirm_acks: Whether an acknowledgement waits for the broker.
        """
        self._session = session
        self._queue_name = queue_name
        self._prefetch = prefetch
        self._timeout_s = timeout_s
        self._confirm_acks = confirm_acks
        self._arrived: deque[TaskRecord] = deque()
        self._claiming: Future[None] | None = None
        self._under_way: asyncio.Task[None] | None = None
        self._room = threading.Event()

    def __next__(self) -> MessageProxy | None:
        """Return a message, or None if there is none in time.

        Raises:
            ConnectionClosed: No node answers.
            BrokerRefused: The broker refuses claims.
        """
        if not self._arrived:
            self._wait()
        return self._delivery(self._arrived.popleft()) if self._arrived else None

    def ack(self, message: MessageProxy) -> None:
        """End a message; if acknowledgements are confirmed, that is on a majority of the nodes."""
        link, following = self._session.link, _following(message)
        if self._confirm_acks:
            # A thread waits for its answer: others that it would go with delay it.
            self._end(
                message, lambda task: link.leases.complete(task, ACKNOWLEDGED, following=following)
            )
        else:
            self._end(
                message,
                lambda task: link.ends.acknowledge(
                    task, following=following, within_s=END_WITHIN_S
                ),
            )

    def nack(self, message: MessageProxy) -> None:
        """Make a message a dead letter, with the exception of its actor.

        One whose end creates others fails with them instead: a dead letter creates nothing.
        """
        leases, within_s = self._session.link.leases, self._within_s
        following = _following(message)
        error = message.why_failed if isinstance(message, Delivery) else ""
        if following:
            self._end(
                message,
                lambda task: leases.fail(task, error, following=following, within_s=within_s),
            )
        else:
            self._end(message, lambda task: leases.reject(task, error, within_s=within_s))

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Return messages to their queue, for any worker."""
        tasks = [message.task for message in messages if isinstance(message, Delivery)]
        self._session.ask(self._session.holding.give_back(tasks))
        self._room.set()

    def close(self) -> None:
        """Return what was not handed out yet; what was is still this process's."""
        self._session.ask(self._stop())
        self._claiming = None

    def _wait(self) -> None:
        """Wait for messages or for room, at most as long as a caller waits for a message."""
        if self._claiming is None:
            room = self._room_to_claim()
            if not room:
                return
            self._claiming = self._session.link.start(self._claim(room))
        done, _ = wait([self._claiming], timeout=self._timeout_s)
        if not done:
            return
        claimed, self._claiming = self._claiming, None
        try:
            claimed.result()
        except CodeqError as error:
            raise as_dramatiq(error) from error

    def _room_to_claim(self) -> int:
        """Return how many messages to claim, or 0 after a wait for room, or for more of it."""
        room = self._prefetch - self._session.holding.count(self._queue_name)
        if room <= 0:
            self._room.wait(self._timeout_s)
        elif room >= self._prefetch // 2 or not self._room.wait(_MORE_ROOM_WITHIN_S):
            return room
        self._room.clear()
        return 0

    async def _claim(self, count: int) -> None:
        self._under_way = asyncio.current_task()
        self._arrived.extend(await self._session.holding.claim([self._queue_name], count=count))

    async def _stop(self) -> None:
        if self._under_way is not None and not self._under_way.done():
            self._under_way.cancel()
            await asyncio.wait({self._under_way})
        # Also what came while the claim was cancelled.
        back = tuple(self._arrived)
        self._arrived.clear()
        await self._session.holding.give_back(back)

    def _delivery(self, task: TaskRecord) -> Delivery | None:
        try:
            message = message_of(task, queue_name=self._queue_name, delivery=tag_of(task))
        except DecodeError as error:
            text = f"UNREADABLE: {error.error!r}; its producer may use another encoder"
            log.error("message %s: %s", task.id, text)  # noqa: TRY400 - the text says it all
            self._session.ask(self._failed(task, text[:_ERROR_CHARS_MAX]))
            return None
        return Delivery(message, task)

    async def _failed(self, task: TaskRecord, error: str) -> None:
        """Fail a task that nobody holds a message of, or let it return by its lease."""
        leases, holding = self._session.link.leases, self._session.holding
        try:
            await holding.end(task, lambda held: leases.fail(held, error))
        finally:
            # Nobody would ask for its end again, so it would be renewed forever.
            holding.leave(task)

    def _end(
        self,
        message: MessageProxy,
        request: Callable[[TaskRecord], Coroutine[Any, Any, object]],
    ) -> None:
        if not isinstance(message, Delivery):
            log.warning("message %s: it is none of this broker's deliveries", message.message_id)
            return
        if self._confirm_acks:
            self._session.ask(self._ended(message, request))
        else:
            self._session.link.send_off(self._ended(message, request))

    async def _ended(
        self,
        delivery: Delivery,
        request: Callable[[TaskRecord], Coroutine[Any, Any, object]],
    ) -> None:
        def begun(task: TaskRecord) -> Coroutine[Any, Any, object]:
            self._room.set()
            return request(task)

        holding, task = self._session.holding, delivery.task
        try:
            if not await holding.end(task, begun):
                log.warning("message %s: its lease was lost; it may come again", task.id)
        except CodeqError as error:
            if self._confirm_acks and may_pass(error):
                # Dramatiq acknowledges again, and the lease is renewed until then.
                raise
            reason = f"its end was refused: {error}"
            log.error("message %s: %s", task.id, reason)  # noqa: TRY400 - says it all
            if is_unfit(error):
                # A repetition would run the actor again, up to the last delivery, for the same end.
                await holding.set_aside(task, reason)
            else:
                await holding.give_back([task], reason=reason)
        finally:
            self._room.set()

    @property
    def _within_s(self) -> float | None:
        return None if self._confirm_acks else END_WITHIN_S


def _following(message: MessageProxy) -> Sequence[bytes]:
    return message.following if isinstance(message, Delivery) else ()
