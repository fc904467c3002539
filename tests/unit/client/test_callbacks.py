"""Verifying callbacks: what is genuine is read, and everything else is refused with its reason."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.client import CallbackRefused, verify_callback
from codeq_cluster.core.items import WebhookKey
from codeq_cluster.settings import WebhookSettings
from codeq_cluster.webhooks.signing import headers, signing_keys

NOW_S = 1_700_000_000
BODY = (
    b'{"taskId":"t1","eventType":"render","status":"COMPLETED","result":{"n":1},"error":"",'
    b'"artifacts":[{"name":"a","url":"u"}],"completedAt":"2026-01-01T12:00:00Z"}'
)
KEYS = signing_keys(
    WebhookSettings(hmac_secret="0123456789abcdef", hmac_previous_secret="fedcba9876543210"),
    WebhookKey(tenant="acme", version=2, previous_until_ms=2**50),
    now_ms=NOW_S * 1000,
)
SIGNED = {"X-CodeQ-Delivery": "t1.1", **headers(KEYS, unix_s=NOW_S, body=BODY)}
ALONE = {name: value for name, value in SIGNED.items() if name != "X-CodeQ-Signatures"}


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.id)
@pytest.mark.parametrize("late_s", [-300, 300])
def test_a_callback_is_read_with_any_key_that_signs(key: object, late_s: int) -> None:
    """Within the age that is allowed, and whatever the case of the headers' names."""
    found = verify_callback(
        {name.upper(): value for name, value in SIGNED.items()},
        BODY,
        keys=["another", key.text],  # type: ignore[attr-defined]
        now_s=NOW_S + late_s,
    )

    assert ("t1.1", "t1", "render", {"n": 1}) == (
        found.delivery,
        found.task_id,
        found.event_type,
        found.result,
    )
    assert ("COMPLETED", "a") == (found.status, (found.artifacts or ())[0].name)


def test_the_one_signature_of_codeq_is_enough() -> None:
    """A receiver may serve both, with the current key or the shared secret."""
    assert verify_callback(ALONE, BODY, keys=KEYS[0].text, now_s=NOW_S).task_id
    with pytest.raises(CallbackRefused):
        verify_callback(ALONE, BODY, keys=KEYS[1].text, now_s=NOW_S)


@pytest.mark.parametrize(
    ("changed", "body", "late_s", "reason"),
    [
        ({}, BODY + b" ", 0, "no signature is by a key given here"),
        ({}, BODY, 301, "signed 301 s ago, at most 300 s"),
        ({}, BODY, -301, "signed -301 s ago"),
        ({"X-CodeQ-Timestamp": str(NOW_S + 1)}, BODY, 0, "no signature is by a key"),
        ({"X-CodeQ-Timestamp": ""}, BODY, 0, "no valid X-CodeQ-Timestamp"),
        ({"X-CodeQ-Timestamp": "9" * 5000}, BODY, 0, "no valid X-CodeQ-Timestamp"),
        ({"X-CodeQ-Timestamp": "\u0663"}, BODY, 0, "no valid X-CodeQ-Timestamp"),
        ({"X-CodeQ-Signatures": "=", "X-CodeQ-Signature": ""}, BODY, 0, "signing keys: none"),
        ({"X-CodeQ-Signatures": "a=\xe9", "X-CodeQ-Signature": ""}, BODY, 0, "signing keys: a"),
    ],
)
def test_anything_else_is_refused_with_its_reason(
    changed: Mapping[str, str], body: bytes, late_s: int, reason: str
) -> None:
    """The reason helps the receiver's owner, and shows no key."""
    with pytest.raises(CallbackRefused, match=reason) as refused:
        verify_callback({**SIGNED, **changed}, body, keys=KEYS[0].text, now_s=NOW_S + late_s)

    assert KEYS[0].text not in str(refused.value)


def test_a_genuine_request_that_is_no_callback_is_refused() -> None:
    """The reason names the field that is missing."""
    signed = headers(KEYS, unix_s=NOW_S, body=b"{}")
    with pytest.raises(CallbackRefused, match=r"the body is no TaskEnded: .*taskId"):
        verify_callback(signed, b"{}", keys=KEYS[0].text, now_s=NOW_S)


@pytest.mark.parametrize("keys", ["", [], [""], ["good", ""]])
def test_no_key_is_a_mistake_of_the_receiver(keys: str | list[str]) -> None:
    """Anybody could sign with an empty key, so it must not pass for one."""
    with pytest.raises(ValueError, match="at least one key"):
        verify_callback(SIGNED, BODY, keys=keys, now_s=NOW_S)


@given(st.dictionaries(st.sampled_from(list(SIGNED)), st.text(max_size=300)), st.binary())
def test_whatever_a_stranger_sends_is_refused(sent: dict[str, str], body: bytes) -> None:
    """No request makes verifying fail in another way."""
    with pytest.raises(CallbackRefused):
        verify_callback({**sent}, body, keys=KEYS[0].text, now_s=NOW_S)
