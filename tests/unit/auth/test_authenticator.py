"""Authenticator: the callers that are admitted, and the answers to the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import jwt
import pytest

from codeq_cluster.auth import Access, AccessRefused, Authenticator, Role
from codeq_cluster.auth.identity import WORKER_SCOPES
from codeq_cluster.auth.jwks import FETCH_TIMEOUT_S, KeysUnavailable
from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.settings import AuthProviderSettings, AuthSettings, StaticToken

from .issuer import Issuer

SECRET = "a secret of more than thirty-two bytes"


def static(*tokens: StaticToken) -> AuthProviderSettings:
    """Return the settings of a provider of static tokens."""
    return AuthProviderSettings(kind="static", tokens=tokens)


def authenticator(
    *,
    producer: tuple[AuthProviderSettings, ...] = (),
    worker: tuple[AuthProviderSettings, ...] = (),
    producer_as_worker: bool = False,
    cached_tokens_max: int = 10,
) -> Authenticator:
    """Return an authenticator whose fallback is the default tenant."""
    return Authenticator(
        AuthSettings(
            producer=producer,
            worker=worker,
            tenant_fallback="default",
            allow_producer_as_worker=producer_as_worker,
            cached_tokens_max=cached_tokens_max,
        )
    )


async def refusal(auth: Authenticator, header: str | None, access: Access) -> tuple[int, str]:
    """Return the answer for a caller who is not admitted."""
    with pytest.raises(AccessRefused) as refused:
        await auth.authenticate(header, access)
    return refused.value.status, refused.value.text


PRODUCER = static(StaticToken(token="produce", subject="p"))
ADMIN = static(StaticToken(token="rule", subject="r", scopes=("codeq:admin",)))
WORKER = static(
    StaticToken(token="work", subject="w", scopes=("codeq:claim",), event_types=("a",)),
    StaticToken(token="no-types", subject="w", scopes=("codeq:claim",)),
    StaticToken(token="no-scope", subject="w", event_types=("a",)),
)


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (None, "missing Authorization header"),
        ("", "missing Authorization header"),
        ("   ", "missing Authorization header"),
        ("Bearer", "invalid Authorization format"),
        ("produce", "invalid Authorization format"),
        ("Basic produce", "invalid Authorization format"),
        ("Bearer produce x", "invalid Authorization format"),
        ("Bearer wrong", "invalid token"),
        ("Bearer \udcff", "invalid token"),
    ],
)
async def test_a_header_without_a_caller_is_refused_with_the_reason(
    header: str | None, text: str
) -> None:
    """Clients compare the text."""
    auth = authenticator(producer=(PRODUCER,))

    assert (401, text) == await refusal(auth, header, Access.PRODUCER)


async def test_the_scheme_is_case_insensitive() -> None:
    """HTTP requires this."""
    auth = authenticator(producer=(PRODUCER,))

    assert "p" == (await auth.authenticate("bEaReR produce", Access.PRODUCER)).subject


async def test_each_class_of_route_asks_its_own_providers() -> None:
    """A producer's token is not valid for a worker's routes, nor the reverse; reads accept both."""
    auth = authenticator(producer=(PRODUCER,), worker=(WORKER,))

    assert (401, "invalid token") == await refusal(auth, "Bearer produce", Access.WORKER)
    assert (401, "invalid token") == await refusal(auth, "Bearer work", Access.PRODUCER)
    assert "p" == (await auth.authenticate("Bearer produce", Access.ANY)).subject
    assert "w" == (await auth.authenticate("Bearer work", Access.ANY)).subject


async def test_a_worker_needs_event_types_and_a_scope() -> None:
    """Each missing claim has its own error text."""
    auth = authenticator(worker=(WORKER,))

    assert (401, "missing eventTypes") == await refusal(auth, "Bearer no-types", Access.WORKER)
    assert (401, "missing scope") == await refusal(auth, "Bearer no-scope", Access.WORKER)


async def test_only_an_admin_enters_admin_routes() -> None:
    """Any provider's token may be an admin's."""
    auth = authenticator(producer=(PRODUCER,), worker=(ADMIN,))

    assert {Role.ADMIN} == (await auth.authenticate("Bearer rule", Access.ADMIN)).roles
    assert (
        401,
        "unauthorized. Admin only",
    ) == await refusal(auth, "Bearer produce", Access.ADMIN)


async def test_only_an_operator_enters_the_clusters_routes() -> None:
    """An admin is refused there, and an operator is refused on the admin's routes."""
    operator = static(StaticToken(token="operate", subject="o", scopes=("codeq:operator",)))
    auth = authenticator(producer=(PRODUCER, ADMIN), worker=(operator,))
    forbidden = (403, "forbidden. Operator only (scope codeq:operator)")

    identity = await auth.authenticate("Bearer operate", Access.OPERATOR)

    assert {Role.OPERATOR} == identity.roles
    assert forbidden == await refusal(auth, "Bearer rule", Access.OPERATOR)
    assert forbidden == await refusal(auth, "Bearer produce", Access.OPERATOR)
    assert (401, "invalid token") == await refusal(auth, "Bearer nobody", Access.OPERATOR)
    assert (401, "unauthorized. Admin only") == await refusal(auth, "Bearer operate", Access.ADMIN)


