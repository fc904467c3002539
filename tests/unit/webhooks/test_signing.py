"""Signing: known vectors, a receiver's own computation, and the keys that sign at a time."""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64encode
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.core.items import WebhookKey
from codeq_cluster.settings import SigningKeys, WebhookSettings
from codeq_cluster.webhooks.signing import (
    SigningKey,
    headers,
    key_id,
    signature,
    signing_keys,
    tenant_key,
)

BODY = b'{"taskId":"t1","status":"COMPLETED"}'
# printf '1700000000.{"taskId":"t1","status":"COMPLETED"}' | openssl dgst -sha256 -hmac SECRET
VECTORS = [
    ("0123456789abcdef", "5514c090ba36ec292a3e5bbe4bf3f344f2561243256cb090ad8288731e2b4c80"),
    ("schlüssel-der-lang-ist", "a418fbd5ad29c606e8122b918e1fbaad9c31f38e3ac1aa662c15863987e0e8d6"),
]
SETTINGS = WebhookSettings(hmac_secret="0123456789abcdef")
BOTH = replace(SETTINGS, hmac_previous_secret="fedcba9876543210")
NOW_MS = 1_700_000_000_000
ROTATED = WebhookKey(tenant="acme", version=3, previous_until_ms=NOW_MS + 1)


@pytest.mark.parametrize(("secret", "expected"), VECTORS)
def test_the_signature_is_that_of_another_implementation(secret: str, expected: str) -> None:
    """Lower-case hex HMAC-SHA256 of timestamp, full stop and body, as openssl computes it."""
    assert expected == signature(secret, unix_s=1_700_000_000, body=BODY)


@pytest.mark.parametrize(("tenant", "named"), [("acme", "acme"), ("", "_")])
def test_a_tenants_key_is_what_rfc_5869_says(tenant: str, named: str) -> None:
    """Another implementation derives the same key from the secret, the tenant and the version."""
    info = f"codeq-cluster webhook key, tenant {named}, version 7".encode()
    drawn = hmac.digest(bytes(32), b"0123456789abcdef", hashlib.sha256)
    derived = hmac.digest(drawn, info + b"\x01", hashlib.sha256)

    key = tenant_key("0123456789abcdef", tenant, 7)
    assert "cqwh_" + urlsafe_b64encode(derived).decode().rstrip("=") == key


@given(st.text(min_size=1), st.integers(0, 2**40), st.binary())
def test_a_receiver_computes_the_same(secret: str, unix_s: int, body: bytes) -> None:
    """The receiver needs only the headers and the body."""
    signed = headers([SigningKey(id="k", text=secret)], unix_s=unix_s, body=body)

    text = signed["X-CodeQ-Timestamp"].encode() + b"." + body
    expected = hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()
    assert {
        "X-CodeQ-Timestamp": str(unix_s),
        "X-CodeQ-Signature": expected,
        "X-CodeQ-Signatures": f"k={expected}",
    } == signed


def test_every_key_signs_and_is_named() -> None:
    """A receiver that knows any one of them finds its signature; codeQ's header has the first."""
    keys = [SigningKey(id="new", text="1"), SigningKey(id="old", text="2")]
    signed = headers(keys, unix_s=7, body=BODY)
    first, second = (signature(key.text, unix_s=7, body=BODY) for key in keys)

    assert first == signed["X-CodeQ-Signature"]
    assert f"new={first}, old={second}" == signed["X-CodeQ-Signatures"]


@pytest.mark.parametrize("previous", ["", "old"])
def test_without_a_secret_nothing_is_signed(previous: str) -> None:
    """The previous secret does not sign either."""
    unsigned = WebhookSettings(hmac_previous_secret=previous)

    assert () == signing_keys(unsigned, ROTATED, now_ms=NOW_MS)
    assert {} == headers((), unix_s=7, body=BODY)


def test_two_versions_sign_until_the_overlap_ends() -> None:
    """The current one comes first and has no end."""
    keys = signing_keys(SETTINGS, ROTATED, now_ms=NOW_MS)

    assert [(3, 0), (2, NOW_MS + 1)] == [(key.version, key.until_ms) for key in keys]
    assert keys[:1] == signing_keys(SETTINGS, ROTATED, now_ms=NOW_MS + 1)


def test_keys_of_both_secrets_sign_while_the_operator_changes_the_secret() -> None:
    """Both versions of each, during a tenant's own rotation too; the new secret's come first."""
    keys = signing_keys(BOTH, ROTATED, now_ms=NOW_MS)

    assert [
        tenant_key(secret, "acme", version)
        for secret in ("0123456789abcdef", "fedcba9876543210")
        for version in (3, 2)
    ] == [key.text for key in keys]
    assert 4 == len({key.id for key in keys})


def test_tenants_have_keys_of_their_own_unless_the_cluster_signs_for_all() -> None:
    """With `cluster`, the secret itself signs, as codeQ's does, whatever the version."""
    [acme], [other] = (
        signing_keys(SETTINGS, WebhookKey(tenant=tenant), now_ms=NOW_MS)
        for tenant in ("acme", "globex")
    )
    shared = signing_keys(replace(BOTH, signing_keys=SigningKeys.CLUSTER), ROTATED, now_ms=NOW_MS)

    assert acme.text != other.text
    assert ["0123456789abcdef", "fedcba9876543210"] == [key.text for key in shared]
    assert [key_id(key.text) for key in shared] == [key.id for key in shared]


def test_a_key_is_not_in_its_own_text_form() -> None:
    """Whoever prints or logs a key sees its id."""
    [key] = signing_keys(SETTINGS, WebhookKey(tenant="acme"), now_ms=NOW_MS)

    assert key.text not in repr(key)
    assert key.id in repr(key)
