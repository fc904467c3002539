"""Tokens: a refused one is named by its place and its kind."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode

import pytest

from codeq_cluster.client import Token
from codeq_cluster.client.tokens import described

_ARGUMENT = "the argument token"


def _jwt(**claims: object) -> str:
    body = urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{body}.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("token", "text"),
    [
        ("", "the argument token is empty"),
        ("abc", "the argument token has 3 characters and is no JWT"),
        ("a.!.c", "the argument token has 5 characters and is no JWT"),
        (Token("abc", "CODEQ_TOKEN"), "CODEQ_TOKEN has 3 characters and is no JWT"),
        (_jwt(sub="w1"), f"{_ARGUMENT} is a JWT of 'w1'"),
        (
            _jwt(sub="w1", exp=946_684_800),
            f"{_ARGUMENT} is a JWT of 'w1' that ended at 2000-01-01T00:00:00Z",
        ),
        (
            _jwt(sub="w1", exp=4_102_444_800),
            f"{_ARGUMENT} is a JWT of 'w1' that ends at 2100-01-01T00:00:00Z",
        ),
        (
            _jwt(sub="w1", exp=1e300),
            f"{_ARGUMENT} is a JWT of 'w1', which ends at no instant",
        ),
    ],
)
def test_a_token_is_described_without_its_text(token: str, text: str) -> None:
    """Its place, its length or its claims help to find it, and open nothing."""
    assert text == described(token)
