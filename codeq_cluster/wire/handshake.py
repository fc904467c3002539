"""Handshake: two nodes prove to each other that they hold the cluster's secret, without sending it.

    dialling                                        accepting
    hello(versions, cluster, from, to, nonce, incarnation, session, address, shards)  ->
                                                <-  challenge(nonce, version)
    proof(HMAC of everything said, role)        ->
                                                <-  welcome(HMAC of everything said, other role)

A hello offers all link versions of its release, as the lowest and the highest; the challenge names
the highest that both speak.
A hello must therefore stay readable to every version it offers; a later version may add fields at
its end, as the number of shards, which earlier releases of link version 1 do not say.
Both proofs cover hello and challenge byte for byte. Nobody in between can lower the version, or
change a field that only one side understands.

Both proofs cover both fresh nonces, so none can be replayed, and a role, so none can be reflected.
The accepting side proves itself last, so a stranger gets nothing to guess the secret with.
Each direction of the connection then has a key of its own. This module knows no sockets and no
time.
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

# The lowest and the highest link version of this release.
# 1: a frame per pass of the sender's loop, in MessagePack.
VERSIONS: Final = (1, 1)
_MAGIC: Final = "codeq-link"
_NONCE_BYTES: Final = 32
_PROOF_BYTES: Final = 32
_NAME_CHARACTERS_MAX: Final = 256
_NUMBER_MAX: Final = 2**64 - 1
_VERSION_MAX: Final = 2**16 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkIdentity:
    """A node's own part of the handshake.

    Attributes:
        incarnation: Grows with every start of the node.
        address: Where its peers reach it, host:port; empty when they know it already.
        versions: The lowest and the highest link version of its release.
        shards: How many it has, which is the same on all nodes; 0 to leave that open.
    """

    node_id: str
    cluster_id: str
    incarnation: int
    secret: bytes = field(repr=False)
    address: str = ""
    versions: tuple[int, int] = VERSIONS
    shards: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSession:
    """The result of a handshake, the same on both sides but for the direction.

    Attributes:
        peer: Id of the node at the other end, proved.
        incarnation: The peer's.
        address: The peer's address, as it reports it; empty when it does not.
        number: Grows with every connection of the dialling side's incarnation.
        version: The highest link version that both sides speak.
        send_key: 32 bytes; seals the frames this side sends.
        receive_key: 32 bytes; seals the frames the other side sends.
    """

    peer: str
    incarnation: int
    number: int
    address: str
    version: int
    send_key: bytes = field(repr=False)
    receive_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Transcript:
    """The first two greetings, byte for byte: both proofs and both keys depend on them."""

    hello: bytes
    challenge: bytes

    def sign(self, secret: bytes, role: str, incarnation: int = 0) -> bytes:
        text = cbor2.dumps([_MAGIC, role, self.hello, self.challenge, incarnation])
        return hmac.digest(secret, text, "sha256")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Greeted:
    """An accepting side's knowledge of the node that greeted it."""

    transcript: _Transcript
    version: int
    dialler: str
    incarnation: int
    session: int
    address: str


