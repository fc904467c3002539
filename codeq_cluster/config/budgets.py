"""Budgets: tenants' own budgets in place of the general bounds, read from a configuration."""

from __future__ import annotations

import json
import re

from codeq_cluster.config.kinds import ValueKind, whole
from codeq_cluster.settings import TenantBudget

BOUND_MAX = 2**53 - 1  # JSON readers hold integers up to this exactly.

_TENANT = re.compile(r"_|[a-z][a-z0-9-]{1,62}")
_BOUND = whole(0, BOUND_MAX)
_PARTS = {"readyTasks": "ready_tasks", "inFlight": "in_flight", "storedBytes": "stored_bytes"}


def _parse(raw: object) -> object:
    if isinstance(raw, str):
        raw = json.loads(raw)
    if not isinstance(raw, dict):
        raise ValueError  # noqa: TRY004 - the one error of a parse
    return tuple(_budget(tenant, parts) for tenant, parts in raw.items())


def _budget(tenant: object, parts: object) -> TenantBudget:
    if not isinstance(tenant, str) or not _TENANT.fullmatch(tenant):
        raise ValueError(tenant)
    if not isinstance(parts, dict) or not set(parts) <= set(_PARTS):
        raise ValueError(parts)
    bounds = {_PARTS[name]: _BOUND.parse(value) for name, value in parts.items()}
    return TenantBudget(tenant="" if tenant == "_" else tenant, **bounds)  # type: ignore[arg-type]


TENANT_BUDGETS = ValueKind(
    "tenant: readyTasks, inFlight and storedBytes, each 0 for no bound; or its JSON text", _parse
)