@pytest.mark.parametrize("access", [Access.PRODUCER, Access.TENANT])
async def test_an_operator_alone_has_no_tenants_data(access: Access) -> None:
    """Its issuer may be the producers', whose tokens have no claims; it may read the leaders."""
    operator = static(StaticToken(token="operate", subject="o", scopes=("codeq:operator",)))
    auth = authenticator(producer=(operator,), worker=(operator,), producer_as_worker=True)
    refused = (403, "forbidden. An operator has no tenant's data: use a token of the tenant")

    assert refused == await refusal(auth, "Bearer operate", access)
    assert (401, "missing eventTypes") == await refusal(auth, "Bearer operate", Access.WORKER)
    assert "o" == (await auth.authenticate("Bearer operate", Access.ANY)).subject


@pytest.mark.parametrize(
    "token",
    [
        StaticToken(token="both", subject="b", scopes=("codeq:operator", "codeq:admin")),
        StaticToken(token="both", subject="b", scopes=("codeq:operator", "codeq:claim")),
        StaticToken(token="both", subject="b", scopes=("codeq:operator",), event_types=("a",)),
    ],
)
async def test_an_operator_keeps_its_rights_as_admin_or_worker(
    token: StaticToken,
) -> None:
    """One more scope takes no right away."""
    auth = authenticator(producer=(static(token),), worker=(static(token),))

    assert "b" == (await auth.authenticate("Bearer both", Access.PRODUCER)).subject
    assert "b" == (await auth.authenticate("Bearer both", Access.TENANT)).subject
    assert "b" == (await auth.authenticate("Bearer both", Access.OPERATOR)).subject


async def test_a_producer_serves_as_worker_only_where_that_is_allowed() -> None:
    """It then has every worker scope and every command."""
    auth = authenticator(producer=(PRODUCER,), worker=(WORKER,), producer_as_worker=True)

    identity = await auth.authenticate("Bearer produce", Access.WORKER)

    assert "p" == identity.subject
    assert ("*",) == identity.event_types
    assert identity.scopes >= WORKER_SCOPES


