"""Mesh: this node's connections with every other node of the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from codeq_cluster.codec.membership import data_of
from codeq_cluster.errors import ConfigInvalid, PeerUnreachable
from codeq_cluster.forwarded import forwarded
from codeq_cluster.settings import LinkSettings
from codeq_cluster.wire.acceptor import Acceptor
from codeq_cluster.wire.address_book import AddressBook
from codeq_cluster.wire.certificates import Certificates, LinkContexts
from codeq_cluster.wire.counters import LinkCounters
from codeq_cluster.wire.dialler import Dialler, Diallers
from codeq_cluster.wire.handler import Admission, LinkHandler
from codeq_cluster.wire.handshake import LinkIdentity
from codeq_cluster.wire.link import Link
from codeq_cluster.wire.messages import (
    ITEM_BYTES,
    RPC_TIMEOUT_S_MAX,
    pack,
    raft_item,
    request_item,
    unpack,
)
from codeq_cluster.wire.receiver import Receiver
from codeq_cluster.wire.refusals import HandshakeRefusal
from codeq_cluster.wire.rpc import Handlers, PendingCalls


@dataclass(frozen=True, slots=True)
class _Run:
    """The parts of a link from its start to its stop."""

    server: asyncio.Server
    receiver: Receiver
    diallers: Diallers
    runner: asyncio.Task[None]


class Mesh:
    """Carries Raft messages and RPC between this node and its peers, over one port.

    Peers may join, leave and move while it runs: a peer that has dialled this node reports its own
    address.

    Each node dials every peer and sends everything on the connection it dialled, so each direction
    is FIFO. Messages arrive in order and unaltered, and are lost only where a connection ended.
    All methods belong to the loop that called `start`, and the handler is called on it. A handler
    that raises is a bug; it reaches the loop's exception handler.

    Attributes:
        counters: Since the start.
    """

    counters: LinkCounters = forwarded("_link.counters")

    def __init__(
        self,
        identity: LinkIdentity,
        *,
        peers: Mapping[str, str],
        host: str,
        port: int,
        settings: LinkSettings,
        certificates: Certificates[LinkContexts] | None = None,
    ) -> None:
        """Prepare; nothing happens before `start`.

        Args:
            identity: This node, with the secret that the cluster's nodes share.
            peers: host:port of every other node by its id.
            port: The port to listen on; 0 for any free one.
            certificates: With these both ends of every connection prove themselves, in addition to
                the secret; None leaves the link without TLS.

        Raises:
            ConfigInvalid: The secret is empty, or an address is not host:port.
        """
        if not identity.secret:
            raise ConfigInvalid("clusterSecret must not be empty")
        if identity.node_id in peers:
            raise ConfigInvalid(f"peers must not name this node, {identity.node_id}")
        self._link = link = Link(
            identity=identity,
            book=AddressBook(peers),
            settings=settings,
            certificates=certificates,
        )
        self._listen = (host, port)
        self._calls = PendingCalls(in_flight_max=settings.rpc_in_flight_max, counters=link.counters)
        self._run: _Run | None = None

    @property
    def port(self) -> int:
        """Return the port listened on, once started."""
        assert self._run is not None
        port: int = self._run.server.sockets[0].getsockname()[1]
        return port

    @property
    def peers_connected(self) -> int:
        """Return how many peers are reached now by the connection this node dialled."""
        return sum(map(self.connected, self._link.book))

    async def start(self, handler: LinkHandler, admission: Admission) -> None:
        """Listen, and begin to dial every peer; once only.

        Args:
            handler: Acts on what the peers do and say.
            admission: Decides which nodes may connect.

        Raises:
            OSError: The node cannot listen on the address.
        """
        assert self._run is None, "a link is started once"
        loop = asyncio.get_running_loop()
        receiver = self._receiver(handler)
        diallers = self._diallers(handler, admission)
        acceptor = Acceptor(
            self._link,
            admission=admission,
            on_peer=diallers.wake,
            on_lost=self._calls.lose,
            on_message=receiver.received,
        )
        host, port = self._listen
        server = await loop.create_server(acceptor.accept, host, port)
        # The only task without an owner: the group inside it owns all others, and `stop` awaits it.
        runner = loop.create_task(self._work(receiver, diallers))
        runner.add_done_callback(_report_bug)
        self._run = _Run(server, receiver, diallers, runner)

    async def stop(self) -> None:
        """Close everything; afterwards no callback is called and no task or socket is left.

        Queued frames still leave if the peer takes them at once; waiting calls end with LinkLost.
        """
        self._link.open.closing = True
        run = self._run
        if run is not None:
            run.receiver.tasks = None
            run.diallers.end()
            run.server.close()
            run.runner.cancel()
            await asyncio.wait([run.runner])
        self._calls.lose()
        await self._link.open.close()
        if run is not None:
            await run.server.wait_closed()

    def send(self, peer: str, group: int, message: bytes) -> bool:
        """Queue a Raft message.

        Args:
            group: At least 0.
            message: Packed: a map of short strings to plain values.

        Returns:
            False when it was dropped: not connected, queue full, or over `frame_bytes_max`.
        """
        connection = self._link.outbound.get(peer)
        if connection is not None and connection.send(raft_item(group, message), len(message)):
            return True
        self._link.counters.dropped_messages += 1
        return False

    async def call(
        self, peer: str, method: str, body: object, *, timeout_s: float, topic: int | None = None
    ) -> object:
        """Return a peer's answer to a call, as plain values; see `ask`."""
        return unpack(await self.ask(peer, method, pack(body), timeout_s=timeout_s, topic=topic))

    def ask(
        self, peer: str, method: str, body: bytes, *, timeout_s: float, topic: int | None = None
    ) -> asyncio.Future[bytes]:
        """Return a future with a peer's answer to a call, packed.

        Args:
            method: At most 64 characters.
            body: Packed.
            timeout_s: How long the caller waits; the handler gets at most that.
            topic: What the call is about, for `give_up`.

        Raises:
            PeerUnreachable: Nothing was sent, for certain; raised at once, like Overloaded.
            LinkLost: The connection broke after sending, or time ran out: the peer may have acted.
            NotLeader: The peer's handler raised it; the same holds for NoLeader and Overloaded.
            OutcomeUnknown: The handler raised it, or failed otherwise.
            Overloaded: Also when too many calls of this node wait; nothing was sent.
        """
        timeout_s = min(float(timeout_s), RPC_TIMEOUT_S_MAX)
        if not timeout_s > 0:
            raise PeerUnreachable(f"no time is left to ask {peer}")
        connection = self._link.outbound.get(peer)
        # An answer comes on the peer's own connection; without one the call would be in vain.
        if connection is None or connection.closed or peer not in self._link.inbound:
            raise PeerUnreachable(f"no connection with {peer}")

        if len(body) + ITEM_BYTES > self._link.settings.frame_bytes_max:
            raise PeerUnreachable(
                f"{method}: a request of {len(body)} bytes is over the link's "
                f"{self._link.settings.frame_bytes_max}; nothing was sent"
            )

        def send(number: int) -> bool:
            return connection.send(request_item(number, method, timeout_s, body), len(body))

        return self._calls.begin(peer, send, timeout_s=timeout_s, topic=topic)

    def give_up(self, peer: str, topic: int) -> None:
        """End the waiting calls to `peer` about `topic` with LinkLost: the peer may have acted."""
        self._calls.give_up(peer, topic)

    def know(
        self, peers: Mapping[str, str], recorded: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """Replace the peers with these.

        Args:
            peers: host:port of every other node by its id; an entry with a bad address is skipped.
            recorded: Other addresses of each peer; bad ones are skipped.
        """
        before = set(self._link.book)
        for peer in before - peers.keys():
            self._forget(peer)
        for peer, address in peers.items():
            is_known = self._link.book.note(peer, address, (recorded or {}).get(peer, ()))
            if is_known and peer not in before and self._run is not None:
                self._run.diallers.add(peer)

    def data_at(self, peer: str) -> int | None:
        """Return the identity of the data that a connected peer runs on."""
        connection = self._link.inbound.get(peer)
        if connection is None or connection.session is None:
            return None
        return data_of(connection.session.incarnation)

    def connected(self, peer: str) -> bool:
        """Return whether `send` reaches `peer` now."""
        connection = self._link.outbound.get(peer)
        return connection is not None and not connection.closed

    def denied_as(self, reason: HandshakeRefusal) -> list[str]:
        """Return the peers that refused this node for this reason when it last dialled."""
        return self._run.diallers.denied_as(reason) if self._run is not None else []

    def remedy(self, peer: str) -> str:
        """Return what an operator can do against the refusal of the last dial; empty if unknown."""
        return self._run.diallers.remedy(peer) if self._run is not None else ""

    def _receiver(self, handler: LinkHandler) -> Receiver:
        handlers = Handlers(
            handler.on_call,
            quick=handler.quick,
            in_flight_max=self._link.settings.rpc_in_flight_max,
            frame_bytes_max=self._link.settings.frame_bytes_max,
            counters=self._link.counters,
        )
        return Receiver(
            handler,
            handlers,
            calls=self._calls,
            outbound=self._link.outbound,
            counters=self._link.counters,
        )

    def _diallers(self, handler: LinkHandler, admission: Admission) -> Diallers:
        return Diallers(
            partial(
                Dialler,
                link=self._link,
                is_past=admission.is_past,
                handler=handler,
                on_lost=self._calls.lose,
            )
        )

    async def _work(self, receiver: Receiver, diallers: Diallers) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._link.open.keep_alive(self._link.settings.ping_ms))
            receiver.tasks = tasks
            diallers.begin(tasks, self._link.book)

    def _forget(self, peer: str) -> None:
        """Drop everything about a peer."""
        self._link.book.forget(peer)
        inbound = self._link.inbound.pop(peer, None)
        if inbound is not None:
            inbound.abort()
        self._calls.lose(peer)
        if self._run is not None:
            self._run.diallers.drop(peer)


def _report_bug(runner: asyncio.Task[None]) -> None:
    if not runner.cancelled() and (error := runner.exception()) is not None:
        runner.get_loop().call_exception_handler(
            {"message": "the link stopped on a bug", "exception": error, "task": runner}
        )
