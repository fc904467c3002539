"""Identity: the caller named by a verified token, and its rights."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from codeq_cluster.core.bounds import TENANT

_OF_WORKERS = tuple(
    f"codeq:{verb}"
    for verb in (
        "claim",
        "heartbeat",
        "abandon",
        "nack",
        "result",
        "enqueue",
        "schedule",
        "subscribe",
    )
)
WORKER_SCOPES = frozenset(_OF_WORKERS)

# For a token whose roles give none; this caller needs another token.
NO_TENANT_DATA = "forbidden. An operator has no tenant's data: use a token of the tenant"
PAGE_ALONE = "forbidden. A viewer has the page alone: use a token of the tenant"

TENANT_CLAIMS = ("tid", "tenantId", "tenant_id", "organizationId", "organization_id")


class Access(StrEnum):
    """The callers that a route serves.

    TENANT is every caller that acts for a tenant, as a producer, a worker or an admin. ANY is every
    token; PAGE is every token with a role.
    """

    OPEN = "open"
    PRODUCER = "producer"
    WORKER = "worker"
    TENANT = "tenant"
    ANY = "any"
    ADMIN = "admin"
    OPERATOR = "operator"
    PAGE = "page"


class Role(StrEnum):
    """A right beyond a producer's and a worker's routes; each value is a scope.

    An admin manages its own tenant and nothing of the cluster; an operator manages the cluster and
    sees no tenant's data. A viewer sees its own tenant on the page, without payloads and results. A
    token may have several roles.
    """

    VIEWER = "codeq:view"
    ADMIN = "codeq:admin"
    OPERATOR = "codeq:operator"


SCOPES: tuple[str, ...] = (*_OF_WORKERS, Role.ADMIN.value, Role.OPERATOR.value, Role.VIEWER.value)


class AccessRefused(Exception):
    """The caller is not admitted.

    Attributes:
        status: HTTP status of the answer.
        text: The message for the caller.
        reason: More detail for the log; never the token or a part of its payload.
    """

    def __init__(self, status: int, text: str, *, reason: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.reason = reason


class Claims(Struct, frozen=True, kw_only=True):
    """The claims of a verified token.

    Attributes:
        tenants: Values of every tenant claim present, whatever their type.
        expires_s: Unix seconds; infinity for a token that does not expire.
        keep_s: For how long the verification may be cached.
    """

    subject: str
    tenants: tuple[object, ...] = ()
    scopes: frozenset[str] = frozenset()
    event_types: tuple[str, ...] = ()
    role: str = ""
    expires_s: float = float("inf")
    keep_s: float = float("inf")


class Identity(Struct, frozen=True, kw_only=True):
    """An admitted caller.

    Attributes:
        tenant: Empty for the default tenant.
        event_types: Commands a worker may claim, `*` for every one.
        scopes: The token's scopes; each of a worker's routes requires one.
        roles: Groups of routes require one. A role comes from a scope or from the claim `role`.
        expires_s: When the token ends, Unix seconds; infinity if it does not.
    """

    subject: str
    tenant: str
    scopes: frozenset[str]
    event_types: tuple[str, ...]
    roles: frozenset[Role]
    expires_s: float = float("inf")

    @property
    def names_a_worker(self) -> bool:
        """True if the token has any of a worker's claims, even if too few for its routes."""
        return bool(self.event_types or self.scopes & WORKER_SCOPES)

    @property
    def acts_for_its_tenant(self) -> bool:
        """True unless the token names only roles without a tenant's data.

        A producer's token needs neither role nor scope, so without this check an operator's token
        would pass as a producer's.
        """
        return not self.roles or Role.ADMIN in self.roles or self.names_a_worker


def claims_of(token: Mapping[str, object], *, keep_s: float) -> Claims:
    """Return the claims of a verified JWT whose `sub` and `exp` are known to be present."""
    event_types = token.get("eventTypes")
    expires = token["exp"]
    return Claims(
        subject=str(token["sub"]),
        tenants=tuple(token[name] for name in TENANT_CLAIMS if token.get(name) is not None),
        scopes=_scopes(token.get("scope")),
        event_types=tuple(e for e in event_types if isinstance(e, str))
        if isinstance(event_types, list)
        else (),
        role=role if isinstance(role := token.get("role"), str) else "",
        expires_s=float(expires) if isinstance(expires, int | float) else 0.0,
        keep_s=keep_s,
    )


def identify(claims: Claims, *, tenant_fallback: str) -> Identity:
    """Return the identity of verified claims.

    Raises:
        AccessRefused: The tenant claims disagree, are malformed or missing.
    """
    return Identity(
        subject=claims.subject,
        tenant=_tenant(claims, tenant_fallback),
        scopes=claims.scopes,
        event_types=claims.event_types,
        roles=_roles(claims),
        expires_s=claims.expires_s,
    )


def lacks(role: Role) -> AccessRefused:
    """Return the refusal for a caller whose valid token does not give the role."""
    match role:
        case Role.ADMIN:
            return AccessRefused(401, "unauthorized. Admin only")
        case Role.OPERATOR:
            return AccessRefused(403, f"forbidden. Operator only (scope {role})")
        case Role.VIEWER:
            return AccessRefused(403, f"forbidden. The page needs scope {', '.join(Role)}")


def _roles(claims: Claims) -> frozenset[Role]:
    named = frozenset(role for role in Role if role in claims.scopes)
    # This claim only names admins of a tenant; operators of the cluster are named by scope.
    return named | {Role.ADMIN} if claims.role.upper() == "ADMIN" else named


def _tenant(claims: Claims, fallback: str) -> str:
    if not claims.tenants and fallback == "default":
        return ""
    named = claims.tenants
    if not named and fallback == "subject":
        named = (claims.subject,)
    first = named[0] if named else None
    if not isinstance(first, str) or not TENANT.fullmatch(first):
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
