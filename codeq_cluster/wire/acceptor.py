"""Acceptor: the connections that peers dial: who may connect, and which one of a peer counts."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final

from codeq_cluster.codec.membership import data_of
from codeq_cluster.settings import LinkSettings
from codeq_cluster.wire.address_book import AddressBook
from codeq_cluster.wire.certificates import Certificates, LinkContexts
from codeq_cluster.wire.channel import Channel
from codeq_cluster.wire.connection import Inbound
from codeq_cluster.wire.counters import LinkTally
from codeq_cluster.wire.handler import Admission
from codeq_cluster.wire.handshake import Accepting, LinkIdentity
from codeq_cluster.wire.messages import Message
from codeq_cluster.wire.open_connections import OpenConnections
from codeq_cluster.wire.refusals import HandshakeRefusal


class _Anybody(Container[str]):
    """A container of every name; each node must still prove itself."""

    def __contains__(self, name: object) -> bool:
        return True


_ANYBODY: Final = _Anybody()


class Acceptor:
    """Accepts connections.

    Args:
        identity: This node.
        book: The peers.
        admission: Who may connect.
        inbound: By peer; the connection on which it sends is kept in it while it stands.
        open_connections: Every connection is added.
        settings: Bounds.
        certificates: For TLS; None for none.
        tally: Counts.
        on_peer: Called with a peer that has connected.
        on_lost: Called with a peer whose connection has ended or was replaced.
        on_message: Called with every message of a peer's connection.
    """

    def __init__(
        self,
        identity: LinkIdentity,
        *,
        book: AddressBook,
        admission: Admission,
        inbound: dict[str, Inbound],
        open_connections: OpenConnections,
        settings: LinkSettings,
        certificates: Certificates[LinkContexts] | None,
        tally: LinkTally,
        on_peer: Callable[[str], None],
        on_lost: Callable[[str], None],
        on_message: Callable[[Inbound, Message], None],
    ) -> None:
        self._identity = identity
        self._book = book
        self._admission = admission
        self._inbound = inbound
        self._open = open_connections
        self._settings = settings
        self._certificates = certificates
        self._tally = tally
        self._on_peer = on_peer
        self._on_lost = on_lost
        self._on_message = on_message
        self._unknown: dict[Inbound, None] = {}  # In order of arrival.
        self._latest: dict[tuple[str, int], tuple[int, int]] = {}

    def accept(self) -> Inbound:
        """Return the protocol of a connection that is coming in; called by the loop's server."""
        certificates = self._certificates
        peers = _ANYBODY if self._admission.welcomes() else self._book
        return Inbound(
            Accepting(self._identity, peers, self._objection),
            settings=self._settings,
            tally=self._tally,
            channel=None
            if certificates is None
            else Channel(certificates.current.accepting, accepting=True),
            on_made=self._accepted,
            on_authenticated=self._authenticated,
            on_message=self._on_message,
            on_ended=self._ended,
        )

    def _accepted(self, connection: Inbound) -> None:
        self._open.add(connection)
        # The oldest goes, not the newest: otherwise strangers that only wait could keep a peer out.
        if len(self._unknown) >= self._settings.unknown_connections_max:
            oldest = next(iter(self._unknown))
            del self._unknown[oldest]
            oldest.give_up(HandshakeRefusal.CROWDED_OUT)
        self._unknown[connection] = None

    def _objection(self, peer: str, incarnation: int, session: int) -> HandshakeRefusal | None:
        if self._admission.is_past(incarnation):
            return HandshakeRefusal.RECOVERED
        if not self._admission.recognises(peer, incarnation):
            return HandshakeRefusal.LIVES
        latest = self._latest.get((peer, data_of(incarnation)), (0, 0))
        return HandshakeRefusal.STALE if (incarnation, session) <= latest else None

    def _authenticated(self, connection: Inbound) -> None:
        del self._unknown[connection]
        session = connection.session
        assert session is not None
        peer = session.peer
        if peer not in self._book and self._admission.welcomes():
            self._admission.on_stranger(peer, session.address)
        if peer not in self._book:
            connection.abort()  # The peer was forgotten since its first greeting.
            return
        previous = self._inbound.get(peer)
        if previous is not None:
            previous.abort()
            self._on_lost(peer)
        self._inbound[peer] = connection
        self._latest[peer, data_of(session.incarnation)] = (session.incarnation, session.number)
        self._book.said(peer, session.address)
        self._on_peer(peer)

    def _ended(self, connection: Inbound) -> None:
        self._unknown.pop(connection, None)
        if self._inbound.get(connection.peer) is connection:
            del self._inbound[connection.peer]
            self._on_lost(connection.peer)
        self._open.discard(connection)
