"""Signatures: every listed algorithm is verified, and no other."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator

import jwt
import pytest

from codeq_cluster.auth import Access, AccessRefused, Authenticator
from codeq_cluster.settings import AuthProviderSettings, AuthSettings

from .issuer import Issuer, make_key

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "EdDSA-448"),
)


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    """Run an issuer without a key yet."""
    async with Issuer() as running:
        yield running


def trusting(issuer: Issuer, *algorithms: str) -> Authenticator:
    """Return a provider that trusts the issuer's keys, for these algorithms or all listed ones."""
    provider = AuthProviderSettings(
        kind="jwks", jwks_url=issuer.url, issuer="us", audience="codeq", algorithms=algorithms
    )
    return Authenticator(AuthSettings(producer=(provider,), tenant_fallback="default"))


def token(issuer: Issuer, algorithm: str, kid: str = "one") -> str:
    """Return a token signed by the issuer."""
    return issuer.token(kid, algorithm=algorithm, iss="us", aud="codeq")


async def reason(auth: Authenticator, refused: str) -> str:
    """Return why a token is invalid."""
    with pytest.raises(AccessRefused) as caught:
        await auth.authenticate(f"Bearer {refused}", Access.PRODUCER)
    assert (401, "invalid token") == (caught.value.status, caught.value.text)
    return caught.value.reason


def forged(header: dict[str, object], secret: bytes = b"") -> str:
    """Return a handmade token, with an HMAC of the secret or without a signature."""
    claims = {"sub": "s", "exp": int(time.time()) + 60, "iss": "us", "aud": "codeq"}
    signed = f"{_segment(header)}.{_segment(claims)}"
    if not secret:
        return f"{signed}."
    code = hmac.new(secret, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{base64.urlsafe_b64encode(code).decode().rstrip('=')}"


def _segment(value: dict[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_every_algorithm_of_the_list_is_verified(issuer: Issuer, algorithm: str) -> None:
    """With the right key the token is valid; with another of the same kind it is not."""
    issuer.publish("one", algorithm=algorithm)
    auth = trusting(issuer)
    stolen = issuer.token("two", algorithm=algorithm, headers={"kid": "one"}, iss="us", aud="codeq")

    good = await auth.authenticate(f"Bearer {token(issuer, algorithm)}", Access.PRODUCER)

    assert "s" == good.subject
    assert "InvalidSignature" in await reason(auth, stolen)


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "EdDSA"])
async def test_an_algorithm_that_is_not_configured_is_refused(
    issuer: Issuer, algorithm: str
) -> None:
    """A provider's list limits the algorithms of its keys."""
    issuer.publish("one", algorithm=algorithm)
    auth = trusting(issuer, "RS512")

    assert "is not allowed" in await reason(auth, token(issuer, algorithm))


@pytest.mark.parametrize(
    ("published", "named"),
    [("RS256", "ES256"), ("ES256", "RS256"), ("ES256", "ES384"), ("EdDSA", "PS256")],
)
async def test_a_key_serves_no_algorithm_of_another_kind(
    issuer: Issuer, published: str, named: str
) -> None:
    """A token cannot choose how its key is read."""
    issuer.publish("one", algorithm=published)
    auth = trusting(issuer)
    crossed = issuer.token("two", algorithm=named, headers={"kid": "one"}, iss="us", aud="codeq")

    assert await reason(auth, crossed)


async def test_a_key_made_for_one_algorithm_serves_that_alone(issuer: Issuer) -> None:
    """The issuer's description of the key decides."""
    issuer.publish("one", algorithm="RS256")
    issuer.odd = [{**issuer.described("one"), "alg": "RS256"}]
    auth = trusting(issuer)

    good = await auth.authenticate(f"Bearer {token(issuer, 'RS256')}", Access.PRODUCER)

    assert "s" == good.subject
    assert "the key is for RS256" in await reason(auth, token(issuer, "PS256"))


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", ""])
async def test_a_token_without_a_signature_is_refused(issuer: Issuer, name: str) -> None:
    """The spelling of the algorithm's name does not matter."""
    issuer.publish("one")
    auth = trusting(issuer)

    assert "is not allowed" in await reason(auth, forged({"alg": name, "kid": "one"}))


@pytest.mark.parametrize("name", ["HS256", "HS384", "HS512", "hs256"])
async def test_a_published_key_is_no_shared_secret(issuer: Issuer, name: str) -> None:
    """Every caller knows the public key, so no form of it may serve as a shared secret."""
    issuer.publish("one", algorithm="RS256")
    auth = trusting(issuer)
    described = issuer.described("one")

    for secret in (json.dumps(described), str(described["n"])):
        assert "is not allowed" in await reason(
            auth, forged({"alg": name, "kid": "one"}, secret.encode())
        )


async def test_only_public_keys_for_signatures_are_loaded(issuer: Issuer) -> None:
    """Shared secrets, private and weak keys, encryption keys and garbage are all skipped."""
    issuer.publish("one", algorithm="RS256")
    private = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(make_key("ES256")))
    weak = make_key("RS256", bits=1024)
    issuer.odd = [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "shared"},
        {**private, "kid": "private"},
        {**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(weak.public_key())), "kid": "weak"},
        {**issuer.described("one"), "kid": "encrypts", "use": "enc"},
        {**issuer.described("one"), "kid": "wraps", "key_ops": ["wrapKey"]},
        {"kty": "RSA", "kid": "rubbish", "n": 5, "e": None},
        {"kty": "EC", "kid": "off", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": "OKP", "kid": "agrees", "crv": "X25519", "x": "A" * 43},
        {"kid": "empty"},
        {},
    ]
    auth = trusting(issuer)
    kids = ("shared", "private", "weak", "encrypts", "wraps", "rubbish", "off", "agrees", "empty")

    good = await auth.authenticate(f"Bearer {token(issuer, 'RS256')}", Access.PRODUCER)
    refused = [
        await reason(auth, issuer.token("one", algorithm="RS256", headers={"kid": kid}, iss="us"))
        for kid in kids
    ]

    assert "s" == good.subject
    assert ["no published key of that id"] * len(kids) == refused


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "ES256", "kid": 7},
        {"alg": "ES256", "kid": ["one"]},
        {"alg": ["ES256"], "kid": "one"},
        {"alg": None, "kid": "one"},
        {"kid": "one"},
        {"alg": "ES256", "kid": "one", "crit": ["exp"], "exp": 1},
        {"alg": "ES256", "kid": "one", "b64": False},
        {"alg": "ES256", "kid": "one", "jwk": {"kty": "EC"}, "x5u": "http://127.0.0.1:1/"},
    ],
)
async def test_a_header_that_is_odd_makes_the_token_invalid(
    issuer: Issuer, header: dict[str, object]
) -> None:
    """No header crashes a node, supplies its own key or demands an unknown extension."""
    issuer.publish("one")
    auth = trusting(issuer)

    assert await reason(auth, forged(header, b"x"))