async def test_a_valid_worker_token_gains_nothing_by_being_a_producer_too() -> None:
    """A worker without a scope still lacks it."""
    both = static(
        StaticToken(token="work", subject="w", scopes=("codeq:claim",), event_types=("a",))
    )
    auth = authenticator(producer=(both,), worker=(both,), producer_as_worker=True)

    identity = await auth.authenticate("Bearer work", Access.WORKER)

    assert {"codeq:claim"} == identity.scopes
    assert ("a",) == identity.event_types


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (StaticToken(token="half", subject="w", event_types=("a",)), "missing scope"),
        (StaticToken(token="half", subject="w", scopes=("codeq:claim",)), "missing eventTypes"),
    ],
)
async def test_half_a_worker_token_is_not_made_whole_by_being_a_producer_too(
    token: StaticToken, text: str
) -> None:
    """The token is bound to its claims, and must not gain every command and every scope."""
    both = static(token)
    auth = authenticator(producer=(both,), worker=(both,), producer_as_worker=True)

    assert (401, text) == await refusal(auth, "Bearer half", Access.WORKER)


async def test_a_token_without_a_workers_claims_serves_as_worker_though_both_know_it() -> None:
    """As in development, one issuer serves all; an admin's scope is not a claim of a worker."""
    both = static(StaticToken(token="rule", subject="r", scopes=("codeq:admin",)))
    auth = authenticator(producer=(both,), worker=(both,), producer_as_worker=True)

    identity = await auth.authenticate("Bearer rule", Access.WORKER)

    assert ("*",) == identity.event_types
    assert WORKER_SCOPES | {"codeq:admin"} == identity.scopes


async def test_a_refused_stranger_gets_a_workers_error() -> None:
    """The fallback to producers does not change the text."""
    auth = authenticator(producer=(PRODUCER,), worker=(WORKER,), producer_as_worker=True)

    assert (401, "missing eventTypes") == await refusal(auth, "Bearer no-types", Access.WORKER)


async def test_a_caller_let_in_once_is_known_by_its_header_on_that_class_alone() -> None:
    """A cached verdict for reads admits to no other routes."""
    auth = authenticator(producer=(PRODUCER,), worker=(WORKER,))
    header = "Bearer produce"

    identity = await auth.authenticate(header, Access.ANY)

    assert identity == auth.known(header, Access.ANY)
    assert auth.known(header, Access.WORKER) is None
    assert auth.known(header, Access.PRODUCER) is None
    assert auth.known(None, Access.ANY) is None


async def test_the_oldest_remembered_token_makes_room() -> None:
    """Memory is bounded, however many tokens come."""
    tokens = tuple(StaticToken(token=f"t{i}", subject=f"s{i}") for i in range(3))
    auth = authenticator(producer=(static(*tokens),), cached_tokens_max=2)

    for token in tokens:
        await auth.authenticate(f"Bearer {token.token}", Access.PRODUCER)

    known = [auth.known(f"Bearer {token.token}", Access.PRODUCER) for token in tokens]
    assert [False, True, True] == [identity is not None for identity in known]


def signed(**fields: object) -> str:
    """Return a header whose token is signed with the shared secret."""
    claims = {"sub": "s", "exp": int(time.time()) + 60, **fields}
    claims = {name: value for name, value in claims.items() if value is not None}
    return f"Bearer {jwt.encode(claims, SECRET, algorithm='HS256')}"


async def test_a_verified_token_is_forgotten_when_it_expires() -> None:
    """A cached verdict never outlives the token."""
    now_s = time.time()
    provider = AuthProviderSettings(kind="hs256", secret=SECRET, cache_seconds=3600)
    auth = Authenticator(
        AuthSettings(producer=(provider,), tenant_fallback="default"),
        now_ms=lambda: int(now_s * 1000),
    )
    header = signed(exp=int(now_s) + 30)
    await auth.authenticate(header, Access.PRODUCER)
    before = auth.known(header, Access.PRODUCER)
    now_s += 30

    assert before is not None
    assert auth.known(header, Access.PRODUCER) is None


