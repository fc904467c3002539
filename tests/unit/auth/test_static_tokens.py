"""Static tokens: a node stores only digests, and a wrong guess reveals nothing."""

from __future__ import annotations

import gc

import pytest

from codeq_cluster.auth.tokens import StaticProvider, TokenRejected
from codeq_cluster.settings import StaticToken

SECRET = "a-long-random-text-of-an-operator"


def _reachable(start: object) -> list[object]:
    """Return every value the object holds, directly or not, except classes and modules."""
    found: dict[int, object] = {}
    waiting = [start]
    while waiting:
        value = waiting.pop()
        if id(value) in found or isinstance(value, type):
            continue
        found[id(value)] = value
        waiting += gc.get_referents(value)
    return list(found.values())


async def test_a_provider_keeps_digests_and_no_token() -> None:
    """Digests are compared, so that a guess with a correct start gains nothing."""
    provider = StaticProvider([StaticToken(token=SECRET, subject="s", tenant="acme")])
    claims = await provider.verify(SECRET)
    texts = [value for value in _reachable(provider) if isinstance(value, str)]
    raw = [value for value in _reachable(provider) if isinstance(value, bytes)]

    assert "s" == claims.subject
    assert "acme" in texts
    assert not any(SECRET in text for text in texts)
    assert [32] == [len(value) for value in raw]


@pytest.mark.parametrize("guess", ["", SECRET[:-1], SECRET + "x", SECRET.upper(), "x" + SECRET])
async def test_a_token_is_good_as_a_whole_or_not_at_all(guess: str) -> None:
    """A guess with a large part of it is refused."""
    provider = StaticProvider([StaticToken(token=SECRET, subject="s")])

    with pytest.raises(TokenRejected, match="no such static token"):
        await provider.verify(guess)