@pytest.mark.parametrize(
    "text",
    [".", "..", "a.b.c", "e30.e30.", "e30.e30.AA", "\x00.\x00.\x00", "é.é.é", "\udcff.e30.AA"],
)
async def test_a_text_that_is_no_token_is_invalid(issuer: Issuer, text: str) -> None:
    """The text of the header does not matter."""
    auth = trusting(issuer)

    assert await reason(auth, text)


async def test_a_header_nested_beyond_reading_is_invalid(issuer: Issuer) -> None:
    """Such a header fits a header line, and must cost no more than a refusal."""
    auth = trusting(issuer)
    nested = base64.urlsafe_b64encode(b'{"alg":' + b"[" * 5000 + b"]" * 5000 + b"}").decode()

    assert "Invalid header string" in await reason(auth, f"{nested.rstrip('=')}.e30.AA")


async def test_a_strangers_text_is_cut_in_the_reason(issuer: Issuer) -> None:
    """The log must not repeat a stranger's text at length."""
    auth = trusting(issuer)

    assert len(await reason(auth, forged({"alg": "x" * 4000}))) < 100


SECRET = "a secret of more than thirty-two bytes"


@pytest.mark.parametrize(
    ("fields", "good"),
    [
        ({"exp": -30}, True),
        ({"exp": -90}, False),
        ({"nbf": 30}, True),
        ({"nbf": 90}, False),
        ({"iat": 30}, True),
        ({"iat": 90}, False),
    ],
)
async def test_clocks_may_differ_by_the_skew_and_no_more(
    fields: dict[str, int], *, good: bool
) -> None:
    """The skew is a minute each way, for expiry, not-before and issued-at."""
    provider = AuthProviderSettings(kind="hs256", secret=SECRET)
    auth = Authenticator(
        AuthSettings(producer=(provider,), tenant_fallback="default", clock_skew_seconds=60)
    )
    now_s = int(time.time())
    claims = {"sub": "s", "exp": now_s + 600} | {
        name: now_s + offset_s for name, offset_s in fields.items()
    }
    header = f"Bearer {jwt.encode(claims, SECRET, algorithm='HS256')}"

    if good:
        assert "s" == (await auth.authenticate(header, Access.PRODUCER)).subject
    else:
        assert await reason(auth, header.removeprefix("Bearer "))


@pytest.mark.parametrize("instant", ["Infinity", "1e400", "NaN", "[]", "{}", '"soon"', "null"])
@pytest.mark.parametrize("claim", ["exp", "nbf", "iat"])
async def test_an_invalid_instant_makes_the_token_invalid(claim: str, instant: str) -> None:
    """The token is invalid even if the issuer itself signed that value."""
    provider = AuthProviderSettings(kind="hs256", secret=SECRET)
    auth = Authenticator(AuthSettings(producer=(provider,), tenant_fallback="default"))
    fields = {"sub": '"s"', "exp": str(int(time.time()) + 60), claim: instant}
    claims = "{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}"
    odd = jwt.api_jws.encode(claims.encode(), SECRET, algorithm="HS256")

    assert await reason(auth, odd)


@pytest.mark.parametrize("instant", ["1" + "0" * 400, '"4102444800"', "true"])
async def test_an_expiry_that_is_no_number_of_seconds_makes_the_token_invalid(instant: str) -> None:
    """A string of digits is invalid too, because libraries disagree on its meaning."""
    provider = AuthProviderSettings(kind="hs256", secret=SECRET)
    auth = Authenticator(AuthSettings(producer=(provider,), tenant_fallback="default"))
    odd = jwt.api_jws.encode(f'{{"sub":"s","exp":{instant}}}'.encode(), SECRET, algorithm="HS256")

    assert await reason(auth, odd)
