"""Receiver: hands each message of a peer to the part of the link or the node that expects it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from codeq_cluster.wire.connection import Inbound, Outbound
from codeq_cluster.wire.counters import LinkCounters
from codeq_cluster.wire.handler import LinkHandler
from codeq_cluster.wire.messages import Failure, Message, RaftMessage, RpcAnswer, RpcRequest
from codeq_cluster.wire.rpc import Handlers, PendingCalls


class Receiver:
    """Takes every message that comes in.

    Args:
        handler: Takes Raft messages.
        handlers: Answer calls.
        calls: Wait for answers.
        outbound: By peer; answers leave on the connection that this node dialled.
        counters: Counts answers that could not leave.

    Attributes:
        tasks: Owns the tasks of calls; None while calls are dropped, before the link runs and once
            it stops.
    """

    def __init__(
        self,
        handler: LinkHandler,
        handlers: Handlers,
        *,
        calls: PendingCalls,
        outbound: Mapping[str, Outbound],
        counters: LinkCounters,
    ) -> None:
        self._on_raft = handler.on_raft
        self._handlers = handlers
        self._calls = calls
        self._outbound = outbound
        self._counters = counters
        self.tasks: asyncio.TaskGroup | None = None

    def received(self, connection: Inbound, message: Message) -> None:
        """Take one message."""
        match message:
            case RaftMessage():
                self._on_raft(connection.peer, message.group, message.message)
            case RpcAnswer() | Failure():
                self._calls.settle(connection.peer, message)
            case RpcRequest():
                self._asked(connection, message)

    def _asked(self, connection: Inbound, request: RpcRequest) -> None:
        if self.tasks is None:
            return

        def reply(answer: list[object], packed_bytes: int) -> None:
            # The answer must reach the process that asked, so the connection it asked on must still
            # be up.
            outbound = self._outbound.get(connection.peer)
            if connection.closed or outbound is None or not outbound.send(answer, packed_bytes):
                self._counters.dropped_answers += 1

        self._handlers.accept(connection.peer, request, tasks=self.tasks, reply=reply)
