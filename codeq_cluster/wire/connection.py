"""Connections: one TCP connection each, from its first greeting to its last frame.

The node that dialled sends everything on it: Raft messages, RPC requests and answers. The node that
accepted sends only pings, so that both sides notice a silent cut.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import cast

from codeq_cluster.loop_pass import LoopPass
from codeq_cluster.settings import LinkSettings
from codeq_cluster.wire.channel import Channel, refusal_of
from codeq_cluster.wire.counters import LinkCounters, remedy
from codeq_cluster.wire.frames import FrameReader, FrameWriter, plain_frame
from codeq_cluster.wire.handshake import Accepting, Dialling, LinkSession
from codeq_cluster.wire.messages import ITEM_BYTES, Message, bundle, parse_bundle
from codeq_cluster.wire.refusals import (
    BadFrame,
    FrameRefusedError,
    HandshakeRefusal,
    HandshakeRefusedError,
)


class LinkConnection(asyncio.Protocol, ABC):
    """The common part of both ends of a connection.

    Attributes:
        closed: Nothing is delivered or sent any more; the socket may live a little longer.
        session: Set once both sides have proved themselves.
        peer: Id of the other node, dialled or proved; empty before.
        address: Host of the other side, without its port.
    """

    def __init__(
        self, *, peer: str, settings: LinkSettings, counters: LinkCounters, channel: Channel | None
    ) -> None:
        self.closed = False
        self.session: LinkSession | None = None
        self.peer = peer
        self.address = ""
        self._settings = settings
        self._counters = counters
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._pass = LoopPass.of(self._loop)
        self._reader = FrameReader()
        self._writer: FrameWriter | None = None
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._queue: list[tuple[list[object], int]] = []
        self._queued_bytes = 0
        self._heard = True
        self._spoke = False
        self._silent_ms = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over the socket; called by the loop."""
        self._transport = cast("asyncio.Transport", transport)
        address = transport.get_extra_info("peername")
        self.address = str(address[0]) if address else ""
        endpoint = transport.get_extra_info("socket")
        endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._deadline = self._loop.call_later(
            self._settings.handshake_timeout_ms / 1000, self.give_up, HandshakeRefusal.TIMEOUT
        )

    def data_received(self, data: bytes) -> None:
        """Deliver every complete frame; called by the loop.

        An exception from a receiver of messages is a bug. It closes the connection and reaches the
        loop's exception handler.
        """
        if self.closed:
            return
        self._heard = True
        reader = self._reader
        try:
            reader.feed(data if self._channel is None else self._unsealed(self._channel, data))
            # A frame may replace or close this very connection, so the check comes before each one.
            while not self.closed and (body := reader.next()) is not None:
                if self.session is None:
                    self._greeted(body)
                else:
                    self._deliver_all(body)
        except FrameRefusedError as refused:
            self._counters.reject(refused.reason, address=self.address, peer=self.peer)
            self.abort()
        except HandshakeRefusedError as refused:
            self._counters.refuse(
                refused.reason,
                address=self.address,
                peer=self.peer,
                said=refused.said,
                detail=refused.detail,
            )
            self._refuse(refused.reason)
        except BaseException:
            # A bug of the receiver: no message after the one it failed on may be delivered.
            self.abort()
            raise

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the socket; called by the loop once."""
        del exc  # The kind of failure says nothing about which bytes arrived.
        if not self.closed and self._reader.pending_bytes:
            self._counters.reject(BadFrame.TRUNCATED, address=self.address, peer=self.peer)
        self._close()
        self._ended()

    def send(self, item: list[object], packed_bytes: int = 0) -> bool:
        """Queue one item; one pass of the loop sends its items in one write, mostly in one frame.

        Args:
            item: The caller must not change it any more.
            packed_bytes: Size of its packed part.

        Returns:
            False when nothing was sent: the connection is closed, its queue is full, or the item
                fits no frame.
        """
        if self.closed or self._writer is None or self._transport is None:
            return False
        size = packed_bytes + ITEM_BYTES
        waiting = self._queued_bytes + self._transport.get_write_buffer_size()
        if waiting + size > self._settings.queue_bytes_max or size > self._settings.frame_bytes_max:
            return False
        if not self._queue:
            self._pass.last(self._flush)
        self._queue.append((item, size))
        self._queued_bytes += size
        return True

    def tick(self, elapsed_ms: int) -> None:
        """Ping if nothing was sent, and give up if nothing was heard, since the last tick.

        This counts ticks instead of reading the clock, so that a delayed loop does not blame its
        peers.
        """
        if self.session is None or self.closed:
            return
        if not self._spoke:
            self._write_frames([bundle([])])
        self._spoke = False
        self._silent_ms = 0 if self._heard else self._silent_ms + elapsed_ms
        self._heard = False
        if self._silent_ms >= self._settings.silence_ms_max:
            self._counters.silent_connections += 1
            self.abort()

    def give_up(self, reason: HandshakeRefusal) -> None:
        """Close a connection that has not authenticated, and count the reason."""
        if not self.closed:
            self._counters.refuse(reason, address=self.address, peer=self.peer)
            self.abort()

    def abort(self) -> None:
        """Close at once; queued items are lost."""
        self._close()
        if self._transport is not None:
            self._transport.abort()

    def finish(self) -> None:
        """Deliver nothing more, and close once the queued items have left."""
        if not self.closed and self._queue:
            self._flush()
        self._close()
        if self._transport is not None:
            self._transport.close()

    @abstractmethod
    def _opened(self) -> None: ...

    @abstractmethod
    def _greeted(self, body: bytes) -> None: ...

    @abstractmethod
    def _deliver(self, message: Message) -> None: ...

    @abstractmethod
    def _refuse(self, reason: HandshakeRefusal) -> None: ...

    @abstractmethod
    def _ended(self) -> None: ...

    def _greet(self, body: bytes) -> None:
        self._write(plain_frame(body))

    def _secure(self, session: LinkSession) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._reader.secure(session.receive_key, frame_bytes_max=self._settings.frame_bytes_max)
        self._writer = FrameWriter(session.send_key)
        self.session = session
        self.peer = session.peer

    def _flush(self) -> None:
        if self.closed or self._transport is None:
            return
        queue, self._queue = self._queue, []
        self._queued_bytes = 0
        if queue:
            self._write_frames([bundle(items) for items in self._divided(queue)])

    def _divided(self, queue: list[tuple[list[object], int]]) -> Iterator[list[list[object]]]:
        """Yield the items in order, as many at a time as a frame carries."""
        items: list[list[object]] = []
        size = 0
        for item, item_bytes in queue:
            if items and size + item_bytes > self._settings.frame_bytes_max:
                yield items
                items, size = [], 0
            items.append(item)
            size += item_bytes
        yield items

    def _write_frames(self, bodies: Iterable[bytes]) -> None:
        assert self._writer is not None, "nothing is said before both sides have proved themselves"
        parts: list[bytes] = []
        for body in bodies:
            parts += (self._writer.seal(body), body)
            self._counters.frames_out += 1
        self._spoke = True
        self._write(b"".join(parts))

    def _deliver_all(self, body: bytes) -> None:
        for message in parse_bundle(body):
            if self.closed:
                return  # A message may close this very connection.
            self._deliver(message)

    def _write(self, said: bytes) -> None:
        self._write_raw(said if self._channel is None else self._channel.seal(said))

    def _write_raw(self, data: bytes) -> None:
        assert self._transport is not None
        if data:
            self._transport.write(data)

    def _unsealed(self, channel: Channel, data: bytes) -> bytes:
        was_established = channel.established
        try:
            said = channel.open(data)
        except ssl.SSLError as error:
            if self.session is not None:
                raise FrameRefusedError(BadFrame.MAC) from error
            raise HandshakeRefusedError(refusal_of(error)) from error
        finally:
            # An alert tells the other side the reason.
            self._write_raw(channel.unsent())
        if channel.established and not was_established:
            self._opened()
        return said

    def _close(self) -> None:
        self.closed = True
        self._queue.clear()
        self._queued_bytes = 0
        if self._deadline is not None:
            self._deadline.cancel()


class Outbound(LinkConnection):
    """A connection this node dialled: it carries everything this node sends to one peer.

    Attributes:
        authenticated: Done with True once both sides have proved themselves, or with False when the
            connection ended before.
        lost: Done when the connection has ended.
        denied: The peer's unproved reason for refusing this node; empty when it did not refuse.
        remedy: What an operator can do about a refusal by either side; empty if unknown.
    """

    def __init__(
        self,
        dialling: Dialling,
        *,
        peer: str,
        settings: LinkSettings,
        counters: LinkCounters,
        channel: Channel | None,
        on_made: Callable[[Outbound], None],
        on_ended: Callable[[Outbound], None],
    ) -> None:
        super().__init__(peer=peer, settings=settings, counters=counters, channel=channel)
        self._dialling = dialling
        self._on_made = on_made
        self._on_ended = on_ended
        self.authenticated: asyncio.Future[bool] = self._loop.create_future()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self.denied = ""
        self.remedy = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over the socket and greet; called by the loop."""
        super().connection_made(transport)
        self._on_made(self)
        if self._channel is None:
            self._opened()
        else:
            self._write_raw(self._channel.start())

    def _opened(self) -> None:
        if self._channel is not None and self.peer not in self._channel.names:
            raise HandshakeRefusedError(HandshakeRefusal.NAME)
        self._greet(self._dialling.hello())

    def _greeted(self, body: bytes) -> None:
        try:
            answer = self._dialling.receive(body)
        except HandshakeRefusedError as refused:
            self.denied = refused.said
            self.remedy = remedy(refused.reason, refused.said)
            raise
        if isinstance(answer, bytes):
            self._greet(answer)
            return
        self._secure(answer)
        if not self.authenticated.done():
            self.authenticated.set_result(True)

    def _deliver(self, message: Message) -> None:
        del message  # The accepting side sends only signs of life.
        raise FrameRefusedError(BadFrame.SCHEMA)

    def _refuse(self, reason: HandshakeRefusal) -> None:
        del reason
        self.finish()

    def _ended(self) -> None:
        if not self.authenticated.done():
            self.authenticated.set_result(False)
        if not self.lost.done():
            self.lost.set_result(None)
        self._on_ended(self)


