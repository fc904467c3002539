"""Channel: one side of a TLS connection of the link; knows no sockets and no time."""

from __future__ import annotations

import ssl
from typing import Final

from codeq_cluster.wire.refusals import HandshakeRefusal

# The most one record can hold, so that a read never splits one.
_RECORD_BYTES: Final = 2**14


class Channel:
    """Translates between plain bytes and the bytes on the wire.

    Attributes:
        established: Both certificates have been verified, and plain bytes can be sent.
    """

    def __init__(self, context: ssl.SSLContext, *, accepting: bool) -> None:
        """Begin; `start` sends the first bytes."""
        self.established = False
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=accepting)

    @property
    def names(self) -> frozenset[str]:
        """Return the DNS names of the other side's certificate, once established."""
        certificate = self._tls.getpeercert()
        assert certificate is not None
        names: tuple[tuple[str, str], ...] = certificate.get("subjectAltName", ())  # type: ignore[assignment]
        return frozenset(value for kind, value in names if kind == "DNS")

    def start(self) -> bytes:
        """Return the first bytes of a dialling side; empty for an accepting one."""
        self._shake_hands()
        return self._outgoing.read()

    def open(self, data: bytes) -> bytes:
        """Return the plain bytes in `data`, which came off the wire.

        Bytes to answer with, including an alert, wait in `unsent` afterwards.

        Raises:
            ssl.SSLError: The handshake failed, or the bytes are not the other side's.
        """
        self._incoming.write(data)
        if not self.established and not self._shake_hands():
            return b""
        said = []
        while True:
            try:
                record = self._tls.read(_RECORD_BYTES)
            except ssl.SSLWantReadError:
                break
            if not record:  # The other side has closed the channel; its socket closes next.
                break
            said.append(record)
        return b"".join(said)

    def seal(self, data: bytes) -> bytes:
        """Return `data` as bytes for the wire; established channels only."""
        assert self.established
        rest = memoryview(data)
        while rest:
            rest = rest[self._tls.write(rest) :]
        return self._outgoing.read()

    def unsent(self) -> bytes:
        """Return the channel's own bytes to send: its part of the handshake, or an alert."""
        return self._outgoing.read()

    def _shake_hands(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.established = True
        return True


def refusal_of(error: ssl.SSLError) -> HandshakeRefusal:
    """Return why a connection did not become a channel."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError) or "RETURN_A_CERTIFICATE" in reason:
        return HandshakeRefusal.CERTIFICATE
    return HandshakeRefusal.REFUSED_BY_PEER if "ALERT" in reason else HandshakeRefusal.TLS
