"""Tenants: the rate limits and budgets of each, over the whole cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from codeq_cluster.core.bounds import TENANT
from codeq_cluster.settings.key import key, section
from codeq_cluster.settings.kinds import ValueKind, whole

SCOPES = ("producer", "worker", "admin", "webhook")

_PER_MINUTE = whole(0, 60_000_000)  # A million a second, far more than a cluster serves.
_BURST = whole(0, 10_000_000)
_BOUND = whole(0, 2**53 - 1)  # JSON readers hold integers up to this exactly.


def _mapping(value: object) -> Mapping[object, object]:
    if not isinstance(value, dict):
        raise ValueError  # noqa: TRY004 - the one error of a parse
    return value


def _by_tenant(
    read: Callable[[str, Mapping[object, object]], Iterable[object]], allowed: str
) -> ValueKind:
    """Return the kind of a mapping from tenant to its own bounds, or of its JSON text.

    Args:
        read: Yields a tenant's settings from its part of the mapping; raises ValueError. The
            default tenant, `_` in the mapping, is empty here.
        allowed: For an error's text.
    """

    def parse(raw: object) -> object:
        found: list[object] = []
        for tenant, given in _mapping(json.loads(raw) if isinstance(raw, str) else raw).items():
            if tenant != "_" and not (isinstance(tenant, str) and TENANT.fullmatch(tenant)):
                raise ValueError(tenant)
            found += read("" if tenant == "_" else str(tenant), _mapping(given))
        return tuple(found)

    return ValueKind(allowed, parse)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSettings:
    """One limit: a rate, and a burst that a tenant may make at once after a pause.

    Both are 0 for no limit.
    """

    requests_per_minute: int = key(0, _PER_MINUTE, "{subject}; 0 for no limit")
    burst_size: int = key(
        0, _BURST, "requests that may come at once after a pause; above 0 with a limit"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRateLimit:
    """A tenant's own limit in place of the general one; 0 requests a minute mean no limit.

    Attributes:
        tenant: Empty for the default tenant.
        scope: `producer`, `worker`, `admin` or `webhook`.
    """

    tenant: str
    scope: str
    requests_per_minute: int
    burst_size: int


def _limits(tenant: str, scopes: Mapping[object, object]) -> Iterator[TenantRateLimit]:
    for scope, parts in scopes.items():
        given = _mapping(parts)
        if scope not in SCOPES or not given.keys() <= {"requestsPerMinute", "burstSize"}:
            raise ValueError(scope)
        per_minute = _PER_MINUTE.parse(given.get("requestsPerMinute", 0))
        burst = _BURST.parse(given.get("burstSize", 0))
        assert isinstance(per_minute, int)
        assert isinstance(burst, int)
        if bool(per_minute) != bool(burst):
            raise ValueError(parts)
        yield TenantRateLimit(
            tenant=tenant, scope=str(scope), requests_per_minute=per_minute, burst_size=burst
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimitSettings:
    """Each tenant's rate limits over the whole cluster."""

    producer: RateSettings = section(
        RateSettings, "creates by a tenant, counting each task of a batch"
    )
    # A batch of claims counts once, because it may find no task.
    worker: RateSettings = section(RateSettings, "claims by a tenant, counting a batch once")
    # Clean-ups are limited, because each may delete thousands of tasks.
    admin: RateSettings = section(RateSettings, "clean-ups by a tenant")
    webhook: RateSettings = section(
        RateSettings, "webhook requests for a tenant, further ones wait"
    )
    tenants: tuple[TenantRateLimit, ...] = key(
        (),
        _by_tenant(
            _limits,
            "tenant: scope: requestsPerMinute and burstSize, both above 0, or both 0 for no limit; "
            "or its JSON text",
        ),
        "tenants with limits of their own, `_` for the default tenant",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantBudget:
    """One tenant's budget, in place of the general bounds; 0 for no bound."""

    tenant: str
    ready_tasks: int = 0
    in_flight: int = 0
    stored_bytes: int = 0


def _budget(tenant: str, parts: Mapping[object, object]) -> Iterator[TenantBudget]:
    fields = {"readyTasks": "ready_tasks", "inFlight": "in_flight", "storedBytes": "stored_bytes"}
    if not parts.keys() <= fields.keys():
        raise ValueError(parts)
    bounds = {fields[str(name)]: _BOUND.parse(value) for name, value in parts.items()}
    yield TenantBudget(tenant=tenant, **bounds)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    """Each tenant's budget over the whole cluster.

    While it is used up, creates, claims or uploads of artifacts are refused; results without files
    are always accepted.
    """

    ready_tasks: int = key(0, _BOUND, "waiting tasks of a tenant, ready or delayed; 0 for no bound")
    in_flight: int = key(0, _BOUND, "tasks of a tenant in progress; 0 for no bound")
    stored_bytes: int = key(
        0, _BOUND, "size of a tenant's stored payloads, results and artifacts; 0 for no bound"
    )
    tenants: tuple[TenantBudget, ...] = key(
        (),
        _by_tenant(
            _budget,
            "tenant: readyTasks, inFlight and storedBytes, each 0 for no bound; or its JSON text",
        ),
        "tenants with bounds of their own, `_` for the default tenant",
    )
