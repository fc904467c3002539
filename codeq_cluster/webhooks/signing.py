"""Signing: the keys of a tenant's callbacks, and the headers by which a receiver verifies them.

A tenant's key is derived from the cluster's secret, the tenant and the key's version (HKDF, RFC
5869), so one tenant's key says nothing about another's. Keys are texts: their bytes are the HMAC's
key, as those of codeQ's secret are.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from codeq_cluster.core.items import WebhookKey
from codeq_cluster.settings import Signing, WebhookSettings

TIMESTAMP = "X-CodeQ-Timestamp"
SIGNATURE = "X-CodeQ-Signature"
SIGNATURES = "X-CodeQ-Signatures"

_KEY_PREFIX = "cqwh_"  # Lets scanners of repositories and logs find a key.
_KEY_BYTES = 32
_ID_BYTES = 6
_KEYS_CACHED = 4096  # A key is derived once for each tenant, version and secret; about 200 bytes.


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """A key that signs now.

    Attributes:
        id: Names the key in headers; derived from it, and useless to a forger.
        text: The key.
        version: Of the tenant's key; 0 for the cluster's secret.
        until_ms: When it stops signing; 0 for no such time.
    """

    id: str
    text: str = field(repr=False)
    version: int = 0
    until_ms: int = 0


def signing_keys(
    settings: WebhookSettings, rotated: WebhookKey, *, now_ms: int
) -> Sequence[SigningKey]:
    """Return the keys that sign a tenant's callbacks, the current one first; none without a secret.

    While the operator changes the secret, each key is there twice: of the new and of the old one.
    """
    secrets = [each for each in (settings.hmac_secret, settings.hmac_previous_secret) if each]
    if not settings.hmac_secret:
        return ()
    if settings.signing is Signing.SHARED:
        return tuple(SigningKey(id=key_id(each), text=each) for each in secrets)
    versions = {rotated.version: 0}
    if rotated.previous_until_ms > now_ms:
        versions[rotated.version - 1] = rotated.previous_until_ms
    return tuple(
        SigningKey(id=key_id(text), text=text, version=version, until_ms=until_ms)
        for secret in secrets
        for version, until_ms in versions.items()
        for text in (tenant_key(secret, rotated.tenant, version),)
    )


@lru_cache(_KEYS_CACHED)
def tenant_key(secret: str, tenant: str, version: int) -> str:
    """Return a version of a tenant's key."""
    info = f"codeq-cluster webhook key, tenant {tenant or '_'}, version {version}"
    derive = HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=None, info=info.encode())
    text = urlsafe_b64encode(derive.derive(secret.encode())).rstrip(b"=").decode()
    return _KEY_PREFIX + text


@lru_cache(_KEYS_CACHED)
def key_id(key: str) -> str:
    """Return the id of a key."""
    return hmac.digest(key.encode(), b"codeq-cluster key id", hashlib.sha256)[:_ID_BYTES].hex()


def signature(key: str, *, unix_s: int, body: bytes) -> str:
    """Return the hex HMAC-SHA256 of the timestamp, a full stop and the body."""
    return hmac.digest(key.encode(), b"%d." % unix_s + body, hashlib.sha256).hex()


def headers(keys: Sequence[SigningKey], *, unix_s: int, body: bytes) -> Mapping[str, str]:
    """Return the headers that sign a body; none without a key.

    Args:
        keys: The first one signs codeQ's header. Every one signs in a list of `id=signature`, so a
            receiver that knows any of them finds its signature.
        unix_s: When it is sent, Unix seconds; a receiver refuses old signatures.
        body: The exact bytes that are sent.
    """
    if not keys:
        return {}
    made = {each.id: signature(each.text, unix_s=unix_s, body=body) for each in keys}
    return {
        TIMESTAMP: str(unix_s),
        SIGNATURE: made[keys[0].id],
        SIGNATURES: ", ".join(f"{name}={value}" for name, value in made.items()),
    }