async def test_one_token_takes_one_place_whatever_spaces_its_header_has() -> None:
    """Other callers' verdicts stay, and the caller is let in all the same."""
    provider = AuthProviderSettings(kind="hs256", secret=SECRET, cache_seconds=3600)
    auth = authenticator(producer=(PRODUCER, provider), cached_tokens_max=2)
    await auth.authenticate("Bearer produce", Access.PRODUCER)
    header = signed()
    spelt = [header.replace(" ", space) for space in ("  ", "\t", " \t")] + [f" {header}"]

    for each in (header, *spelt):
        assert "s" == (await auth.authenticate(each, Access.PRODUCER)).subject

    assert "s" == getattr(auth.known(header, Access.PRODUCER), "subject", None)
    assert "p" == getattr(auth.known("Bearer produce", Access.PRODUCER), "subject", None)
    assert [None] * 4 == [auth.known(each, Access.PRODUCER) for each in spelt]


@pytest.mark.parametrize(
    "fields",
    [
        {"exp": None},
        {"sub": None},
        {"sub": ""},
        {"sub": 7},
        {"exp": "soon"},
        {"exp": 1},
        {"nbf": 2**32},  # This instant is in the year 2106.
        {"iss": "another"},
        {"aud": "another"},
        {"aud": None},
        {"sub": "\ud800"},
        {"sub": "s" * 1025},
    ],
)
async def test_a_jwt_that_fails_a_check_is_an_invalid_token(fields: dict[str, object]) -> None:
    """Expiry, subject, issuer and audience are all required."""
    provider = AuthProviderSettings(kind="hs256", secret=SECRET, issuer="us", audience="codeq")
    auth = authenticator(producer=(provider,))
    good = await auth.authenticate(signed(iss="us", aud="codeq"), Access.PRODUCER)

    assert "s" == good.subject
    assert (401, "invalid token") == await refusal(
        auth, signed(**{"iss": "us", "aud": "codeq", **fields}), Access.PRODUCER
    )


async def test_an_unsigned_token_is_invalid() -> None:
    """The algorithm `none` is on no list."""
    provider = AuthProviderSettings(kind="hs256", secret=SECRET)
    unsigned = jwt.encode({"sub": "s", "exp": int(time.time()) + 60}, None, algorithm="none")
    auth = authenticator(producer=(provider,))

    assert (401, "invalid token") == await refusal(auth, f"Bearer {unsigned}", Access.PRODUCER)


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    """Run an issuer with one key."""
    async with Issuer() as running:
        running.publish("one")
        yield running


def by_keys(issuer: Issuer) -> AuthProviderSettings:
    """Return the settings of a provider that trusts the issuer's keys."""
    return AuthProviderSettings(kind="jwks", jwks_url=issuer.url)


async def test_a_token_signed_with_a_published_key_is_accepted(issuer: Issuer) -> None:
    """The test goes the whole way: header, key server, signature."""
    auth = authenticator(producer=(by_keys(issuer),))

    identity = await auth.authenticate(f"Bearer {issuer.token('one', tid='acme')}", Access.PRODUCER)

    assert ("s", "acme") == (identity.subject, identity.tenant)


async def test_a_token_signed_with_another_key_is_invalid(issuer: Issuer) -> None:
    """Neither an unknown key nor a copied key id helps."""
    auth = authenticator(producer=(by_keys(issuer),))
    unknown = issuer.token("two")
    borrowed = issuer.token("two", headers={"kid": "one"})

    assert (401, "invalid token") == await refusal(auth, f"Bearer {unknown}", Access.PRODUCER)
    assert (401, "invalid token") == await refusal(auth, f"Bearer {borrowed}", Access.PRODUCER)


async def test_a_provider_may_tolerate_more_or_less_of_a_skew_than_the_others(
    issuer: Issuer,
) -> None:
    """The provider's own skew replaces the general minute for its own tokens."""
    patient = replace(by_keys(issuer), clock_skew_s=300.0)
    strict = replace(by_keys(issuer), clock_skew_s=0.0)
    now_s = int(time.time())
    late, later = (f"Bearer {issuer.token('one', exp=now_s - past)}" for past in (30, 90))

    judged = {
        (name, header): await _enters(authenticator(producer=(provider,)), header)
        for name, provider in (("patient", patient), ("usual", by_keys(issuer)), ("strict", strict))
        for header in (late, later)
    }

    assert {
        ("patient", late): True,
        ("patient", later): True,
        ("usual", late): True,
        ("usual", later): False,
        ("strict", late): False,
        ("strict", later): False,
    } == judged


