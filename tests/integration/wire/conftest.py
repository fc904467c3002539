"""Fixtures for the link: nodes on loopback, a wire that tampers, and a handmade peer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

import pytest

from codeq_cluster.settings import LinkSettings
from codeq_cluster.testing.ports import free_ports
from codeq_cluster.wire import Mesh
from codeq_cluster.wire.certificates import Certificates, LinkContexts
from codeq_cluster.wire.frames import FrameReader, FrameWriter, plain_frame
from codeq_cluster.wire.handshake import Dialling, LinkIdentity, LinkSession
from codeq_cluster.wire.messages import pack, unpack
from codeq_cluster.wire.rpc import Quick

SECRET = b"the cluster's secret"

DEADLINE_S = 60.0

# Ten times faster than in production, so that a fault shows soon. Times that a busy machine could
# exceed are longer. Silence is counted in turns of the loop.
SETTINGS = LinkSettings(
    frame_bytes_max=2**20,
    queue_bytes_max=2**21,
    handshake_timeout_ms=3000,
    dial_timeout_ms=3000,
    redial_ms=10,
    redial_ms_max=100,
    ping_ms=50,
    silence_ms_max=250,
    unknown_connections_max=4,
)


async def eventually(claim: Callable[[], object]) -> None:
    """Wait until the condition holds; fail at the deadline."""
    async with asyncio.timeout(DEADLINE_S):
        while not claim():  # noqa: ASYNC110
            # Poll, because no socket event shows that the other side has noticed.
            await asyncio.sleep(0.001)


async def refuse_calls(peer: str, method: str, body: object, timeout_s: float) -> object:
    """Refuse every call."""
    raise AssertionError((peer, method, body, timeout_s))


@dataclass
class Node:
    """A mesh and its owner, which records events and answers as its fields say."""

    id: str
    port: int
    peers: dict[str, str] = field(default_factory=dict)
    settings: LinkSettings = SETTINGS
    cluster_id: str = "c"
    secret: bytes = SECRET
    incarnation: int = 1
    serve: Callable[[str, str, object, float], Awaitable[object]] = refuse_calls
    recognises: Callable[[str, int], bool] = lambda peer, incarnation: True
    is_past: Callable[[int], bool] = lambda incarnation: False
    welcomes: Callable[[], bool] = lambda: False
    on_stranger: Callable[[str, str], None] = lambda peer, address: None
    certificates: Certificates[LinkContexts] | None = None
    received: list[tuple[str, int, dict[str, object]]] = field(default_factory=list)
    events: list[tuple[str, ...]] = field(default_factory=list)
    mesh: Mesh | None = None
    quick: Mapping[str, Quick] = field(default_factory=dict)

    async def start(self) -> Mesh:
        """Start a process of this node."""
        identity = LinkIdentity(
            node_id=self.id,
            cluster_id=self.cluster_id,
            incarnation=self.incarnation,
            secret=self.secret,
            address=self.address,
        )
        self.mesh = Mesh(
            identity,
            peers=self.peers,
            host="127.0.0.1",
            port=self.port,
            settings=self.settings,
            certificates=self.certificates,
        )
        await self.mesh.start(self, self)
        return self.mesh

    @property
    def callers(self) -> set[str]:
        """The ids of peers whose connections are accepted."""
        return {f"n{k}" for k in range(10) if self.running.data_at(f"n{k}") is not None}

    def on_raft(self, peer: str, group: int, message: bytes) -> None:
        """Record it."""
        self.received.append((peer, group, unpack(message)))

    def on_up(self, peer: str) -> None:
        """Record it."""
        self.events.append(("up", peer))

    def on_down(self, peer: str, *, refused: bool) -> None:
        """Record it."""
        self.events.append(("down", peer, "refused" if refused else "lost"))

    async def on_call(self, peer: str, method: str, body: object, timeout_s: float) -> object:
        """Serve it."""
        return await self.serve(peer, method, body, timeout_s)

    @property
    def running(self) -> Mesh:
        """Return the mesh of a started node."""
        assert self.mesh is not None
        return self.mesh

    async def stop(self) -> None:
        """Stop the process, if there is one."""
        if self.mesh is not None:
            await self.mesh.stop()
            self.mesh = None

    @property
    def address(self) -> str:
        """Return the address at which it is dialled."""
        return f"127.0.0.1:{self.port}"


class Nodes:
    """Makes nodes that know each other, and stops them at the end."""

    def __init__(self) -> None:
        self.all: list[Node] = []

    def make(self, *ids: str, settings: LinkSettings = SETTINGS) -> list[Node]:
        """Return nodes that are not started, each a peer of all others."""
        nodes = [Node(id=node_id, port=free_ports(1)[0], settings=settings) for node_id in ids]
        for node in nodes:
            node.peers = {peer.id: peer.address for peer in nodes if peer is not node}
        self.all += nodes
        return nodes

    async def started(self, *ids: str, settings: LinkSettings = SETTINGS) -> list[Node]:
        """Return started nodes, each connected with all others."""
        nodes = self.make(*ids, settings=settings)
        for node in nodes:
            await node.start()
        await joined(*nodes)
        return nodes


async def echo(peer: str, method: str, body: object, timeout_s: float) -> object:
    """Answer every call with its body."""
    return body


async def talk_until_one_leaves(one: Node, two: Node) -> None:
    """Start both nodes, exchange messages and a call, and stop the second; the first notices."""
    one.serve = two.serve = echo
    await one.start()
    await two.start()
    await joined(one, two)
    for number in range(100):
        assert one.running.send("n2", 0, pack({"number": number}))
    assert b"x" == await one.running.call("n2", "m", b"x", timeout_s=5)
    assert 100 == len(two.received)
    await two.stop()
    await eventually(lambda: ("down", "n2", "refused") in one.events)


async def joined(*nodes: Node) -> None:
    """Wait until calls work between all nodes, both ways."""
    await eventually(
        lambda: all(
            set(node.peers) == node.callers
            and all(node.running.connected(peer) for peer in node.peers)
            for node in nodes
        )
    )


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    """Yield a maker of nodes that are stopped when the test ends, leaving no task behind."""
    made = Nodes()
    yield made
    for node in made.all:
        await node.stop()
    # Fixtures of one test run one after another, so only this task is left.
    await eventually(lambda: len(asyncio.all_tasks()) == 1)


class Wire:
    """A cable to one address: records, cuts, freezes and tampers with the dialler's bytes.

    Attributes:
        said: The dialler's bytes, one entry per connection.
        frozen: All bytes are read and dropped.
        flows: While it is not set, nothing more is read.
        slams: How many further connections are closed as soon as they open.
    """

    def __init__(self, target: int) -> None:
        self.port = free_ports(1)[0]
        self.said: list[bytearray] = []
        self.frozen = False
        self.slams = 0
        self._target = target
        self.flows = asyncio.Event()
        self.flows.set()
        self._ends: set[asyncio.StreamWriter] = set()
        self._into: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        """Start the cable."""
        self._server = await asyncio.start_server(self._join, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop it."""
        self._server.close()
        self.cut()
        await eventually(lambda: not self._ends)

    def cut(self) -> None:
        """Break every connection."""
        for end in self._ends:
            end.transport.abort()
        self.flows.set()

    def say(self, data: bytes) -> None:
        """Add bytes to the latest connection, after the dialler's own."""
        self._into[-1].write(data)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.slams:
            self.slams -= 1
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        record = bytearray()
        self.said.append(record)
        self._into.append(far_writer)
        ends = {writer, far_writer}
        self._ends |= ends
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, far_writer, record))
                pumps.create_task(self._pump(far_reader, writer, bytearray()))
        except* OSError:
            pass
        finally:
            for end in ends:
                end.transport.abort()
            self._ends -= ends

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, record: bytearray
    ) -> None:
        while data := await source.read(2**16):
            await self.flows.wait()
            record += data
            if not self.frozen:
                sink.write(data)
                await sink.drain()
        raise ConnectionResetError