class Dialling:
    """The side that opens the connection."""

    __slots__ = ("_hello", "_identity", "_peer", "_session", "_transcript", "_version")

    def __init__(self, identity: LinkIdentity, peer: str, *, session: int) -> None:
        """Begin with `peer`; `session` grows with every connection of this incarnation."""
        self._identity = identity
        self._peer = peer
        self._session = session
        self._version = 0
        self._hello = cbor2.dumps(
            [
                _MAGIC,
                *identity.versions,
                identity.cluster_id,
                identity.node_id,
                peer,
                secrets.token_bytes(_NONCE_BYTES),
                identity.incarnation,
                session,
                identity.address,
                *([identity.shards] if identity.shards else []),
            ]
        )
        self._transcript: _Transcript | None = None

    def hello(self) -> bytes:
        """Return the first greeting."""
        return self._hello

    def receive(self, body: bytes) -> bytes | LinkSession:
        """Take the next greeting; return the greeting to answer with, or the session when done.

        Raises:
            FrameRefusedError: The body is no greeting that may come now.
            HandshakeRefusedError: The other side refused, or could not prove itself.
        """
        match decode_greeting(body):
            case ["refused", str(said), int(lowest), int(highest), *_] if (
                said == HandshakeRefusal.VERSION and _is_range(lowest, highest)
            ):
                detail = _apart(self._identity.versions, (lowest, highest))
                raise HandshakeRefusedError(
                    HandshakeRefusal.REFUSED_BY_PEER, said=said, detail=detail
                )
            case ["refused", str(said), *_]:
                raise HandshakeRefusedError(HandshakeRefusal.REFUSED_BY_PEER, said=_known(said))
            case ["challenge", bytes(nonce), int(version), *_] if (
                len(nonce) == _NONCE_BYTES and self._transcript is None
            ):
                lowest, highest = self._identity.versions
                if type(version) is not int or not lowest <= version <= highest:
                    raise FrameRefusedError(BadFrame.SCHEMA)
                self._version = version
                return self._prove(body)
            case ["welcome", int(incarnation), bytes(proof)] if (
                len(proof) == _PROOF_BYTES
                and _is_number(incarnation)
                and self._transcript is not None
            ):
                return self._conclude(self._transcript, incarnation, proof)
            case _:
                raise FrameRefusedError(BadFrame.SCHEMA)

    def _prove(self, challenge: bytes) -> bytes:
        self._transcript = _Transcript(hello=self._hello, challenge=challenge)
        return cbor2.dumps(["proof", self._transcript.sign(self._identity.secret, "dialler")])

    def _conclude(self, transcript: _Transcript, incarnation: int, proof: bytes) -> LinkSession:
        secret = self._identity.secret
        if not hmac.compare_digest(transcript.sign(secret, "acceptor", incarnation), proof):
            raise HandshakeRefusedError(HandshakeRefusal.PROOF)
        return LinkSession(
            peer=self._peer,
            incarnation=incarnation,
            number=self._session,
            address="",
            version=self._version,
            send_key=transcript.sign(secret, "dialler's frames", incarnation),
            receive_key=transcript.sign(secret, "acceptor's frames", incarnation),
        )


