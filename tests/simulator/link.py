"""Simulated link: one life of one node's connections with its peers, Raft messages and calls.

Calls use the product's own frames, numbers and handlers; only the transport of the bytes is
simulated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from codeq_cluster.errors import PeerUnreachable
from codeq_cluster.settings import LinkSettings
from codeq_cluster.wire.counters import LinkCounters
from codeq_cluster.wire.messages import (
    Failure,
    RpcAnswer,
    RpcRequest,
    bundle,
    pack,
    parse_bundle,
    request_item,
    unpack,
)
from codeq_cluster.wire.rpc import Handlers, PendingCalls, Quick, Serve
from tests.simulator.network import SimNetwork


class SimLink:
    """The counterpart of a real node's `Mesh`.

    Args:
        node_id: The node.
        network: Carries the messages.
        on_raft: Takes (peer, shard, message).
        serve: Answers (peer, method, body, timeout_s).
        quick: Handlers by method that answer without a task.

    Attributes:
        up: Peers with a connection that is not known to be broken.
    """

    def __init__(
        self,
        node_id: str,
        network: SimNetwork,
        *,
        on_raft: Callable[[str, int, bytes], None],
        serve: Serve,
        quick: Mapping[str, Quick],
    ) -> None:
        self.up: set[str] = set()
        self._node_id = node_id
        self._network = network
        self._on_raft = on_raft
        settings, counters = LinkSettings(), LinkCounters()
        self._calls = PendingCalls(in_flight_max=settings.rpc_in_flight_max, counters=counters)
        self._handlers = Handlers(
            serve,
            quick=quick,
            in_flight_max=settings.rpc_in_flight_max,
            frame_bytes_max=settings.frame_bytes_max,
            counters=counters,
        )
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Own the tasks that answer calls, for as long as the node lives."""
        async with asyncio.TaskGroup() as self._tasks:
            await asyncio.Event().wait()

    def send(self, peer: str, group: int, message: bytes) -> bool:
        """Send a Raft message; False if it is known to be lost."""
        if peer not in self.up:
            return False
        # Decoded on its way, so that observers can read it.
        said = {"shard": group, "raft": unpack(message)}
        return self._network.send(self._node_id, peer, said)

    def ask(
        self, peer: str, method: str, body: bytes, *, timeout_s: float, topic: int | None = None
    ) -> asyncio.Future[bytes]:
        """Ask a peer, as `Mesh.ask` does."""
        if peer not in self.up:
            raise PeerUnreachable(f"no connection with {peer}")

        def send(number: int) -> bool:
            return self._say(peer, request_item(number, method, timeout_s, body))

        return self._calls.begin(peer, send, timeout_s=timeout_s, topic=topic)

    def give_up(self, peer: str, topic: int) -> None:
        """End the waiting calls to `peer` about `topic`."""
        self._calls.give_up(peer, topic)

    def lost(self, peer: str) -> None:
        """Note that the connection with a peer is broken."""
        self.up.discard(peer)
        self._calls.lose(peer)

    def received(self, peer: str, message: Mapping[str, object]) -> None:
        """Handle an incoming message."""
        raft = message.get("raft")
        if isinstance(raft, Mapping):
            shard = message["shard"]
            assert isinstance(shard, int)
            self._on_raft(peer, shard, pack(raft))
            return
        frame = message["frame"]
        assert isinstance(frame, bytes)
        for said in parse_bundle(frame):
            match said:
                case RpcRequest() as request:
                    assert self._tasks is not None, "a call before the link runs"
                    self._handlers.accept(
                        peer,
                        request,
                        tasks=self._tasks,
                        reply=lambda item, _bytes: self._answer(peer, item),
                    )
                case RpcAnswer() | Failure() as answer:
                    self._calls.settle(peer, answer)
                case other:
                    raise AssertionError(other)

    def _answer(self, peer: str, item: list[object]) -> None:
        self._say(peer, item)

    def _say(self, peer: str, item: list[object]) -> bool:
        return peer in self.up and self._network.send(
            self._node_id, peer, {"frame": bundle([item])}, whole=True
        )