class HandMadePeer:
    """A peer that sends the test's bytes, after an honest handshake or none."""

    def __init__(
        self,
        node: Node,
        *,
        node_id: str,
        session: int,
        incarnation: int = 1,
    ) -> None:
        self._node = node
        self._reader = FrameReader()
        self._dialling = Dialling(
            LinkIdentity(
                node_id=node_id,
                cluster_id="c",
                incarnation=incarnation,
                secret=SECRET,
            ),
            node.id,
            session=session,
        )
        self._writer: FrameWriter | None = None
        self.session: LinkSession | None = None

    async def connect(self) -> HandMadePeer:
        """Open the connection, send nothing yet."""
        self.source, self.sink = await asyncio.open_connection("127.0.0.1", self._node.port)
        return self

    async def prove(self) -> bytes:
        """Do the handshake up to the proof; return the frame that would finish it."""
        self.sink.write(plain_frame(self._dialling.hello()))
        answer = self._dialling.receive(await self._greeting())
        assert isinstance(answer, bytes)
        return plain_frame(answer)

    async def join(self, proof: bytes | None = None) -> HandMadePeer:
        """Become a peer."""
        self.sink.write(proof or await self.prove())
        session = self._dialling.receive(await self._greeting())
        assert isinstance(session, LinkSession)
        self.session = session
        self._writer = FrameWriter(session.send_key)
        return self

    def frame(self, body: bytes) -> bytes:
        """Return the next sealed frame."""
        assert self._writer is not None
        return self._writer.seal(body) + body

    async def ended(self) -> None:
        """Wait until the other side has closed the connection, after any frames."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                while await self.source.read(2**16):
                    pass
            except ConnectionError:
                return

    async def close(self) -> None:
        """Close this side."""
        self.sink.transport.abort()
        await eventually(self.sink.transport.is_closing)

    async def _greeting(self) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            while (body := self._reader.next()) is None:
                data = await self.source.read(2**16)
                assert data, "the connection was closed"
                self._reader.feed(data)
            return body


Join = Callable[..., Awaitable[HandMadePeer]]


@pytest.fixture
async def connect() -> AsyncIterator[Join]:
    """Return a maker of handmade connections that are closed when the test ends."""
    made: list[HandMadePeer] = []

    async def connect(
        node: Node, *, node_id: str = "n1", session: int = 1, incarnation: int = 1
    ) -> HandMadePeer:
        peer = HandMadePeer(node, node_id=node_id, session=session, incarnation=incarnation)
        made.append(await peer.connect())
        return peer

    yield connect
    for peer in made:
        await peer.close()
