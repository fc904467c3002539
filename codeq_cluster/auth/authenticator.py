"""Authenticator: turns an Authorization header into an identity; caches verified tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from msgspec import structs

from codeq_cluster.auth.identity import (
    NO_TENANT_DATA,
    PAGE_ALONE,
    WORKER_SCOPES,
    Access,
    AccessRefused,
    Claims,
    Identity,
    Role,
    identify,
    lacks,
)
from codeq_cluster.auth.jwks import KeysUnavailable
from codeq_cluster.auth.tokens import TokenRejected, TokenVerifier, make_provider
from codeq_cluster.settings import AuthSettings

_TOKEN_CHARS_MAX = 8000  # A header line is bounded anyway; this bounds the cache.


class Authenticator:
    """Decides which callers are admitted.

    Args:
        now_ms: Unix milliseconds.
        monotonic: Seconds that never jump, for the age of keys and of cached verdicts.
    """

    def __init__(
        self,
        settings: AuthSettings,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._now_ms = now_ms
        self._monotonic = monotonic
        # Producers and workers may share an issuer: fetch its keys once and verify a token once.
        made = {
            each: make_provider(
                each,
                skew_s=settings.clock_skew_seconds,
                allow_http=settings.allow_http_jwks,
                monotonic=monotonic,
            )
            for each in (*settings.producer, *settings.worker)
        }
        self._providers = tuple(made.values())
        self._producer = tuple(made[each] for each in settings.producer)
        self._worker = tuple(made[each] for each in settings.worker)
        # Each with the monotonic seconds until which it may be cached; the token's end is its own.
        self._remembered: dict[Access, dict[str, tuple[Identity, float]]] = {
            access: {} for access in Access
        }

    async def start(self) -> None:
        """Start to keep published keys fresh."""
        for provider in self._providers:
            await provider.start()

    async def stop(self) -> None:
        """Stop keeping published keys fresh."""
        for provider in self._providers:
            await provider.stop()

    def known(self, header: str | None, access: Access, scope: str = "") -> Identity | None:
        """Return the identity of a header admitted before, while its verification is valid.

        Args:
            header: The Authorization header as it came, None if there is none.
            scope: Nobody without it is returned; empty for none.
        """
        if header is None:
            return None
        remembered = self._remembered[access].get(header)
        if remembered is None:
            return None
        identity, until_s = remembered
        if until_s <= self._monotonic() or identity.expires_s * 1000 <= self._now_ms():
            return None
        return identity if not scope or scope in identity.scopes else None

    async def authenticate(self, header: str | None, access: Access) -> Identity:
        """Verify the header's token for a route of that access and return the caller's identity.

        Args:
            header: The Authorization header as it came, None if there is none.
            access: Anything but OPEN.

        Raises:
            AccessRefused: With the caller's answer.
            KeysUnavailable: The token cannot be verified now.
        """
        if header is None or not header.strip():
            raise AccessRefused(401, "missing Authorization header")
        parts = header.split()
        if len(parts) != 2 or parts[0].lower() != "bearer":
            raise AccessRefused(401, "invalid Authorization format")
        identity, claims = await self._admit(parts[1], access)
        self._remember(header, access, identity, claims)
        return identity

    async def _admit(self, token: str, access: Access) -> tuple[Identity, Claims]:
        match access:
            case Access.PRODUCER:
                return await self._admit_to_tenant(token, self._producer)
            case Access.WORKER:
                return await self._admit_worker(token)
            case Access.TENANT:
                return await self._admit_to_tenant(token, self._providers)
            case Access.ANY:
                return self._identified(await self._verify(token, self._providers))
            case Access.ADMIN:
                return await self._admit_role(token, Role.ADMIN)
            case Access.OPERATOR:
                return await self._admit_role(token, Role.OPERATOR)
            case Access.PAGE:
                return await self._admit_to_page(token)
            case Access.OPEN:
                raise AssertionError("an open route asks for no identity")

    async def _admit_worker(self, token: str) -> tuple[Identity, Claims]:
        may_be_producer = self._settings.allow_producer_as_worker
        try:
            identity, claims = self._identified(await self._verify(token, self._worker))
            # Only a token without any worker's claim may pass as a producer's. An incomplete worker
            # token must not gain rights from what it lacks.
            may_be_producer &= not identity.names_a_worker
            if not identity.event_types:
                raise AccessRefused(401, "missing eventTypes")  # noqa: TRY301
            if not identity.scopes:
                raise AccessRefused(401, "missing scope")  # noqa: TRY301
        except AccessRefused as refused:
            if not may_be_producer or refused.status != 401:
                raise
            try:
                identity, claims = await self._admit_to_tenant(token, self._producer)
            except AccessRefused:
                raise refused from None
            identity = structs.replace(
                identity, scopes=identity.scopes | WORKER_SCOPES, event_types=("*",)
            )
        return identity, claims

    async def _admit_to_tenant(
        self, token: str, providers: Sequence[TokenVerifier]
    ) -> tuple[Identity, Claims]:
        identity, claims = self._identified(await self._verify(token, providers))
        if not identity.acts_for_its_tenant:
            operates = Role.OPERATOR in identity.roles
            raise AccessRefused(403, NO_TENANT_DATA if operates else PAGE_ALONE)
        return identity, claims

    async def _admit_role(self, token: str, role: Role) -> tuple[Identity, Claims]:
        identity, claims = self._identified(await self._verify(token, self._providers))
        if role not in identity.roles:
            raise lacks(role)
        return identity, claims

    async def _admit_to_page(self, token: str) -> tuple[Identity, Claims]:
        identity, claims = self._identified(await self._verify(token, self._providers))
        if not identity.roles:
            raise lacks(Role.VIEWER)
        return identity, claims

    async def _verify(self, token: str, providers: Sequence[TokenVerifier]) -> Claims:
        reasons = []
        unavailable = None
        for provider in providers:
            try:
                return await provider.verify(token)
            except TokenRejected as rejected:
                reasons.append(str(rejected))
            except KeysUnavailable as error:
                unavailable = error
        if unavailable is not None:
            raise unavailable
        raise AccessRefused(401, "invalid token", reason="; ".join(reasons))

    def _identified(self, claims: Claims) -> tuple[Identity, Claims]:
        return identify(claims, tenant_fallback=self._settings.tenant_fallback), claims

    def _remember(self, header: str, access: Access, identity: Identity, claims: Claims) -> None:
        # With any spaces a single token would fill the cache, in thousands of spellings.
        if len(header) > _TOKEN_CHARS_MAX or " ".join(header.split()) != header:
            return
        remembered = self._remembered[access]
        remembered.pop(header, None)
        if len(remembered) >= self._settings.cached_tokens_max:
            del remembered[next(iter(remembered))]
        # Not by the wall clock: set back, it would let in the owner of a withdrawn key for longer.
        remembered[header] = (identity, self._monotonic() + claims.keep_s)