async def _enters(auth: Authenticator, header: str) -> bool:
    try:
        await auth.authenticate(header, Access.PRODUCER)
    except AccessRefused:
        return False
    return True


async def test_a_provider_may_wait_less_for_its_issuer_than_the_others(issuer: Issuer) -> None:
    """Its fetch ends at its own timeout, before the usual one."""
    issuer.silent.clear()
    auth = authenticator(producer=(replace(by_keys(issuer), fetch_timeout_s=0.05),))

    with pytest.raises(KeysUnavailable):
        async with asyncio.timeout(FETCH_TIMEOUT_S / 2):
            await auth.authenticate(f"Bearer {issuer.token('one')}", Access.PRODUCER)
    issuer.silent.set()


@pytest.mark.parametrize("iss", ["theirs", None])
async def test_a_token_of_another_issuer_does_not_wait_for_this_ones_keys(
    issuer: Issuer, iss: str | None
) -> None:
    """It causes no fetch of them either, though its key id is unknown here."""
    issuer.silent.clear()
    ours = replace(by_keys(issuer), issuer="ours")
    async with Issuer() as other:
        other.publish("another")
        token = other.token("another", iss=iss)
        auth = authenticator(producer=(ours, by_keys(other)))

        async with asyncio.timeout(FETCH_TIMEOUT_S / 2):
            identity = await auth.authenticate(f"Bearer {token}", Access.PRODUCER)
    issuer.silent.set()

    assert "s" == identity.subject
    assert 0 == issuer.fetches


async def test_a_public_key_never_serves_as_a_shared_secret(issuer: Issuer) -> None:
    """The configured list decides the algorithm, not the token."""
    auth = authenticator(producer=(by_keys(issuer),))
    forged = jwt.encode(
        {"sub": "s", "exp": int(time.time()) + 60},
        SECRET,
        algorithm="HS256",
        headers={"kid": "one"},
    )

    assert (401, "invalid token") == await refusal(auth, f"Bearer {forged}", Access.PRODUCER)


async def test_a_token_that_cannot_be_judged_is_not_called_invalid(issuer: Issuer) -> None:
    """An unreachable issuer proves nothing; another provider's approval still counts."""
    issuer.broken = True
    alone = authenticator(producer=(by_keys(issuer),))
    with_static = authenticator(producer=(by_keys(issuer), PRODUCER))

    with pytest.raises(KeysUnavailable):
        await alone.authenticate(f"Bearer {issuer.token('one')}", Access.PRODUCER)
    assert "p" == (await with_static.authenticate("Bearer produce", Access.PRODUCER)).subject


@pytest.mark.parametrize(
    ("provider", "named"),
    [
        (AuthProviderSettings(kind="ldap"), "auth kind: 'ldap'"),
        (AuthProviderSettings(kind="hs256", secret="short"), "auth secret"),
        (AuthProviderSettings(kind="hs256", secret=SECRET, algorithms=("RS256",)), "RS256"),
        (AuthProviderSettings(kind="jwks", jwks_url="ftp://x"), "auth jwks_url: 'ftp://x'"),
        (
            AuthProviderSettings(kind="jwks", jwks_url="https://x", algorithms=("HS256",)),
            "auth algorithms: HS256",
        ),
    ],
)
def test_a_provider_that_cannot_work_stops_the_start(
    provider: AuthProviderSettings, named: str
) -> None:
    """The error names the key and the value."""
    with pytest.raises(ConfigInvalid, match=named):
        authenticator(producer=(provider,))
