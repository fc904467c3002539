"""Seal: text that only the cluster's nodes can read or create, for a browser to keep.

The key is derived from the cluster's secret, so any node opens what another has sealed. A node
without a secret has no peers to share with: its key lives as long as its process.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

OVERHEAD_BYTES = 28  # Nonce and tag.

_NONCE_BYTES = 12
_KEY_BYTES = 32


class Seal:
    """Seals and opens.

    Args:
        secret: The cluster's; empty for a key of this process only.
        cluster_id: Binds the seal to this cluster, even if another one has the same secret.
    """

    def __init__(self, secret: str, *, cluster_id: str) -> None:
        root = secret.encode() or os.urandom(_KEY_BYTES)
        derived = HKDF(
            algorithm=SHA256(),
            length=2 * _KEY_BYTES,
            salt=None,
            info=b"codeq-cluster page 1 " + cluster_id.encode(),
        ).derive(root)
        self._cipher = AESGCM(derived[:_KEY_BYTES])
        self._marking = derived[_KEY_BYTES:]

    def close(self, plain: bytes) -> str:
        """Return the bytes sealed, in base64url without padding."""
        nonce = os.urandom(_NONCE_BYTES)
        sealed = nonce + self._cipher.encrypt(nonce, plain, None)
        return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()

    def open(self, sealed: str) -> bytes | None:
        """Return the sealed bytes, or None for anything this cluster has not sealed."""
        try:
            raw = base64.b64decode(
                sealed.encode() + b"=" * (-len(sealed) % 4), altchars=b"-_", validate=True
            )
            return self._cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], None)
        except (binascii.Error, UnicodeError, InvalidTag, ValueError):
            return None

    def mark(self, sealed: str) -> str:
        """Return a text that belongs to a sealed one and cannot be guessed from it."""
        made = hmac.new(self._marking, sealed.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(made).rstrip(b"=").decode()