class Accepting:
    """The side that accepts the connection."""

    __slots__ = ("_greeted", "_identity", "_names", "_objection", "_peers")

    def __init__(
        self,
        identity: LinkIdentity,
        peers: Container[str],
        objection: Callable[[str, int, int], HandshakeRefusal | None],
    ) -> None:
        """Expect one of `peers`.

        Args:
            peers: Ids of the other nodes of the cluster.
            objection: Returns the reason against a peer that proved itself, if there is one, from
                its id, its incarnation and its session number. Of an unknown node that has proved
                nothing, only whether its data is from before a recovery counts.
        """
        self._identity = identity
        self._peers = peers
        self._objection = objection
        self._names: Container[str] | None = None
        self._greeted: _Greeted | None = None

    def expect(self, names: Container[str]) -> None:
        """Refuse a node that claims another name than these, which its certificate carries."""
        self._names = names

    def receive(self, body: bytes) -> tuple[bytes, LinkSession | None]:
        """Take the next greeting; return the answer, and the session when done.

        Raises:
            FrameRefusedError: The body is no greeting that may come now.
            HandshakeRefusedError: The other side is no peer, or could not prove itself.
        """
        if self._greeted is None:
            return self._challenge(body), None
        return self._welcome(self._greeted, decode_greeting(body))

    def refusal(self, reason: HandshakeRefusal) -> bytes:
        """Return the greeting that tells a dialling side why it is refused; it proves nothing."""
        return cbor2.dumps(["refused", reason.value, *self._identity.versions])

    def _challenge(self, hello: bytes) -> bytes:
        me = self._identity
        greeting = decode_greeting(hello)
        match greeting:
            case [str(magic), int(lowest), int(highest), *_] if magic == _MAGIC and _is_range(
                lowest, highest
            ):
                version = min(highest, me.versions[1])
                if version < max(lowest, me.versions[0]):
                    detail = _apart(me.versions, (lowest, highest))
                    raise HandshakeRefusedError(HandshakeRefusal.VERSION, detail=detail)
            case _:
                raise FrameRefusedError(BadFrame.SCHEMA)
        match greeting:
            case [
                _,
                _,
                _,
                str(cluster_id),
                str(dialler),
                str(acceptor),
                bytes(nonce),
                int(incarnation),
                int(session),
                str(address),
                *later,
            ] if (
                len(nonce) == _NONCE_BYTES
                and _is_number(incarnation)
                and _is_number(session)
                and max(map(len, (cluster_id, dialler, acceptor, address))) <= _NAME_CHARACTERS_MAX
            ):
                pass
            case _:
                raise FrameRefusedError(BadFrame.SCHEMA)
        if cluster_id != me.cluster_id:
            raise HandshakeRefusedError(HandshakeRefusal.CLUSTER)
        if me.shards and later and later[0] != me.shards:
            raise HandshakeRefusedError(HandshakeRefusal.SHARDS)
        self._check_ids(dialler, acceptor, incarnation=incarnation, session=session)
        challenge = cbor2.dumps(["challenge", secrets.token_bytes(_NONCE_BYTES), version])
        self._greeted = _Greeted(
            transcript=_Transcript(hello=hello, challenge=challenge),
            version=version,
            dialler=dialler,
            incarnation=incarnation,
            session=session,
            address=address,
        )
        return challenge

    def _check_ids(self, dialler: str, acceptor: str, *, incarnation: int, session: int) -> None:
        if dialler == self._identity.node_id:
            raise HandshakeRefusedError(HandshakeRefusal.MYSELF)
        if dialler not in self._peers:
            # Data from before a recovery must go before its node may be let in.
            if self._objection(dialler, incarnation, session) is HandshakeRefusal.RECOVERED:
                raise HandshakeRefusedError(HandshakeRefusal.RECOVERED)
            raise HandshakeRefusedError(HandshakeRefusal.STRANGER)
        if self._names is not None and dialler not in self._names:
            raise HandshakeRefusedError(HandshakeRefusal.NAME)
        if acceptor != self._identity.node_id:
            raise HandshakeRefusedError(HandshakeRefusal.MISDIRECTED)

    def _welcome(self, greeted: _Greeted, greeting: object) -> tuple[bytes, LinkSession]:
        match greeting:
            case ["proof", bytes(proof)] if len(proof) == _PROOF_BYTES:
                pass
            case _:
                raise FrameRefusedError(BadFrame.SCHEMA)
        me, transcript = self._identity, greeted.transcript
        if not hmac.compare_digest(transcript.sign(me.secret, "dialler"), proof):
            raise HandshakeRefusedError(HandshakeRefusal.PROOF)
        objection = self._objection(greeted.dialler, greeted.incarnation, greeted.session)
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
            LinkSession(
                peer=greeted.dialler,
                incarnation=greeted.incarnation,
                number=greeted.session,
                address=greeted.address,
                version=greeted.version,
                send_key=transcript.sign(me.secret, "acceptor's frames", me.incarnation),
                receive_key=transcript.sign(me.secret, "dialler's frames", me.incarnation),
            ),
        )


def _is_number(value: int) -> bool:
    # True and False match int() and would be signed differently from 1 and 0.
    return type(value) is int and 0 <= value <= _NUMBER_MAX


def _known(said: str) -> str:
    """Return a refusal only if it is a known word: it is unproved, and goes into a log."""
    return said if said in set(HandshakeRefusal) else ""


def _is_range(lowest: int, highest: int) -> bool:
    numbers = type(lowest) is int and type(highest) is int
    return numbers and 1 <= lowest <= highest <= _VERSION_MAX


def _apart(ours: tuple[int, int], theirs: tuple[int, int]) -> str:
    """Return the message for two releases that have no version in common."""
    return (
        f"this release speaks versions {ours[0]} to {ours[1]} of the link, "
        f"the other side's {theirs[0]} to {theirs[1]}"
    )
