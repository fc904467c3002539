"""Acceptor: the connections that peers dial: who may connect, and which one of a peer counts."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final

from codeq_cluster.codec.membership import data_of
from codeq_cluster.wire.channel import Channel
from codeq_cluster.wire.connection import Inbound
from codeq_cluster.wire.handler import Admission
from codeq_cluster.wire.handshake import Accepting
from codeq_cluster.wire.link import Link
from codeq_cluster.wire.messages import Message
from codeq_cluster.wire.refusals import HandshakeRefusal
from codeq_cluster.wire.unproved import Unproved


class _Anybody(Container[str]):
    """A container of every name; each node must still prove itself."""

    def __contains__(self, name: object) -> bool:
        return True


_ANYBODY: Final = _Anybody()


class Acceptor:
    """Accepts connections.

    Args:
        on_peer: Called with a peer that has connected.
        on_lost: Called with a peer whose connection has ended or was replaced.
        on_message: Called with every message of a peer's connection.
    """

    def __init__(
        self,
        link: Link,
        *,
        admission: Admission,
        on_peer: Callable[[str], None],
        on_lost: Callable[[str], None],
        on_message: Callable[[Inbound, Message], None],
    ) -> None:
        self._link = link
        self._admission = admission
        self._on_peer = on_peer
        self._on_lost = on_lost
        self._on_message = on_message
        self._unproved = Unproved(link.settings.unknown_connections_max, link.book.has_member_at)
        self._latest: dict[tuple[str, int], tuple[int, int]] = {}

    def accept(self) -> Inbound:
        """Return the protocol of a connection that is coming in; called by the loop's server."""
        certificates = self._link.certificates
        peers = _ANYBODY if self._admission.welcomes() else self._link.book
        return Inbound(
            Accepting(self._link.identity, peers, self._objection),
            settings=self._link.settings,
            counters=self._link.counters,
            channel=None
            if certificates is None
            else Channel(certificates.current.accepting, accepting=True),
            on_made=self._accepted,
            on_authenticated=self._authenticated,
            on_message=self._on_message,
            on_ended=self._ended,
        )

    def _accepted(self, connection: Inbound) -> None:
        self._link.open.add(connection)
        self._unproved.add(connection)

    def _objection(self, peer: str, incarnation: int, session: int) -> HandshakeRefusal | None:
        if self._admission.is_past(incarnation):
            return HandshakeRefusal.RECOVERED
        if not self._admission.recognises(peer, incarnation):
            return HandshakeRefusal.LIVES
        latest = self._latest.get((peer, data_of(incarnation)), (0, 0))
        return HandshakeRefusal.STALE if (incarnation, session) <= latest else None

    def _authenticated(self, connection: Inbound) -> None:
        self._unproved.discard(connection)
        session = connection.session
        assert session is not None
        peer = session.peer
        if peer not in self._link.book and self._admission.welcomes():
            self._admission.on_stranger(peer, session.address)
        if peer not in self._link.book:
            connection.abort()  # The peer was forgotten since its first greeting.
            return
        previous = self._link.inbound.get(peer)
        if previous is not None:
            previous.abort()
            self._on_lost(peer)
        self._link.inbound[peer] = connection
        self._latest[peer, data_of(session.incarnation)] = (session.incarnation, session.number)
        self._link.book.said(peer, session.address)
        self._link.book.seen(peer, connection.address)
        self._on_peer(peer)

    def _ended(self, connection: Inbound) -> None:
        self._unproved.discard(connection)
        if self._link.inbound.get(connection.peer) is connection:
            del self._link.inbound[connection.peer]
            self._on_lost(connection.peer)
        self._link.open.discard(connection)
