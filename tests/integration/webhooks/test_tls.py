"""TLS: a target's certificate must name it and come from a known authority."""

from __future__ import annotations

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.integration.webhooks.target import listening, sending

BODY = b"{}"


def _certificate(directory: Path, address: str) -> tuple[Path, ssl.SSLContext]:
    """Return the file of a self-signed certificate, and a server's context."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "target")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = directory / "certificate.pem", directory / "key.pem"
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate_file, key_file)
    return certificate_file, context


async def test_a_target_whose_authority_is_unknown_is_refused(tmp_path: Path) -> None:
    """The body is not sent."""
    _, context = _certificate(tmp_path, "127.0.0.1")
    async with listening(tls=context) as target, sending() as sender:
        sent = await sender.post(target.url, BODY, tenant="acme", delivery="d1")

    assert (False, 0) == (sent.ok, sent.status)
    assert "certificate verify failed" in sent.error
    assert [] == target.heard


async def test_a_target_whose_authority_is_known_is_sent_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SSL_CERT_FILE names the authorities, as for every program that uses OpenSSL."""
    certificate_file, context = _certificate(tmp_path, "127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate_file))
    async with listening(tls=context) as target, sending() as sender:
        sent = await sender.post(target.url, BODY, tenant="acme", delivery="d1")

    assert sent.ok
    assert [BODY] == [heard.body for heard in target.heard]


async def test_a_certificate_of_another_host_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name must match even if the authority is known."""
    certificate_file, context = _certificate(tmp_path, "127.0.0.2")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate_file))
    async with listening(tls=context) as target, sending() as sender:
        sent = await sender.post(target.url, BODY, tenant="acme", delivery="d1")

    assert (False, 0) == (sent.ok, sent.status)
    assert "mismatch" in sent.error
    assert [] == target.heard
