"""Mesh: this node's connections with every other node of the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

from codeq_cluster.codec.membership import data_of
from codeq_cluster.errors import ConfigInvalid, PeerUnreachable
from codeq_cluster.settings import LinkSettings
from codeq_cluster.wire.addresses import Address
from codeq_cluster.wire.certificates import Certificates, LinkContexts
from codeq_cluster.wire.channel import Channel
from codeq_cluster.wire.connection import Inbound, LinkConnection, Outbound
from codeq_cluster.wire.counters import LinkCounters, LinkTally
from codeq_cluster.wire.handshake import Accepting, Dialling, LinkIdentity
from codeq_cluster.wire.messages import (
    ITEM_BYTES,
    RPC_TIMEOUT_S_MAX,
    Failure,
    Message,
    Ping,
    RaftMessage,
    RpcAnswer,
    RpcRequest,
    pack,
    raft_item,
    request_item,
    unpack,
)
from codeq_cluster.wire.refusals import HandshakeRefusal
from codeq_cluster.wire.rpc import Handlers, PendingCalls, Quick, Serve

log = logging.getLogger(__name__)

# A dying process closes its connections one after another, so the first new attempt may still reach
# its listening socket. These further attempts tell "refused" from "lost". They span a fifth of a
# second, for a process that dies slowly on a busy machine.
_HASTY_DIALS: Final = 10
_HASTY_PAUSE_S: Final = 0.02
# Attempts at a peer's first address before the others have their turn.
_FIRST_DIALS: Final = 3

# This many connections in a row may live for less than the longest pause; then dialling slows down.
_FLAPS_MAX: Final = 3

# Frames queued at stop get this long to leave; on a healthy link they need microseconds.
_FAREWELL_S: Final = 0.25


class _Anybody(Container[str]):
    """A container of every name; each node must still prove itself."""

    def __contains__(self, name: object) -> bool:
        return True


_ANYBODY: Final = _Anybody()


class _Missed(Enum):
    """Why a dial failed."""

    REFUSED = "refused"
    BROKEN = "broken"
    UNREACHABLE = "unreachable"


class Mesh:
    """Carries Raft messages and RPC between this node and its peers, over one port.

    Peers may join, leave and move while it runs: a peer that has dialled this node reports its own
    address.

    Each node dials every peer and sends everything on the connection it dialled, so each direction
    is FIFO. Messages arrive in order and unaltered, and are lost only where a connection ended.
    All methods and callbacks belong to the loop that called `start`. A callback that raises is a
    bug; it reaches the loop's exception handler.
    """

    def __init__(
        self,
        *,
        node_id: str,
        cluster_id: str,
        secret: bytes | str,
        peers: Mapping[str, str],
        host: str,
        port: int,
        settings: LinkSettings,
        incarnation: int,
        address: str = "",
        on_raft: Callable[[str, int, bytes], None],
        on_up: Callable[[str], None],
        on_down: Callable[[str, bool], None],
        serve: Serve,
        quick: Mapping[str, Quick] | None = None,
        recognises: Callable[[str, int], bool] = lambda peer, incarnation: True,  # noqa: ARG005
        is_past: Callable[[int], bool] = lambda incarnation: False,  # noqa: ARG005
        welcomes: Callable[[], bool] = lambda: False,
        on_stranger: Callable[[str, str], None] = lambda peer, address: None,  # noqa: ARG005
        certificates: Certificates[LinkContexts] | None = None,
    ) -> None:
        """Prepare; nothing happens before `start`.

        Args:
            node_id: This node.
            cluster_id: Of this node and all peers.
            secret: Shared by the cluster's nodes; not empty.
            peers: host:port of every other node by its id.
            host: The address to listen on.
            port: The port to listen on; 0 for any free one.
            settings: Bounds.
            incarnation: Grows with every start of the node.
            address: Where peers reach this node, host:port; empty when they know it already.
            on_raft: Called with (peer, group, message); the message is packed.
            on_up: Called with a peer once the connection this node dialled is authenticated.
            on_down: Called with (peer, refused) once per loss of that connection. It waits until it
                is known whether the peer's machine refuses a new one: then its process has ended.
            recognises: Returns whether (peer, incarnation) may connect; False for one that proved
                itself, on other data than a connected node of its id.
            is_past: Returns whether an incarnation runs on data that the cluster was recovered
                without; a node with that data is told so and nothing else.
            welcomes: Returns whether a node that is no peer may connect, because this one does not
                know its peers yet.
            on_stranger: Called with that node, once it has proved itself, and the address it
                reports. The node may stay if the callback has passed it to `know`.
            certificates: With these both ends of every connection prove themselves, in addition to
                the secret; None leaves the link without TLS.
            serve: Answers (peer, method, body, timeout_s); cancelled at the deadline and at stop.
            quick: Handlers by method that answer without a task of their own; see `rpc.Quick`.

        Raises:
            ConfigInvalid: The secret is empty, or an address is not host:port.
        """
        secret = secret.encode() if isinstance(secret, str) else secret
        if not secret:
            raise ConfigInvalid("clusterSecret must not be empty")
        if node_id in peers:
            raise ConfigInvalid(f"peers must not name this node, {node_id}")
        self._identity = LinkIdentity(
            node_id=node_id,
            cluster_id=cluster_id,
            incarnation=incarnation,
            secret=secret,
            address=address,
        )
        self._peers = {peer: Address.parse(text) for peer, text in peers.items()}
        self._said: dict[str, Address] = {}  # Each peer's address, as it reports it.
        self._recorded: dict[str, tuple[Address, ...]] = {}  # The same, as others report.
        self._diallers: dict[str, asyncio.Task[None]] = {}
        self._listen = (host, port)
        self._settings = settings
        self._on_raft = on_raft
        self._on_up = on_up
        self._on_down = on_down
        self._recognises = recognises
        self._is_past = is_past
        self._welcomes = welcomes
        self._on_stranger = on_stranger
        self._certificates = certificates
        self._tally = LinkTally()
        self._calls = PendingCalls(in_flight_max=settings.rpc_in_flight_max, tally=self._tally)
        self._handlers = Handlers(
            serve,
            quick=quick or {},
            in_flight_max=settings.rpc_in_flight_max,
            frame_bytes_max=settings.frame_bytes_max,
            tally=self._tally,
        )
        self._server: asyncio.Server | None = None
        self._runner: asyncio.Task[None] | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._stopping = False
        self._last_session = 0
        self._connections: set[LinkConnection] = set()
        self._unknown: dict[Inbound, None] = {}  # in order of arrival
        self._outbound: dict[str, Outbound] = {}
        self._inbound: dict[str, Inbound] = {}
        self._latest: dict[tuple[str, int], tuple[int, int]] = {}
        self._denied: dict[str, str] = {}
        self._remedies: dict[str, str] = {}
        self._up: set[str] = set()  # Reported as up, and not yet as down.
        self._wake = {peer: asyncio.Event() for peer in self._peers}
        self._idle = asyncio.Event()
        self._jitter = random.SystemRandom()

    @property
    def port(self) -> int:
        """Return the port listened on, once started."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def counters(self) -> LinkCounters:
        """Return what the link did since the start."""
        return self._tally.read(connected=sum(map(self.connected, self._peers)))

    async def start(self) -> None:
        """Listen, and begin to dial every peer.

        Raises:
            OSError: The node cannot listen on the address.
        """
        assert self._runner is None
        loop = asyncio.get_running_loop()
        host, port = self._listen
        self._server = await loop.create_server(self._accept, host, port)
        # The only task without an owner: the group inside it owns all others, and `stop` awaits it.
        self._runner = loop.create_task(self._run())
        self._runner.add_done_callback(self._ran)

    async def stop(self) -> None:
        """Close everything; afterwards no callback is called and no task or socket is left.

        Queued frames still leave if the peer takes them at once; waiting calls end with LinkLost.
        """
        self._stopping = True
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.wait([self._runner])
        self._calls.lose()
        for connection in list(self._connections):
            connection.finish()
        await self._until_idle(_FAREWELL_S)
        for connection in list(self._connections):
            connection.abort()
        await self._until_idle(_FAREWELL_S)
        if self._server is not None:
            await self._server.wait_closed()

    def send(self, peer: str, group: int, message: bytes) -> bool:
        """Queue a Raft message.

        Args:
            peer: One of the peers.
            group: At least 0.
            message: Packed: a map of short strings to plain values.

        Returns:
            False when it was dropped: not connected, queue full, or over `frame_bytes_max`.
        """
        connection = self._outbound.get(peer)
        if connection is not None and connection.send(raft_item(group, message), len(message)):
            return True
        self._tally.dropped_messages += 1
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
            peer: One of the peers.
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
        connection = self._outbound.get(peer)
        # An answer comes on the peer's own connection; without one the question would be in vain.
        if connection is None or connection.closed or peer not in self._inbound:
            raise PeerUnreachable(f"no connection with {peer}")

        if len(body) + ITEM_BYTES > self._settings.frame_bytes_max:
            raise PeerUnreachable(
                f"{method}: a request of {len(body)} bytes is over the link's "
                f"{self._settings.frame_bytes_max}; nothing was sent"
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
        for peer in self._peers.keys() - peers.keys():
            self._forget(peer)
        for peer, text in peers.items():
            found = _addresses(peer, [text])
            if not found:
                continue
            is_new = peer not in self._peers
            self._peers[peer] = found[0]
            self._recorded[peer] = _addresses(peer, (recorded or {}).get(peer, ()))
            if is_new:
                self._wake[peer] = asyncio.Event()
                self._keep(peer)

    def data_at(self, peer: str) -> int | None:
        """Return the identity of the data that a connected peer runs on."""
        connection = self._inbound.get(peer)
        if connection is None or connection.session is None:
            return None
        return data_of(connection.session.incarnation)

    def connected(self, peer: str) -> bool:
        """Return whether `send` reaches `peer` now."""
        connection = self._outbound.get(peer)
        return connection is not None and not connection.closed

    def denied_as(self, reason: HandshakeRefusal) -> list[str]:
        """Return the peers that refused this node for this reason when it last dialled."""
        return sorted(peer for peer, said in self._denied.items() if said == reason)

    def remedy(self, peer: str) -> str:
        """Return what an operator can do against the refusal of the last dial; empty if unknown."""
        return self._remedies.get(peer, "")

    # Accepting.

    def _accept(self) -> Inbound:
        return Inbound(
            Accepting(
                self._identity, _ANYBODY if self._welcomes() else self._peers, self._objection
            ),
            settings=self._settings,
            tally=self._tally,
            channel=self._channel(accepting=True),
            on_made=self._accepted,
            on_authenticated=self._authenticated,
            on_message=self._received,
            on_ended=self._inbound_ended,
        )

    def _accepted(self, connection: Inbound) -> None:
        self._track(connection)
        # The oldest goes, not the newest: otherwise strangers that only wait could keep a peer out.
        if len(self._unknown) >= self._settings.unknown_connections_max:
            oldest = next(iter(self._unknown))
            del self._unknown[oldest]
            oldest.give_up(HandshakeRefusal.CROWDED_OUT)
        self._unknown[connection] = None

    def _objection(self, peer: str, incarnation: int, session: int) -> HandshakeRefusal | None:
        if self._is_past(incarnation):
            return HandshakeRefusal.RECOVERED
        if not self._recognises(peer, incarnation):
            return HandshakeRefusal.LIVES
        latest = self._latest.get((peer, data_of(incarnation)), (0, 0))
        return HandshakeRefusal.STALE if (incarnation, session) <= latest else None

    def _authenticated(self, connection: Inbound) -> None:
        del self._unknown[connection]
        session = connection.session
        assert session is not None
        if session.peer not in self._peers and self._welcomes():
            self._on_stranger(session.peer, session.address)
        if session.peer not in self._peers:
            connection.abort()  # The peer was forgotten since its first greeting.
            return
        previous = self._inbound.get(session.peer)
        if previous is not None:
            previous.abort()
            self._calls.lose(session.peer)
        self._inbound[session.peer] = connection
        self._latest[session.peer, data_of(session.incarnation)] = (
            session.incarnation,
            session.number,
        )
        with contextlib.suppress(ConfigInvalid):
            self._said[session.peer] = Address.parse(session.address)
        # The peer is up, since it dialled: dial it without waiting.
        self._wake[session.peer].set()

    def _received(self, connection: Inbound, message: Message) -> None:
        match message:
            case RaftMessage():
                self._on_raft(connection.peer, message.group, message.message)
            case RpcAnswer() | Failure():
                self._calls.settle(connection.peer, message)
            case RpcRequest():
                self._asked(connection, message)
            case Ping():
                pass  # Any received bytes show that the peer is alive.

    def _asked(self, connection: Inbound, request: RpcRequest) -> None:
        if self._stopping or self._tasks is None:
            return

        def reply(answer: list[object], packed_bytes: int) -> None:
            # The answer must reach the process that asked, so the connection it asked on must still
            # be up.
            outbound = self._outbound.get(connection.peer)
            if connection.closed or outbound is None or not outbound.send(answer, packed_bytes):
                self._tally.dropped_answers += 1

        self._handlers.accept(connection.peer, request, tasks=self._tasks, reply=reply)

    def _inbound_ended(self, connection: Inbound) -> None:
        self._unknown.pop(connection, None)
        if self._inbound.get(connection.peer) is connection:
            del self._inbound[connection.peer]
            self._calls.lose(connection.peer)
        self._untrack(connection)

    # Dialling.

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._keep_alive())
            for peer in self._peers:
                self._keep(peer)

    def _ran(self, runner: asyncio.Task[None]) -> None:
        if not runner.cancelled() and (error := runner.exception()) is not None:
            runner.get_loop().call_exception_handler(
                {"message": "the link stopped on a bug", "exception": error, "task": runner}
            )

    def _keep(self, peer: str) -> None:
        if self._tasks is not None and not self._stopping:
            self._diallers[peer] = self._tasks.create_task(self._keep_dialled(peer))

    def _forget(self, peer: str) -> None:
        """Drop everything about a peer."""
        del self._peers[peer], self._wake[peer]
        self._said.pop(peer, None)
        self._recorded.pop(peer, None)
        self._denied.pop(peer, None)
        self._remedies.pop(peer, None)
        dialler = self._diallers.pop(peer, None)
        if dialler is not None:
            dialler.cancel()
        outbound, inbound = self._outbound.pop(peer, None), self._inbound.pop(peer, None)
        for connection in (outbound, inbound):
            if connection is not None:
                connection.abort()
        self._calls.lose(peer)
        self._say_down(peer, refused=False)

    def _say_down(self, peer: str, *, refused: bool) -> None:
        if peer in self._up:
            self._up.discard(peer)
            self._on_down(peer, refused)

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._settings.ping_ms / 1000)
            for connection in list(self._connections):
                connection.tick(self._settings.ping_ms)

    async def _keep_dialled(self, peer: str) -> None:
        """Dial `peer` for ever, and report when it comes and goes."""
        loop = asyncio.get_running_loop()
        misses = flaps = 0
        reached: Address | None = None
        while True:
            ways = self._ways(peer, reached)
            # Dial only the address where it was reached, until the peer is reported as down. A
            # refusal at another address would say nothing about its process.
            turn = 0 if peer in self._up else max(0, misses - _FIRST_DIALS)
            address = ways[turn % len(ways)]
            dialled = await self._dial(peer, address)
            if isinstance(dialled, Outbound):
                reached = address
                self._say_down(peer, refused=False)
                born = loop.time()
                self._outbound[peer] = dialled
                log.info("link up", extra={"peer": peer})
                self._up.add(peer)
                self._on_up(peer)
                await dialled.lost
                del self._outbound[peer]
                log.info("link down", extra={"peer": peer})
                misses = 0
                lived_ms = (loop.time() - born) * 1000
                flaps = flaps + 1 if lived_ms < self._settings.redial_ms_max else 0
                if flaps > _FLAPS_MAX:
                    await asyncio.sleep(self._pause_s(flaps - _FLAPS_MAX))
                continue
            misses += 1
            if peer in self._up and dialled is _Missed.BROKEN and misses <= _HASTY_DIALS:
                await asyncio.sleep(_HASTY_PAUSE_S)
                continue
            self._say_down(peer, refused=dialled is _Missed.REFUSED)
            await self._pause(peer, misses)

    def _ways(self, peer: str, reached: Address | None) -> list[Address]:
        """Return the addresses at which to dial a peer, in order, others' reports included."""
        ways = [reached, self._peers[peer], self._said.get(peer), *self._recorded.get(peer, ())]
        return list(dict.fromkeys(way for way in ways if way is not None))

    async def _dial(self, peer: str, address: Address) -> Outbound | _Missed:
        """Make one attempt, bounded by the dial timeout and the handshake timeout."""
        self._last_session = max(self._last_session + 1, time.monotonic_ns())
        session = self._last_session

        def connection() -> Outbound:
            return Outbound(
                Dialling(self._identity, peer, session=session),
                peer=peer,
                settings=self._settings,
                tally=self._tally,
                channel=self._channel(accepting=False),
                on_made=self._track,
                on_ended=self._untrack,
            )

        try:
            async with asyncio.timeout(self._settings.dial_timeout_ms / 1000):
                dialled = await address.connect(connection)
        except ConnectionRefusedError:
            return _Missed.REFUSED
        except OSError:
            return _Missed.UNREACHABLE
        try:
            is_peer = await dialled.authenticated
        except asyncio.CancelledError:
            dialled.abort()
            raise
        self._denied[peer] = dialled.denied
        self._remedies[peer] = dialled.remedy
        known = dialled.session
        if is_peer and known is not None and self._is_past(known.incarnation):
            dialled.abort()
            return _Missed.BROKEN
        return dialled if is_peer else _Missed.BROKEN

    async def _pause(self, peer: str, misses: int) -> None:
        """Wait before the next attempt, or until the peer has dialled this node."""
        wake = self._wake[peer]
        wake.clear()
        try:
            async with asyncio.timeout(self._pause_s(misses)):
                await wake.wait()
        except TimeoutError:
            return

    def _pause_s(self, misses: int) -> float:
        """Return the next pause: twice as long after each miss, and half of it random."""
        settings = self._settings
        # 16 doublings exceed every bound; the cap keeps the number small.
        pause_ms = min(settings.redial_ms_max, settings.redial_ms << min(misses - 1, 16))
        return pause_ms * self._jitter.uniform(0.5, 1) / 1000

    # Bookkeeping.

    def _channel(self, *, accepting: bool) -> Channel | None:
        if self._certificates is None:
            return None
        contexts = self._certificates.current
        context = contexts.accepting if accepting else contexts.dialling
        return Channel(context, accepting=accepting)

    def _track(self, connection: LinkConnection) -> None:
        self._connections.add(connection)
        self._idle.clear()
        if self._stopping:
            connection.abort()

    def _untrack(self, connection: LinkConnection) -> None:
        self._connections.discard(connection)
        if isinstance(connection, Outbound) and connection.session is not None:
            self._calls.lose(connection.peer)
        if not self._connections:
            self._idle.set()

    async def _until_idle(self, timeout_s: float) -> None:
        if self._connections:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._idle.wait()
            except TimeoutError:
                return


def _addresses(peer: str, texts: Iterable[str]) -> tuple[Address, ...]:
    """Return the addresses in these texts; others are logged and left out."""
    found = []
    for text in texts:
        try:
            found.append(Address.parse(text))
        except ConfigInvalid as error:
            log.warning("a peer without an address", extra={"peer": peer, "error": str(error)})
    return tuple(found)
