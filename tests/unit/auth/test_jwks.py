"""JWKS: published keys are fetched rarely and trusted no longer than allowed."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from codeq_cluster.auth.jwks import STALE_S_MAX, Jwks, KeysUnavailable

from .issuer import Issuer


class Hours:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        """Return monotonic seconds."""
        return self.now_s


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    """Yield an issuer that publishes the keys `one` and `two`."""
    async with Issuer() as running:
        running.publish("one", "two")
        yield running


async def test_a_known_key_costs_one_fetch_for_all_callers(issuer: Issuer) -> None:
    """Callers that arrive together share the first fetch."""
    keys = Jwks(issuer.url, ttl_s=300)

    found = await asyncio.gather(*(keys.key("one") for _ in range(20)))

    assert None not in found
    assert 1 == issuer.fetches


async def test_a_key_published_later_is_found_after_the_interval(issuer: Issuer) -> None:
    """A rotation needs no restart."""
    clock = Hours()
    keys = Jwks(issuer.url, ttl_s=300, interval_s=10, clock=clock)
    await keys.key("one")
    issuer.publish("three")
    clock.now_s += 10

    assert await keys.key("three") is not None


async def test_a_key_withdrawn_is_trusted_no_longer_than_the_ttl(issuer: Issuer) -> None:
    """A key that the issuer no longer publishes is gone with the next fetch."""
    clock = Hours()
    keys = Jwks(issuer.url, ttl_s=300, clock=clock)
    await keys.key("one")
    issuer.publish("two")
    clock.now_s += 300

    assert await keys.key("one") is None


async def test_unknown_key_ids_cost_one_fetch_an_interval(issuer: Issuer) -> None:
    """Forged tokens cause no load on the issuer."""
    clock = Hours()
    keys = Jwks(issuer.url, ttl_s=300, interval_s=10, clock=clock)

    found = await asyncio.gather(*(keys.key(f"forged-{i}") for i in range(50)))

    assert not any(found)
    assert 1 == issuer.fetches


async def test_known_keys_outlive_an_issuer_that_is_down_but_not_for_ever(issuer: Issuer) -> None:
    """Within the bound the old keys are accepted; beyond it no token can be verified."""
    clock = Hours()
    keys = Jwks(issuer.url, ttl_s=300, clock=clock)
    await keys.key("one")
    issuer.broken = True
    clock.now_s += 400
    within = await keys.key("one")
    clock.now_s += STALE_S_MAX

    assert within is not None
    with pytest.raises(KeysUnavailable):
        await keys.key("one")


async def test_a_token_without_key_id_takes_the_only_key(issuer: Issuer) -> None:
    """With two keys it would be ambiguous."""
    two_keys = await Jwks(issuer.url, ttl_s=300).key(None)
    issuer.publish("one")
    one_key = await Jwks(issuer.url, ttl_s=300).key(None)

    assert two_keys is None
    assert one_key is not None


@pytest.mark.parametrize("kid", [7, ["one"], {"a": 1}])
async def test_a_key_id_that_is_no_text_names_no_key(issuer: Issuer, kid: object) -> None:
    """Such an id matches no key and does not crash the node."""
    assert await Jwks(issuer.url, ttl_s=300).key(kid) is None


async def test_the_keys_are_fetched_before_the_first_caller(issuer: Issuer) -> None:
    """The refresher saves the first caller the wait."""
    keys = Jwks(issuer.url, ttl_s=300)
    await keys.start()
    try:
        async with asyncio.timeout(60):
            await keys.fetched.wait()
        found = await keys.key("one")
    finally:
        await keys.stop()

    assert found is not None
    assert 1 == issuer.fetches


async def test_a_failing_issuer_delays_no_caller_with_a_known_key(issuer: Issuer) -> None:
    """After one failure the old keys are used at once; the refresher makes the next attempt."""
    clock = Hours()
    keys = Jwks(issuer.url, ttl_s=300, interval_s=10, clock=clock)
    await keys.start()
    try:
        async with asyncio.timeout(60):
            await keys.fetched.wait()
        issuer.broken = True
        clock.now_s += 400
        first = await keys.key("one")
        asked = issuer.fetches
        clock.now_s += 10
        issuer.silent.clear()
        second = await keys.key("one")
    finally:
        issuer.silent.set()
        await keys.stop()

    assert first is not None
    assert second is first
    assert issuer.fetches == asked == 2


async def test_old_keys_serve_no_longer_than_the_bound_beside_a_refresher(issuer: Issuer) -> None:
    """The refresher's attempts do not make them younger."""
    clock = Hours()
    keys = Jwks(issuer.url, ttl_s=300, clock=clock)
    await keys.start()
    try:
        async with asyncio.timeout(60):
            await keys.fetched.wait()
        issuer.broken = True
        clock.now_s += 400
        await keys.key("one")
        clock.now_s += STALE_S_MAX
        with pytest.raises(KeysUnavailable):
            await keys.key("one")
    finally:
        await keys.stop()


async def test_an_issuer_that_does_not_answer_is_given_up(issuer: Issuer) -> None:
    """A fetch has a timeout, and is not repeated.

    On a busy machine the timeout can expire before the request arrives, so the count may be 0.
    """
    issuer.silent.clear()
    keys = Jwks(issuer.url, ttl_s=300, timeout_s=0.05)

    with pytest.raises(KeysUnavailable):
        await keys.key("one")
    issuer.silent.set()

    assert issuer.fetches <= 1


@pytest.mark.parametrize(
    "answer",
    [
        web.Response(body=b'{"keys":[],"fill":"' + b"x" * 2**20 + b'"}'),
        web.Response(body=gzip.compress(b'{"keys":[]}'), headers={"Content-Encoding": "gzip"}),
        web.Response(status=302, headers={"Location": "/keys"}),
        web.Response(status=204),
        web.Response(body=b'{"keys":'),
        web.Response(body=b'{"keys":{}}'),
        web.Response(body=b'{"keys":[7]}'),
        web.Response(body=b"[" * 10_000),
        web.Response(body=b"\xff\xfe"),
    ],
)
async def test_an_answer_without_a_key_set_loads_no_keys(
    issuer: Issuer, answer: web.Response
) -> None:
    """Too large, compressed, redirected or broken: no keys are loaded, and the node goes on."""
    issuer.answer = answer
    keys = Jwks(issuer.url, ttl_s=300)

    with pytest.raises(KeysUnavailable):
        await keys.key("one")

    assert 1 == issuer.fetches


async def test_of_several_keys_without_an_id_none_is_guessed(issuer: Issuer) -> None:
    """A single key serves tokens without an id; between two the choice would be a guess."""
    issuer.publish()
    issuer.odd = [_unnamed(issuer)]
    one = await Jwks(issuer.url, ttl_s=300).key(None)
    issuer.odd = [_unnamed(issuer), _unnamed(issuer)]
    two = await Jwks(issuer.url, ttl_s=300).key(None)

    assert one is not None
    assert two is None


def _unnamed(issuer: Issuer) -> dict[str, object]:
    described = issuer.described("one")
    del described["kid"]
    return described
