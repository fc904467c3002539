"""Rates: tenants' own rate limits in place of the general ones, read from a configuration."""

from __future__ import annotations

import json
import re

from codeq_cluster.config.kinds import ValueKind, whole
from codeq_cluster.settings import TenantRateLimit

SCOPES = ("producer", "worker", "admin", "webhook")
PER_MINUTE_MAX = 60_000_000  # A million a second, far more than a cluster serves.
BURST_MAX = 10_000_000

_TENANT = re.compile(r"_|[a-z][a-z0-9-]{1,62}")
_PARTS = {
    "requestsPerMinute": whole(0, PER_MINUTE_MAX),
    "burstSize": whole(0, BURST_MAX),
}


def _parse(raw: object) -> object:
    if isinstance(raw, str):
        raw = json.loads(raw)
    if not isinstance(raw, dict):
        raise ValueError  # noqa: TRY004 - the one error of a parse
    return tuple(
        _limit(tenant, scope, parts)
        for tenant, scopes in raw.items()
        for scope, parts in _mapping(scopes).items()
    )


def _limit(tenant: object, scope: object, parts: object) -> TenantRateLimit:
    given = _mapping(parts)
    if not isinstance(tenant, str) or not _TENANT.fullmatch(tenant):
        raise ValueError(tenant)
    if scope not in SCOPES or not set(given) <= set(_PARTS):
        raise ValueError(scope)
    numbers = {name: kind.parse(given.get(name, 0)) for name, kind in _PARTS.items()}
    per_minute, burst = numbers["requestsPerMinute"], numbers["burstSize"]
    assert isinstance(per_minute, int)
    assert isinstance(burst, int)
    if bool(per_minute) != bool(burst):
        raise ValueError(parts)
    return TenantRateLimit(
        tenant="" if tenant == "_" else tenant,
        scope=str(scope),
        requests_per_minute=per_minute,
        burst_size=burst,
    )


def _mapping(value: object) -> dict[object, object]:
    if not isinstance(value, dict):
        raise ValueError  # noqa: TRY004 - the one error of a parse
    return value


TENANT_RATES = ValueKind(
    "tenant: scope: requestsPerMinute and burstSize, both above 0, or both 0 for no limit; "
    "or its JSON text",
    _parse,
)
