"""Tokens: the ways to verify one. Nothing is cached here."""

from __future__ import annotations

import hashlib
import hmac
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import jwt

from codeq_cluster.auth.identity import Claims, claims_of
from codeq_cluster.auth.jwks import FETCH_TIMEOUT_S, Jwks
from codeq_cluster.core.bounds import SUBJECT_BYTES_MAX
from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.settings import AuthProviderSettings, StaticToken
from codeq_cluster.settings.auth import HS_SECRET_BYTES_MIN, JWKS_ALGORITHMS

_HS_ALGORITHMS = ("HS256",)
_EXPIRY_S_MAX = 2**53  # Beyond that a float skips seconds.
_REASON_CHARS_MAX = 100  # The library's message may quote a stranger's text.
_SHOWN_CHARS_MAX = 20  # Of a stranger's text in a token, in a line of the log.


class TokenRejected(Exception):
    """The provider does not accept the token; the text is for the log, never for the caller."""


class TokenVerifier(ABC):
    """Verifies tokens."""

    @abstractmethod
    async def verify(self, token: str) -> Claims:
        """Return the claims of a valid token.

        Raises:
            TokenRejected: The token is not this provider's, or is no longer valid.
            KeysUnavailable: The token cannot be verified now.
        """

    async def start(self) -> None:  # noqa: B027 - most have none
        """Start background work, if there is any."""

    async def stop(self) -> None:  # noqa: B027
        """End background work."""


class StaticProvider(TokenVerifier):
    """Accepts tokens known in advance; only their digests are kept."""

    def __init__(self, tokens: Sequence[StaticToken]) -> None:
        self._known = tuple((_digest(token.token), _static_claims(token)) for token in tokens)

    async def verify(self, token: str) -> Claims:
        """Return the token's claims, in a time that reveals nothing about other tokens."""
        digest = _digest(token)
        found = None
        for known, claims in self._known:
            if hmac.compare_digest(known, digest):
                found = claims
        if found is None:
            raise TokenRejected("no such static token")
        return found


class HmacProvider(TokenVerifier):
    """Accepts JWTs signed with a shared secret."""

    def __init__(self, settings: AuthProviderSettings, *, skew_s: float) -> None:
        self._algorithms = settings.algorithms or _HS_ALGORITHMS
        if not all(name in ("HS256", "HS384", "HS512") for name in self._algorithms):
            raise ConfigInvalid(
                f"auth algorithms: {', '.join(self._algorithms)}; hs256 allows HS256, HS384, HS512"
            )
        if len(settings.secret.encode()) < HS_SECRET_BYTES_MIN:
            raise ConfigInvalid(
                f"auth secret: too short; hs256 needs at least {HS_SECRET_BYTES_MIN} bytes"
            )
        self._settings = settings
        self._skew_s = skew_s

    async def verify(self, token: str) -> Claims:
        """Check signature, times, issuer and audience; return the claims."""
        return _decoded(
            token,
            self._settings.secret,
            algorithms=self._algorithms,
            settings=self._settings,
            skew_s=self._skew_s,
            keep_s=self._settings.cache_seconds,
        )


class JwksProvider(TokenVerifier):
    """Accepts JWTs signed with a key that an issuer publishes."""

    def __init__(
        self,
        settings: AuthProviderSettings,
        *,
        skew_s: float,
        allow_http: bool,
        monotonic: Callable[[], float],
    ) -> None:
        self._algorithms = settings.algorithms or JWKS_ALGORITHMS
        if not all(name in JWKS_ALGORITHMS for name in self._algorithms):
            raise ConfigInvalid(
                f"auth algorithms: {', '.join(self._algorithms)}; "
                f"jwks allows {', '.join(JWKS_ALGORITHMS)}"
            )
        if not settings.jwks_url.startswith(("http://", "https://")):
            raise ConfigInvalid(f"auth jwks_url: {settings.jwks_url!r}; must be an http(s) URL")
        if settings.keys_exposed and not allow_http:
            raise ConfigInvalid(
                f"auth jwks_url: {settings.jwks_url!r}; must be https, or http on this host, "
                "unless auth.allowHttpJwks is true"
            )
        self._settings = settings
        self._skew_s = skew_s
        self._keys = Jwks(
            settings.jwks_url,
            ttl_s=settings.cache_seconds,
            timeout_s=settings.fetch_timeout_s or FETCH_TIMEOUT_S,
            clock=monotonic,
        )

    async def verify(self, token: str) -> Claims:
        """Find the token's key, then check signature, times, issuer and audience.

        The issuer is also compared first, unverified: a token of another issuer must not wait for
        this one's keys, nor cause a fetch of them.
        """
        try:
            unverified = jwt.decode_complete(
                token,
                issuer=self._settings.issuer or None,
                options={"verify_signature": False, "verify_iss": True},
            )
        except (jwt.PyJWTError, UnicodeEncodeError) as error:
            # UnicodeEncodeError: header bytes that are not UTF-8 arrive here as surrogates.
            raise _rejected(error) from error
        header = unverified["header"]
        algorithm = header.get("alg")
        if algorithm not in self._algorithms:
            raise TokenRejected(f"algorithm {str(algorithm)[:_SHOWN_CHARS_MAX]!r} is not allowed")
        key = await self._keys.key(header.get("kid"))
        if key is None:
            raise TokenRejected("no published key of that id")
        if key.algorithm and key.algorithm != algorithm:
            raise TokenRejected(f"the key is for {key.algorithm}, the token names {algorithm}")
        return _decoded(
            token,
            key.public,
            algorithms=(algorithm,),
            settings=self._settings,
            skew_s=self._skew_s,
            # Cached verdicts are valid only for the key set that produced them: a withdrawn key
            # admits nobody.
            keep_s=self._keys.fresh_s(),
        )

    async def start(self) -> None:
        """Start to keep the keys fresh."""
        await self._keys.start()

    async def stop(self) -> None:
        """Stop keeping the keys fresh."""
        await self._keys.stop()


