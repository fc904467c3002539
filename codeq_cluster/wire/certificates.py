"""Certificates: TLS contexts, made from PEM files and remade when the files change."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from cryptography import x509

from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.settings import LinkTlsSettings, TlsSettings
from codeq_cluster.wire.channel import Channel

log = logging.getLogger(__name__)

Contexts = TypeVar("Contexts")
_Version = tuple[tuple[int, int, int], ...]

# Checking the files costs microseconds, and a certificate is renewed days before it expires.
_LOOK_EVERY_S: Final = 1.0
_HANDSHAKE_FLIGHTS_MAX: Final = 8
# Everything that can be wrong with the files: missing, no PEM, no matching pair, not signed, or a
# certificate that nobody should issue.
_UNUSABLE: Final = (
    OSError,
    ValueError,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkContexts:
    """The contexts with which a node proves itself to its peers and checks them."""

    dialling: ssl.SSLContext
    accepting: ssl.SSLContext


class Certificates(Generic[Contexts]):
    """The certificates for new connections; existing connections keep those they began with.

    A change of the files is all or nothing: unusable files are logged once, and the former contexts
    stay.

    Attributes:
        use: For logs and metrics: `http` or `link`.
        current: The contexts of the next connection.
        expires_s: When the presented certificate expires, Unix seconds.
        stale: The files have changed, and their new content could not be loaded.
    """

    def __init__(self, use: str, files: Sequence[Path], make: Callable[[], Contexts]) -> None:
        """Load the files.

        Args:
            use: `http` or `link`.
            files: All files that `make` reads, the certificate first.
            make: Reads the files; raises OSError or ValueError when they are unusable.

        Raises:
            ConfigInvalid: The files are unusable.
        """
        self.use = use
        self._files = tuple(files)
        self._make = make
        self.stale = False
        try:
            self._seen = self._look()
            self.current, self.expires_s = self._load()
        except _UNUSABLE as error:
            names = ", ".join(map(str, self._files))
            raise ConfigInvalid(
                f"{use} certificate ({names}): {error}; must be PEM files that fit each other"
            ) from error

    @property
    def left_s(self) -> float:
        """Return the seconds until the presented certificate expires; negative after that."""
        return self.expires_s - time.time()

    def refresh(self) -> bool:
        """Load the files if they changed, from disk; return whether new ones are in use now."""
        try:
            found = self._look()
        except OSError as error:
            # A file that is missing for a moment is being replaced. If it stays missing, that is
            # logged once.
            if self._seen:
                self._kept(error)
            self._seen = ()
            return False
        if found == self._seen:
            return False
        # Taken before the load, so that files that change during it are loaded once more.
        self._seen = found
        try:
            self.current, self.expires_s = self._load()
        except _UNUSABLE as error:
            self._kept(error)
            return False
        self.stale = False
        log.info(
            "certificate loaded",
            extra={"use": self.use, "days_left": round(self.left_s / 86400, 1)},
        )
        return True

    async def watch(self) -> None:
        """Check the files every second until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            await asyncio.to_thread(self.refresh)

    def _look(self) -> _Version:
        found = [path.stat() for path in self._files]
        return tuple((one.st_mtime_ns, one.st_size, one.st_ino) for one in found)

    def _load(self) -> tuple[Contexts, float]:
        contexts = self._make()
        return contexts, _leaf(self._files[0]).not_valid_after_utc.timestamp()

    def _kept(self, error: Exception) -> None:
        self.stale = True
        log.error(
            "certificate not loaded, the one before stays in use",
            extra={"use": self.use, "reason": str(error), "days_left": self.left_s // 86400},
        )


def http_certificates(settings: TlsSettings) -> Certificates[ssl.SSLContext] | None:
    """Return the certificates of the HTTP front end, or None when it serves plain HTTP.

    Raises:
        ConfigInvalid: The files are not a certificate and its key.
    """
    cert, key = settings.cert_file, settings.key_file
    if cert is None or key is None:
        return None

    def make() -> ssl.SSLContext:
        context = _with_pair(ssl.PROTOCOL_TLS_SERVER, cert, key)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Otherwise a TLS 1.2 client could ask for handshake after handshake on one connection.
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        return context

    return Certificates("http", (cert, key), make)


def link_certificates(
    settings: LinkTlsSettings, *, node_id: str
) -> Certificates[LinkContexts] | None:
    """Return the certificates that a node presents to its peers, or None when the link is plain.

    Args:
        settings: All three files, or none.
        node_id: Must be among the certificate's DNS names.

    Raises:
        ConfigInvalid: The files do not fit each other, or the certificate is another node's.
    """
    cert, key, ca = settings.cert_file, settings.key_file, settings.ca_file
    if cert is None or key is None or ca is None:
        return None

    def context(protocol: int) -> ssl.SSLContext:
        context = _with_pair(protocol, cert, key)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # The name is the node's id, not a host's, so it is compared exactly, without wildcards.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(ca)
        return context

    def make() -> LinkContexts:
        if node_id not in _names(_leaf(cert)):
            raise ValueError(f"the certificate does not carry the DNS name {node_id}")
        made = LinkContexts(
            dialling=context(ssl.PROTOCOL_TLS_CLIENT), accepting=context(ssl.PROTOCOL_TLS_SERVER)
        )
        # A resumed session would skip the verification against a CA that was replaced.
        made.accepting.num_tickets = 0
        _shake_hands(made)
        return made

    return Certificates("link", (cert, key, ca), make)


def _with_pair(protocol: int, cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    # Without a password here, the library would ask for one on the terminal.
    context.load_cert_chain(cert, key, password="")
    return context


def _leaf(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificates(path.read_bytes())[0]


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return found.value.get_values_for_type(x509.DNSName)


def _shake_hands(contexts: LinkContexts) -> None:
    """Prove that a peer with the same CA would accept the certificate, in both roles.

    Raises:
        ssl.SSLError: It would not.
    """
    dialling = Channel(contexts.dialling, accepting=False)
    accepting = Channel(contexts.accepting, accepting=True)
    said = dialling.start()
    for _ in range(_HANDSHAKE_FLIGHTS_MAX):
        accepting.open(said)
        dialling.open(accepting.unsent())
        if accepting.established and dialling.established:
            return
        said = dialling.unsent()
    raise ssl.SSLError("the handshake does not end")
