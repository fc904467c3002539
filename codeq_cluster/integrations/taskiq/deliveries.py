"""Deliveries: the messages that a worker has claimed, from their arrival to their end."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from taskiq import TaskiqMessage, TaskiqMiddleware, TaskiqResult
from taskiq.exceptions import BrokerError, NoResultError

from codeq_cluster.client import Leases, TaskRecord
from codeq_cluster.errors import CodeqError
from codeq_cluster.integrations.holding import Holding, tag_of
from codeq_cluster.integrations.link import Link, is_unfit, may_pass
from codeq_cluster.integrations.taskiq.messages import DELIVERY

FOLLOW_UPS_MAX: Final = 100  # The broker's bound on what follows one task.

_ERROR_CHARS_MAX: Final = 1000
_PAUSE_S: Final = 1.0  # After a claim that failed; the client has repeated it before.

log = logging.getLogger(__name__)


class NotAcknowledged(BrokerError):
    """An acknowledgement was not taken; the message comes again, or is a dead letter."""

    __template__ = "message {task}: {reason}"
    task: str
    reason: str


class Delivery:
    """A message that this process holds.

    Attributes:
        tag: The name of this delivery.
        task: As claimed.
        labels: As it came.
        following: What is to be created with its end.
        error: How its function failed, or why it cannot run.
        is_known: A task of this name is here.
    """

    def __init__(
        self, task: TaskRecord, labels: Mapping[str, Any], holding: Holding, link: Link
    ) -> None:
        self.tag = tag_of(task)
        self.task = task
        self.labels = labels
        self.following: list[bytes] = []
        self.error = ""
        self.is_known = True
        self._holding = holding
        self._link = link

    def failed(self, error: str) -> None:
        """Note why it has failed."""
        self.error = error[:_ERROR_CHARS_MAX]

    async def end(self, *, within_s: float) -> None:
        """End it; once it returned, that is on a majority of the nodes.

        Args:
            within_s: How long to repeat the request.

        Raises:
            NotAcknowledged: Its lease is lost, or the broker did not take its end.
        """
        leases, task = self._link.leases, self.task
        try:
            taken = await self._link.answer(
                self._holding.end(task, lambda held: self._request(leases, held, within_s))
            )
        except CodeqError as error:
            reason = f"its end was not taken: {error}"
            log.error("message %s: %s", task.id, reason)  # noqa: TRY400 - the text says it all
            if is_unfit(error):
                # A repetition would run the function again, up to the last delivery.
                await self._link.answer(self._holding.set_aside(task, reason))
            else:
                await self.give_back("" if may_pass(error) else reason)
            raise NotAcknowledged(task=task.id, reason=reason) from error
        if not taken:
            raise NotAcknowledged(task=task.id, reason="its lease was lost; it may come again")

    async def give_back(self, reason: str) -> None:
        """Return it to its queue; with a reason after the queue's back-off."""
        await self._link.answer(self._holding.give_back([self.task], reason=reason))

    def left(self, reason: str) -> None:
        """Return it to its queue, and do not wait for that."""
        log.error("message %s: %s", self.task.id, reason)
        self._link.start(self._holding.give_back([self.task], reason=reason))

    async def _request(self, leases: Leases, task: TaskRecord, within_s: float) -> None:
        if not self.is_known:
            # Another worker may know it, of a newer release for one.
            await leases.nack(task, self.error, within_s=within_s)
        elif self.error and not self.following:
            await leases.fail(task, self.error, within_s=within_s)
        else:
            following = tuple(self.following)
            await self._link.ends.acknowledge(task, following=following, within_s=within_s)


class Noting(TaskiqMiddleware):
    """Notes how a message went, because an acknowledgement of taskiq does not say it."""

    def __init__(self, deliveries: dict[str, Delivery]) -> None:
        """Prepare it.

        Args:
            deliveries: Those that are not acknowledged yet, by tag; the broker's own.
        """
        super().__init__()
        self._deliveries = deliveries

    def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        """Give a message back whose callback ends without an acknowledgement."""
        delivery = self._deliveries.get(str(message.labels.get(DELIVERY)))
        callback = asyncio.current_task()
        if delivery is not None and callback is not None:
            callback.add_done_callback(lambda ended: self._ended(delivery, ended))
        return message

    def on_error(
        self,
        message: TaskiqMessage,
        result: TaskiqResult[Any],  # noqa: ARG002 - taskiq's own hook
        exception: BaseException,
    ) -> None:
        """Note the exception; the message has failed with it, unless it is tried again."""
        delivery = self._deliveries.get(str(message.labels.get(DELIVERY)))
        if delivery is not None and not isinstance(exception, NoResultError):
            delivery.failed(repr(exception))

    def _ended(self, delivery: Delivery, callback: asyncio.Task[Any]) -> None:
        if self._deliveries.pop(delivery.tag, None) is None:
            return
        error = None if callback.cancelled() else callback.exception()
        because = f": {error!r}" if error is not None else ""
        delivery.left(f"its worker has ended it without an acknowledgement{because}")


class Arrivals:
    """The tasks of a worker's queues, one after the other, until it stops."""

    def __init__(self, link: Link, holding: Holding, queues: Sequence[str], *, count: int) -> None:
        """Prepare it; nothing is claimed yet.

        Args:
            holding: Renews what arrives.
            queues: What is claimed.
            count: How many at once; all but the first wait here.
        """
        self._link = link
        self._holding = holding
        self._queues = queues
        self._count = count
        self._arrived: deque[TaskRecord] = deque()
        self._under_way: asyncio.Task[None] | None = None
        self._has_claimed = False

    async def next(self) -> TaskRecord:
        """Return the next task, however long it takes to come.

        Raises:
            Refused: The first claim was refused; later ones are repeated.
        """
        while not self._arrived:
            try:
                await self._link.answer(self._claim())
                self._has_claimed = True
            except CodeqError as error:
                if not self._has_claimed and not may_pass(error):
                    raise
                log.warning("no messages were claimed: %s", error)
                await asyncio.sleep(_PAUSE_S)
        return self._arrived.popleft()

    async def stop(self) -> None:
        """Return what has arrived and was not handed out."""
        await self._link.answer(self._stop())

    async def _claim(self) -> None:
        self._under_way = asyncio.current_task()
        self._arrived.extend(await self._holding.claim(self._queues, count=self._count))

    async def _stop(self) -> None:
        if self._under_way is not None and not self._under_way.done():
            self._under_way.cancel()
            await asyncio.wait({self._under_way})
        # Also what came while the claim was cancelled.
        back = tuple(self._arrived)
        self._arrived.clear()
        await self._holding.give_back(back)