def make_provider(
    settings: AuthProviderSettings,
    *,
    skew_s: float,
    allow_http: bool = False,
    monotonic: Callable[[], float] = time.monotonic,
) -> TokenVerifier:
    """Return the provider that the settings describe.

    Args:
        skew_s: Tolerated between the issuer's clock and this node's, unless the provider has its
            own.
        allow_http: Keys may be fetched from another host without TLS.
        monotonic: Seconds that never jump, for the age of keys.

    Raises:
        ConfigInvalid: The kind is unknown or one of its fields is invalid.
    """
    if settings.clock_skew_s is not None:
        skew_s = settings.clock_skew_s
    match settings.kind:
        case "static":
            return StaticProvider(settings.tokens)
        case "hs256":
            return HmacProvider(settings, skew_s=skew_s)
        case "jwks":
            return JwksProvider(settings, skew_s=skew_s, allow_http=allow_http, monotonic=monotonic)
        case _:
            raise ConfigInvalid(f"auth kind: {settings.kind!r}; must be static, hs256 or jwks")


def _decoded(
    token: str,
    key: object,
    *,
    algorithms: Sequence[str],
    settings: AuthProviderSettings,
    skew_s: float,
    keep_s: float,
) -> Claims:
    try:
        claims = jwt.decode(
            token,
            key,  # type: ignore[arg-type]  # the key's class differs by algorithm
            algorithms=algorithms,
            issuer=settings.issuer or None,
            audience=settings.audience or None,
            leeway=skew_s,
            options={"require": ["exp", "sub"], "verify_aud": bool(settings.audience)},
        )
    except (jwt.PyJWTError, TypeError, ValueError, OverflowError, RecursionError) as error:
        # All but the first: PyJWT lets odd claims and mismatched keys through to its parts.
        raise _rejected(error) from error
    _check_subject(claims["sub"])
    _check_expiry(claims["exp"])
    return claims_of(claims, keep_s=keep_s)


def _rejected(error: Exception) -> TokenRejected:
    return TokenRejected(f"{type(error).__name__}: {error}"[:_REASON_CHARS_MAX])


def _check_expiry(expiry: object) -> None:
    """Reject an expiry that RFC 7519 does not allow, or that no float can hold."""
    if isinstance(expiry, bool) or not isinstance(expiry, int | float):
        raise TokenRejected("the expiry is no number")
    if expiry > _EXPIRY_S_MAX:
        raise TokenRejected("the expiry is beyond any calendar")


def _check_subject(subject: object) -> None:
    """Reject a subject that cannot be stored as a worker's name, or is too long."""
    if not subject or not isinstance(subject, str):
        raise TokenRejected("blank subject")
    try:
        size = len(subject.encode())
    except UnicodeEncodeError as error:
        raise TokenRejected("the subject is no text") from error
    if size > SUBJECT_BYTES_MAX:
        raise TokenRejected(f"the subject is longer than {SUBJECT_BYTES_MAX} bytes")


def _static_claims(token: StaticToken) -> Claims:
    return Claims(
        subject=token.subject,
        tenants=() if token.tenant is None else (token.tenant,),
        scopes=frozenset(token.scopes),
        event_types=token.event_types,
    )


def _digest(token: str) -> bytes:
    # surrogateescape: header bytes that are no UTF-8 reach this as surrogates.
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
