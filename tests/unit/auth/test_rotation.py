"""Rotation: keys change while verified tokens are cached."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from codeq_cluster.auth import Access, AccessRefused, Authenticator
from codeq_cluster.auth.jwks import FETCH_INTERVAL_S
from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.settings import AuthProviderSettings, AuthSettings

from .issuer import Issuer

TTL_S = 300


class Hours:
    """Two clocks that a test moves together; only the wall clock can also be set."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        self.set_by_s = 0.0
        self._started_s = time.time()

    def wall_ms(self) -> int:
        """Return Unix milliseconds."""
        return int((self._started_s + self.passed_s + self.set_by_s) * 1000)

    def monotonic(self) -> float:
        """Return seconds that never jump."""
        return 1000.0 + self.passed_s


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    """Run an issuer that publishes the key `old`."""
    async with Issuer() as running:
        running.publish("old")
        yield running


def trusting(issuer: Issuer, clock: Hours) -> Authenticator:
    """Return an authenticator that trusts the issuer's keys while they are young."""
    provider = AuthProviderSettings(kind="jwks", jwks_url=issuer.url, cache_seconds=TTL_S)
    return Authenticator(
        AuthSettings(producer=(provider,), tenant_fallback="default"),
        now_ms=clock.wall_ms,
        monotonic=clock.monotonic,
    )


def header(issuer: Issuer, kid: str) -> str:
    """Return the header of a token that lives for an hour."""
    return f"Bearer {issuer.token(kid, exp=int(time.time()) + 3600)}"


async def test_a_withdrawn_key_opens_nothing_more_after_the_age_limit(issuer: Issuer) -> None:
    """A token that was just verified and cached is refused too."""
    clock = Hours()
    auth = trusting(issuer, clock)
    early = header(issuer, "old")
    late = early.replace("Bearer", "bearer")
    await auth.authenticate(early, Access.PRODUCER)
    issuer.publish("new")
    clock.passed_s = TTL_S - 1
    await auth.authenticate(late, Access.PRODUCER)
    before = [auth.known(each, Access.PRODUCER) for each in (early, late)]
    clock.passed_s = TTL_S
    after = [auth.known(each, Access.PRODUCER) for each in (early, late)]

    assert None not in before
    assert [None, None] == after
    for each in (early, late):
        with pytest.raises(AccessRefused) as refused:
            await auth.authenticate(each, Access.PRODUCER)
        assert "no published key of that id" == refused.value.reason


@pytest.mark.parametrize("set_by_s", [-3600, 1800])
async def test_a_cached_verdict_ages_the_same_when_the_clock_is_set(
    issuer: Issuer, set_by_s: int
) -> None:
    """A clock set back gives a withdrawn key no more time; one set forward ends no verdict."""
    clock = Hours()
    auth = trusting(issuer, clock)
    token = header(issuer, "old")
    await auth.authenticate(token, Access.PRODUCER)
    clock.set_by_s = set_by_s
    clock.passed_s = TTL_S - 1
    before = auth.known(token, Access.PRODUCER)
    clock.passed_s = TTL_S
    after = auth.known(token, Access.PRODUCER)

    assert before is not None
    assert after is None


async def test_a_new_key_is_good_at_once_beside_the_old_one(issuer: Issuer) -> None:
    """Both keys are valid while both are published; an unknown id triggers a fetch."""
    clock = Hours()
    auth = trusting(issuer, clock)
    await auth.authenticate(header(issuer, "old"), Access.PRODUCER)
    issuer.publish("old", "new")
    clock.passed_s = FETCH_INTERVAL_S

    new = await auth.authenticate(header(issuer, "new"), Access.PRODUCER)
    old = await auth.authenticate(header(issuer, "old") + " ", Access.PRODUCER)

    assert ("s", "s") == (new.subject, old.subject)
    assert 2 == issuer.fetches


async def test_nothing_is_remembered_on_the_word_of_keys_that_are_too_old(issuer: Issuer) -> None:
    """While the issuer is away its old keys are used, and each token is verified again."""
    clock = Hours()
    auth = trusting(issuer, clock)
    token = header(issuer, "old")
    await auth.authenticate(token, Access.PRODUCER)
    issuer.broken = True
    clock.passed_s = TTL_S + 1

    served = await auth.authenticate(token, Access.PRODUCER)

    assert "s" == served.subject
    assert auth.known(token, Access.PRODUCER) is None


@pytest.mark.parametrize(
    ("url", "exposed"),
    [
        ("https://id.example/keys", False),
        ("http://localhost:8000/keys", False),
        ("http://127.0.0.1/keys", False),
        ("http://127.8.9.10/keys", False),
        ("http://[::1]:8000/keys", False),
        ("http://id.example/keys", True),
        ("http://10.0.0.1/keys", True),
        ("http://127.0.0.1.id.example/keys", True),
        ("http://127.0.0.1@id.example/keys", True),
        ("HTTP://id.example/keys", True),
    ],
)
def test_keys_from_another_host_need_tls_or_a_decision(url: str, *, exposed: bool) -> None:
    """An attacker between the issuer and this node could publish other keys."""
    provider = AuthProviderSettings(kind="jwks", jwks_url=url.replace("HTTP:", "http:"))

    assert AuthProviderSettings(kind="jwks", jwks_url=url).keys_exposed is exposed
    assert Authenticator(AuthSettings(producer=(provider,), allow_http_jwks=True))
    if exposed:
        with pytest.raises(ConfigInvalid, match=r"auth\.allowHttpJwks"):
            Authenticator(AuthSettings(producer=(provider,)))
    else:
        assert Authenticator(AuthSettings(producer=(provider,)))
