"""Broker: taskiq's messages on this broker's queues."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import fields
from functools import partial
from typing import Final

from taskiq import AckableMessage, AsyncBroker, BrokerMessage, SmartRetryMiddleware

from codeq_cluster.client import NewTask, Refused, TaskRecord
from codeq_cluster.errors import CodeqError, ConfigInvalid
from codeq_cluster.integrations.bodies import encoded_of, follow_up
from codeq_cluster.integrations.holding import CLAIM_MAX, LEASE_S, Holding, this_worker
from codeq_cluster.integrations.link import Link, lasting
from codeq_cluster.integrations.target import DEADLINE_S, target_of
from codeq_cluster.integrations.taskiq.deliveries import FOLLOW_UPS_MAX, Arrivals, Delivery, Noting
from codeq_cluster.integrations.taskiq.messages import (
    DELIVERIES_MAX,
    DELIVERY,
    DRAWN,
    delay_of,
    key_of,
    queue_of,
    spent,
    task_of,
)

QUEUE: Final = "taskiq"

_TAKEN: Final = "idempotency-conflict"


class CodeqBroker(AsyncBroker):
    """A broker whose queues are those of a cluster.

    Its requests and the renewal of leases have a thread of their own, so it can be used from any
    event loop, before `startup`, and while a function blocks the worker's loop.
    """

    def __init__(
        self,
        url: str,
        *,
        queue_name: str = QUEUE,
        listen_to: Sequence[str] | None = None,
        token: str = "",
        lease_seconds: int = LEASE_S,
        max_deliveries: int = DELIVERIES_MAX,
        deadline_seconds: float = DEADLINE_S,
        prefetch: int = 1,
    ) -> None:
        """Prepare a broker; nothing is sent yet.

        Args:
            url: `codeq://TOKEN@HOST:PORT,HOST:PORT`, `codeqs` for TLS; `?ca=FILE` names the only
                authorities trusted.
            queue_name: The queue of messages without a label `queue_name`.
            listen_to: The queues that a worker takes messages from; None for `queue_name`.
            token: In place of the one in the URL.
            lease_seconds: How long a message stays away after its worker was killed, 5 or more.
            max_deliveries: Deliveries before a message is a dead letter, 1 to 1000.
            deadline_seconds: How long one request is repeated before taskiq hears of it.
            prefetch: How many messages one claim takes, 1 to 100. All but the first wait in this
                process, beside those of taskiq's own `--max-prefetch`.

        Raises:
            ConfigInvalid: The URL or a number is impossible.
        """
        if lease_seconds < 5:
            raise ConfigInvalid(f"lease_seconds={lease_seconds}: must be 5 or more")
        if not 1 <= max_deliveries <= 1000:
            raise ConfigInvalid(f"max_deliveries={max_deliveries}: must be 1 to 1000")
        if not 1 <= prefetch <= CLAIM_MAX:
            raise ConfigInvalid(f"prefetch={prefetch}: must be 1 to {CLAIM_MAX}")
        self.target = target_of(url, token=token, deadline_s=deadline_seconds)
        super().__init__()
        self.queue_name = queue_name
        self._listen_to = [queue_name] if listen_to is None else list(listen_to)
        self._lease_s = lease_seconds
        self._deliveries_max = max_deliveries
        self._prefetch = prefetch
        self._holdings: list[tuple[Link, Holding]] = []
        # Those that are not acknowledged yet, by tag.
        self._deliveries: dict[str, Delivery] = {}
        self.add_middlewares(Noting(self._deliveries))

    @property
    def link(self) -> Link:
        """The link of this process to the cluster."""
        return lasting(self.target)

    async def shutdown(self) -> None:
        """Return what this process still holds to its queues."""
        await super().shutdown()
        while self._holdings:
            link, holding = self._holdings.pop()
            if link.ours:
                await link.answer(holding.close())

    async def kick(self, message: BrokerMessage) -> None:
        """Send a message; once it returned, the message is on a majority of the nodes.

        A retry or a requeue of a message that is not acknowledged yet is created with its
        acknowledgement. Kicking the same message again makes no second one.

        Raises:
            Unreachable: No node took it.
            Refused: The broker refused it, or the outcome is unknown; repeating it is safe.
            ValueError: The delay or the priority is impossible.
        """
        delivery = self._deliveries.get(str(message.labels.get(DELIVERY)))
        before = {} if delivery is None else delivery.labels
        queue = queue_of(message.labels, default=self.queue_name)
        delay = delay_of(message.labels, before=before, smart=self._has_smart_retries)
        follows = delivery is not None and len(delivery.following) < FOLLOW_UPS_MAX
        task = task_of(
            message,
            queue=queue,
            deliveries_max=self._deliveries_max,
            delay=delay,
            key=None if follows else key_of(message, self.formatter, queue=queue, delay=delay),
        )
        if delivery is not None and follows:
            delivery.following.append(follow_up(task))
        else:
            await self._create(task)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield messages as they come; those that were not handed out return at its end.

        Raises:
            Refused: The first claim was refused.
        """
        link = self.link
        holding = Holding(link.leases, lease_s=self._lease_s, worker_name=this_worker())
        self._holdings.append((link, holding))
        arrivals = Arrivals(link, holding, self._listen_to, count=self._prefetch)
        try:
            while True:
                yield self._delivered(await arrivals.next(), holding, link)
        finally:
            await arrivals.stop()

    def template(self, message: BrokerMessage) -> NewTask:
        """Return the task of each run of a schedule that sends a message."""
        queue = queue_of(message.labels, default=self.queue_name)
        return task_of(message, queue=queue, deliveries_max=self._deliveries_max)

    @property
    def _has_smart_retries(self) -> bool:
        return any(isinstance(each, SmartRetryMiddleware) for each in self.middlewares)

    def _delivered(self, task: TaskRecord, holding: Holding, link: Link) -> AckableMessage:
        """Return a task as taskiq's receiver takes it, which acknowledges also what it skips."""
        data = encoded_of(task.payload)
        try:
            message = self.formatter.loads(data)
            # The receiver does the same, and drops a message of which it raises.
            message.model_copy(update={"labels": dict(message.labels)}).parse_labels()
        except Exception as error:  # noqa: BLE001 - a formatter's own; the receiver reports it
            delivery = Delivery(task, {}, holding, link)
            delivery.failed(f"UNREADABLE: {error!r}; its producer may use another serializer")
        else:
            delivery = Delivery(task, dict(message.labels), holding, link)
            if message.task_id == DRAWN:
                message.task_id = task.id
            spent(message, smart=self._has_smart_retries)
            message.labels[DELIVERY] = delivery.tag
            data = self.formatter.dumps(message).message
            if self.find_task(message.task_name) is None:
                delivery.is_known = False
                delivery.failed(f"no task is named {message.task_name!r} here; import its module")
        self._deliveries[delivery.tag] = delivery
        return AckableMessage(data=data, ack=partial(self._acknowledge, delivery))

    async def _acknowledge(self, delivery: Delivery) -> None:
        # What is kicked from here on is created at once.
        self._deliveries.pop(delivery.tag, None)
        await delivery.end(within_s=max(self._lease_s, self.target.deadline_s))

    async def _create(self, task: NewTask) -> None:
        link = self.link
        given = {field.name: getattr(task, field.name) for field in fields(task)}
        try:
            await link.answer(link.client.create(**given))
        except CodeqError as error:
            # It is there already; middleware has only written other labels this time.
            if not (isinstance(error, Refused) and error.code == _TAKEN):
                raise
