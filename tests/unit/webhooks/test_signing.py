"""Signing: known vectors, and a receiver's own computation."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.webhooks.signing import headers, signature

BODY = b'{"taskId":"t1","status":"COMPLETED"}'
# printf '1700000000.{"taskId":"t1","status":"COMPLETED"}' | openssl dgst -sha256 -hmac SECRET
VECTORS = [
    ("0123456789abcdef", "5514c090ba36ec292a3e5bbe4bf3f344f2561243256cb090ad8288731e2b4c80"),
    ("schlüssel-der-lang-ist", "a418fbd5ad29c606e8122b918e1fbaad9c31f38e3ac1aa662c15863987e0e8d6"),
]


@pytest.mark.parametrize(("secret", "expected"), VECTORS)
def test_the_signature_is_that_of_another_implementation(secret: str, expected: str) -> None:
    """Lower-case hex HMAC-SHA256 of timestamp, full stop and body, as openssl computes it."""
    assert expected == signature(secret, unix_s=1_700_000_000, body=BODY)


@given(st.text(min_size=1), st.integers(0, 2**40), st.binary())
def test_a_receiver_computes_the_same(secret: str, unix_s: int, body: bytes) -> None:
    """The receiver needs only the headers and the body."""
    signed = headers(secret, previous="", unix_s=unix_s, body=body)

    text = signed["X-CodeQ-Timestamp"].encode() + b"." + body
    assert {"X-CodeQ-Timestamp", "X-CodeQ-Signature"} == signed.keys()
    assert (
        signed["X-CodeQ-Signature"] == hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()
    )


def test_both_secrets_sign_while_there_are_two() -> None:
    """A receiver that knows either one finds its signature."""
    signed = headers("new", previous="old", unix_s=7, body=BODY)

    assert signature("new", unix_s=7, body=BODY) == signed["X-CodeQ-Signature"]
    assert signature("old", unix_s=7, body=BODY) == signed["X-CodeQ-Signature-Previous"]
    assert signed["X-CodeQ-Signature"] != signed["X-CodeQ-Signature-Previous"]


def test_without_a_secret_nothing_is_signed() -> None:
    """The previous secret does not sign either."""
    assert {} == headers("", previous="", unix_s=7, body=BODY)
    assert {} == headers("", previous="old", unix_s=7, body=BODY)