class Inbound(LinkConnection):
    """A connection this node accepted: it carries everything one peer sends to it."""

    def __init__(
        self,
        accepting: Accepting,
        *,
        settings: LinkSettings,
        counters: LinkCounters,
        channel: Channel | None,
        on_made: Callable[[Inbound], None],
        on_authenticated: Callable[[Inbound], None],
        on_message: Callable[[Inbound, Message], None],
        on_ended: Callable[[Inbound], None],
    ) -> None:
        super().__init__(peer="", settings=settings, counters=counters, channel=channel)
        self._accepting = accepting
        self._on_made = on_made
        self._on_authenticated = on_authenticated
        self._on_message = on_message
        self._on_ended = on_ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over the socket and wait for a greeting; called by the loop."""
        super().connection_made(transport)
        self._on_made(self)

    def _opened(self) -> None:
        if self._channel is not None:
            self._accepting.expect(self._channel.names)

    def _greeted(self, body: bytes) -> None:
        answer, session = self._accepting.receive(body)
        self._greet(answer)
        if session is not None:
            self._secure(session)
            self._on_authenticated(self)

    def _deliver(self, message: Message) -> None:
        self._on_message(self, message)

    def _refuse(self, reason: HandshakeRefusal) -> None:
        if self._channel is None or self._channel.established:
            self._greet(self._accepting.refusal(reason))
        self.finish()

    def _ended(self) -> None:
        self._on_ended(self)
