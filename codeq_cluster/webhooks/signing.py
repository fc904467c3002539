"""Signing: headers by which a receiver knows who sent a body, and when."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

TIMESTAMP = "X-CodeQ-Timestamp"
SIGNATURE = "X-CodeQ-Signature"
SIGNATURE_PREVIOUS = "X-CodeQ-Signature-Previous"


def signature(secret: str, *, unix_s: int, body: bytes) -> str:
    """Return the hex HMAC-SHA256 of the timestamp, a full stop and the body."""
    return hmac.digest(secret.encode(), b"%d." % unix_s + body, hashlib.sha256).hex()


def headers(secret: str, *, previous: str, unix_s: int, body: bytes) -> Mapping[str, str]:
    """Return the headers that sign a body; none without a secret.

    Args:
        secret: Empty for none.
        previous: The secret it replaces, while receivers change over; empty for none. It signs in a
            header of its own, so a receiver that knows either secret finds its signature.
        unix_s: When it is sent, Unix seconds; a receiver refuses old signatures.
        body: The exact bytes that are sent.
    """
    if not secret:
        return {}
    signed = {
        TIMESTAMP: str(unix_s),
        SIGNATURE: signature(secret, unix_s=unix_s, body=body),
    }
    if previous:
        signed[SIGNATURE_PREVIOUS] = signature(previous, unix_s=unix_s, body=body)
    return signed
