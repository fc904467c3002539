"""Broadcasts: taskiq's messages that every worker gets, as entries of a chain (ADR 0057)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Final
from uuid import uuid4

import msgspec
from msgspec import Raw, Struct
from taskiq import AsyncBroker, BrokerMessage

from codeq_cluster.errors import CodeqError
from codeq_cluster.integrations.bodies import encoded_of, payload_of
from codeq_cluster.integrations.chains import Chain
from codeq_cluster.integrations.link import Link, lasting, may_pass
from codeq_cluster.integrations.target import DEADLINE_S, target_of
from codeq_cluster.integrations.taskiq.messages import delay_of, queue_of

CHANNEL: Final = "taskiq"

_QUEUE: Final = "taskiq:broadcasts"
_PAUSE_S: Final = 1.0  # After a wait that failed; the client has repeated it before.

log = logging.getLogger(__name__)


class _Body(Struct):
    """What an entry carries for its listeners."""

    message: Raw


class CodeqPubSubBroker(AsyncBroker):
    """A broker whose messages reach every worker process that listens when they are sent.

    Nothing is kept for a worker that is not there, and nothing is acknowledged.
    """

    def __init__(
        self,
        url: str,
        *,
        queue_name: str = CHANNEL,
        token: str = "",
        deadline_seconds: float = DEADLINE_S,
    ) -> None:
        """Prepare a broker; nothing is sent yet.

        Args:
            url: As `CodeqBroker` takes it.
            queue_name: What is listened to, and where messages without a label `queue_name` go.
            token: In place of the one in the URL.
            deadline_seconds: How long one request is repeated before taskiq hears of it.

        Raises:
            ConfigInvalid: The URL is impossible.
        """
        self.target = target_of(url, token=token, deadline_s=deadline_seconds)
        super().__init__()
        self.queue_name = queue_name

    @property
    def link(self) -> Link:
        """The link of this process to the cluster."""
        return lasting(self.target)

    async def kick(self, message: BrokerMessage) -> None:
        """Send a message; once it returned, all who listen will get it.

        Raises:
            Unreachable: No node took it.
            Refused: The broker refused it, or the outcome is unknown; then it may come twice if it
                is sent again.
            ValueError: It has a delay.
        """
        if delay_of(message.labels, before={}, smart=False) is not None:
            raise ValueError("a broadcast has no delay; send it when it is due")
        body = msgspec.json.encode(_Body(Raw(payload_of(message.message))))
        chain = self._chain(queue_of(message.labels, default=self.queue_name))
        await self.link.answer(chain.say(body, write=uuid4().hex))

    async def listen(self) -> AsyncGenerator[bytes, None]:
        """Yield what is sent from now on, in the order of all senders.

        Raises:
            CodeqError: The broker does not answer at first, or refuses.
        """
        link, chain = self.link, self._chain(self.queue_name)
        last = await link.answer(chain.open())
        while True:
            try:
                last, record = await link.answer(chain.after(last))
            except CodeqError as error:
                if not may_pass(error):
                    raise
                log.warning("channel %s: broadcasts are late: %s", self.queue_name, error)
                await asyncio.sleep(_PAUSE_S)
                continue
            if record is not None:
                body = msgspec.json.decode(record.payload, type=_Body)
                yield encoded_of(bytes(body.message).decode())

    def _chain(self, name: str) -> Chain:
        return Chain(self.link.client, name, queue=_QUEUE)
