"""Handshake: two nodes prove to each other that they hold the cluster's secret, without saying it.

    dialling                                        accepting
    hello(version, cluster, from, to, nonce, incarnation, session, address)  ->
                                                <-  challenge(nonce)
    proof(HMAC of everything said, role)        ->
                                                <-  welcome(HMAC of everything said, other role)

Both proofs cover both fresh nonces, so none can be replayed, and a role, so none can be reflected.
The side that is asked proves itself last, so a stranger gets nothing to guess the secret with.
Each direction of the connection then has a key of its own. Nothing here knows sockets or time.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Final

import cbor2

from codeq_cluster.wire.frames import decode_greeting
from codeq_cluster.wire.refusals import (
    BadFrame,
    FrameRefusedError,
    HandshakeRefusal,
    HandshakeRefusedError,
)

VERSION: Final = 1
_MAGIC: Final = "codeq-link"
_NONCE_BYTES: Final = 32
_PROOF_BYTES: Final = 32
_NAME_CHARACTERS_MAX: Final = 256
_NUMBER_MAX: Final = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this node is.

    Attributes:
        incarnation: Grows with every start of the node.
        address: Where its peers reach it, host:port; empty leaves it to what they know.
    """

    node_id: str
    cluster_id: str
    incarnation: int
    secret: bytes = field(repr=False)
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What both sides of an authenticated connection know.

    Attributes:
        peer: Id of the node at the other end, proved.
        incarnation: The peer's.
        address: Where the peer says that it is reached; empty when it does not.
        number: Grows with every connection of the dialling side's incarnation.
        send_key: 32 bytes; seals what this side says.
        receive_key: 32 bytes; seals what the other side says.
    """

    peer: str
    incarnation: int
    number: int
    address: str
    send_key: bytes = field(repr=False)
    receive_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Transcript:
    """Everything both proofs and both keys depend on."""

    cluster_id: str
    dialler: str
    acceptor: str
    dialler_nonce: bytes
    acceptor_nonce: bytes
    incarnation: int
    session: int
    address: str

    def sign(self, secret: bytes, role: str, incarnation: int = 0) -> bytes:
        text = cbor2.dumps(
            [
                _MAGIC,
                VERSION,
                role,
                self.cluster_id,
                self.dialler,
                self.acceptor,
                self.dialler_nonce,
                self.acceptor_nonce,
                self.incarnation,
                self.session,
                self.address,
                incarnation,
            ]
        )
        return hmac.digest(secret, text, "sha256")


class Dialling:
    """The side that opened the connection."""

    __slots__ = ("_identity", "_nonce", "_peer", "_session", "_transcript")

    def __init__(self, identity: Identity, peer: str, *, session: int) -> None:
        """Begin with `peer`; `session` grows with every connection of this incarnation."""
        self._identity = identity
        self._peer = peer
        self._session = session
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._transcript: _Transcript | None = None

    def hello(self) -> bytes:
        """Return the first greeting."""
        me = self._identity
        return cbor2.dumps(
            [
                _MAGIC,
                VERSION,
                me.cluster_id,
                me.node_id,
                self._peer,
                self._nonce,
                me.incarnation,
                self._session,
                me.address,
            ]
        )

    def receive(self, body: bytes) -> bytes | Session:
        """Take the next greeting; return the one to answer with, or the session when it is done.

        Raises:
            FrameRefusedError: It is no greeting that may come now.
            HandshakeRefusedError: The other side refused, or could not prove itself.
        """
        match decode_greeting(body):
            case ["refused", str(said)]:
                raise HandshakeRefusedError(HandshakeRefusal.REFUSED_BY_PEER, said=_known(said))
            case ["challenge", bytes(nonce)] if (
                len(nonce) == _NONCE_BYTES and self._transcript is None
            ):
                return self._prove(nonce)
            case ["welcome", int(incarnation), bytes(proof)] if (
                len(proof) == _PROOF_BYTES
                and _is_number(incarnation)
                and self._transcript is not None
            ):
                return self._conclude(self._transcript, incarnation, proof)
            case _:
                raise FrameRefusedError(BadFrame.SCHEMA)

    def _prove(self, nonce: bytes) -> bytes:
        me = self._identity
        self._transcript = _Transcript(
            cluster_id=me.cluster_id,
            dialler=me.node_id,
            acceptor=self._peer,
            dialler_nonce=self._nonce,
            acceptor_nonce=nonce,
            incarnation=me.incarnation,
            session=self._session,
            address=me.address,
        )
        return cbor2.dumps(["proof", self._transcript.sign(me.secret, "dialler")])

    def _conclude(self, transcript: _Transcript, incarnation: int, proof: bytes) -> Session:
        secret = self._identity.secret
        if not hmac.compare_digest(transcript.sign(secret, "acceptor", incarnation), proof):
            raise HandshakeRefusedError(HandshakeRefusal.PROOF)
        return Session(
            peer=self._peer,
            incarnation=incarnation,
            number=transcript.session,
            address="",
            send_key=transcript.sign(secret, "dialler's frames", incarnation),
            receive_key=transcript.sign(secret, "acceptor's frames", incarnation),
        )


class Accepting:
    """The side that was asked."""

    __slots__ = ("_identity", "_names", "_objection", "_peers", "_transcript")

    def __init__(
        self,
        identity: Identity,
        peers: Container[str],
        objection: Callable[[str, int, int], HandshakeRefusal | None],
    ) -> None:
        """Expect one of `peers`.

        Args:
            identity: This node.
            peers: Ids of the other nodes of the cluster.
            objection: Tells of a peer that proved itself, its incarnation and its session number,
                what speaks against it.
        """
        self._identity = identity
        self._peers = peers
        self._objection = objection
        self._names: Container[str] | None = None
        self._transcript: _Transcript | None = None

    def expect(self, names: Container[str]) -> None:
        """Refuse whoever says to be another node than one of `names`: its certificate's."""
        self._names = names

    def receive(self, body: bytes) -> tuple[bytes, Session | None]:
        """Take the next greeting; return the answer, and the session when it is done.

        Raises:
            FrameRefusedError: It is no greeting that may come now.
            HandshakeRefusedError: The other side is no peer, or could not prove itself.
        """
        greeting = decode_greeting(body)
        if self._transcript is None:
            return self._challenge(greeting), None
        return self._welcome(self._transcript, greeting)

    def _challenge(self, greeting: object) -> bytes:
        match greeting:
            case [str(magic), int(version), *_] if magic == _MAGIC and version != VERSION:
                raise HandshakeRefusedError(HandshakeRefusal.VERSION)
            case [
                str(magic),
                int(),
                str(cluster_id),
                str(dialler),
                str(acceptor),
                bytes(nonce),
                int(incarnation),
                int(session),
                str(address),
            ] if (
                magic == _MAGIC
                and len(nonce) == _NONCE_BYTES
                and _is_number(incarnation)
                and _is_number(session)
                and max(map(len, (cluster_id, dialler, acceptor, address))) <= _NAME_CHARACTERS_MAX
            ):
                pass
            case _:
                raise FrameRefusedError(BadFrame.SCHEMA)
        me = self._identity
        if cluster_id != me.cluster_id:
            raise HandshakeRefusedError(HandshakeRefusal.CLUSTER)
        if dialler == me.node_id:
            raise HandshakeRefusedError(HandshakeRefusal.MYSELF)
        if dialler not in self._peers:
            raise HandshakeRefusedError(HandshakeRefusal.STRANGER)
        if self._names is not None and dialler not in self._names:
            raise HandshakeRefusedError(HandshakeRefusal.NAME)
        if acceptor != me.node_id:
            raise HandshakeRefusedError(HandshakeRefusal.MISDIRECTED)
        self._transcript = _Transcript(
            cluster_id=cluster_id,
            dialler=dialler,
            acceptor=acceptor,
            dialler_nonce=nonce,
            acceptor_nonce=secrets.token_bytes(_NONCE_BYTES),
            incarnation=incarnation,
            session=session,
            address=address,
        )
        return cbor2.dumps(["challenge", self._transcript.acceptor_nonce])

    def _welcome(self, transcript: _Transcript, greeting: object) -> tuple[bytes, Session]:
        match greeting:
            case ["proof", bytes(proof)] if len(proof) == _PROOF_BYTES:
                pass
            case _:
                raise FrameRefusedError(BadFrame.SCHEMA)
        me = self._identity
        if not hmac.compare_digest(transcript.sign(me.secret, "dialler"), proof):
            raise HandshakeRefusedError(HandshakeRefusal.PROOF)
        objection = self._objection(transcript.dialler, transcript.incarnation, transcript.session)
        if objection is not None:
            raise HandshakeRefusedError(objection)
        return (
            cbor2.dumps(
                [
                    "welcome",
                    me.incarnation,
                    transcript.sign(me.secret, "acceptor", me.incarnation),
                ]
            ),
            Session(
                peer=transcript.dialler,
                incarnation=transcript.incarnation,
                number=transcript.session,
                address=transcript.address,
                send_key=transcript.sign(me.secret, "acceptor's frames", me.incarnation),
                receive_key=transcript.sign(me.secret, "dialler's frames", me.incarnation),
            ),
        )


def refusal(reason: HandshakeRefusal) -> bytes:
    """Return the greeting that tells a dialling side why it is refused; proves nothing."""
    return cbor2.dumps(["refused", reason.value])


def _is_number(value: int) -> bool:
    # True and False match int() and would be signed differently from 1 and 0.
    return type(value) is int and 0 <= value <= _NUMBER_MAX


def _known(said: str) -> str:
    """Return a refusal in our own words: what came proves nothing, and goes into a log."""
    return said if said in set(HandshakeRefusal) else ""
