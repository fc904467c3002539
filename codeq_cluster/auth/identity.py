"""Identity: who a verified token speaks for, and what that entitles to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

WORKER_SCOPES = frozenset(
    f"codeq:{verb}" for verb in ("claim", "heartbeat", "abandon", "nack", "result", "subscribe")
)

_ADMIN_SCOPE = "codeq:admin"
_TENANT = re.compile(r"[a-z][a-z0-9-]{1,62}")
_TENANT_CLAIMS = ("tid", "tenantId", "tenant_id", "organizationId", "organization_id")


class Access(StrEnum):
    """Whom a route serves."""

    OPEN = "open"
    PRODUCER = "producer"
    WORKER = "worker"
    ANY = "any"
    ADMIN = "admin"


class AccessRefused(Exception):
    """The caller is not let in.

    Attributes:
        status: HTTP status of the answer.
        text: What the caller is told.
        reason: What the log is told beyond that; never the token or a part of its payload.
    """

    def __init__(self, status: int, text: str, *, reason: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.reason = reason


class Claims(Struct, frozen=True, kw_only=True):
    """What a verified token says.

    Attributes:
        tenants: Values of every tenant claim present, whatever their type.
        expires_s: Unix seconds; infinity for a token that does not expire.
        keep_s: For how long the verification may be remembered.
    """

    subject: str
    tenants: tuple[object, ...] = ()
    scopes: frozenset[str] = frozenset()
    event_types: tuple[str, ...] = ()
    role: str = ""
    expires_s: float = float("inf")
    keep_s: float = float("inf")


class Identity(Struct, frozen=True, kw_only=True):
    """A caller that was let in.

    Attributes:
        tenant: Empty for the default tenant.
        event_types: Commands a worker may claim, `*` for every one.
        admin: True when the token entitles to the admin routes of its tenant.
    """

    subject: str
    tenant: str
    scopes: frozenset[str]
    event_types: tuple[str, ...]
    admin: bool


def claims_of(token: Mapping[str, object], *, keep_s: float) -> Claims:
    """Read the claims of a verified JWT whose `sub` and `exp` are known to be present."""
    event_types = token.get("eventTypes")
    expires = token["exp"]
    return Claims(
        subject=str(token["sub"]),
        tenants=tuple(token[name] for name in _TENANT_CLAIMS if token.get(name) is not None),
        scopes=_scopes(token.get("scope")),
        event_types=tuple(e for e in event_types if isinstance(e, str))
        if isinstance(event_types, list)
        else (),
        role=role if isinstance(role := token.get("role"), str) else "",
        expires_s=float(expires) if isinstance(expires, int | float) else 0.0,
        keep_s=keep_s,
    )


def identify(claims: Claims, *, tenant_fallback: str) -> Identity:
    """Turn verified claims into an identity.

    Raises:
        AccessRefused: The tenant claims disagree, are malformed or missing.
    """
    return Identity(
        subject=claims.subject,
        tenant=_tenant(claims, tenant_fallback),
        scopes=claims.scopes,
        event_types=claims.event_types,
        admin=_ADMIN_SCOPE in claims.scopes or claims.role == "ADMIN",
    )


def _tenant(claims: Claims, fallback: str) -> str:
    if not claims.tenants and fallback == "default":
        return ""
    named = claims.tenants
    if not named and fallback == "subject":
        named = (claims.subject,)
    first = named[0] if named else None
    if not isinstance(first, str) or not _TENANT.fullmatch(first):
        raise AccessRefused(403, "invalid tenant claims")
    if any(other != first for other in named):
        raise AccessRefused(403, "invalid tenant claims")
    return first


def _scopes(claim: object) -> frozenset[str]:
    if isinstance(claim, str):
        return frozenset(claim.split())
    if isinstance(claim, list):
        return frozenset(scope for scope in claim if isinstance(scope, str))
    return frozenset()
