"""From settings: what a node's settings make of its engines, real or simulated."""

from __future__ import annotations

from codeq_cluster.broker.engine.state import EngineLimits
from codeq_cluster.core.budget import Budget
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.settings import BudgetSettings, NodeSettings, TenantBudget


def rules_of(settings: NodeSettings) -> LifetimeRules:
    """Return the rules of decisions."""
    lifecycle = settings.lifecycle
    return LifetimeRules(
        backoff_policy=lifecycle.backoff_policy.value,
        backoff_base_ms=lifecycle.backoff_base_seconds * 1000,
        backoff_max_ms=lifecycle.backoff_max_seconds * 1000,
        retention_ms=lifecycle.retention_seconds * 1000,
        dlq_retention_ms=lifecycle.dlq_retention_seconds * 1000,
        audit_retention_ms=lifecycle.audit_retention_seconds * 1000,
        max_attempts_default=lifecycle.max_attempts_default,
        delivery_attempts_max=settings.webhooks.max_attempts,
        delivery_age_max_ms=settings.webhooks.max_age_seconds * 1000,
        delivery_base_ms=settings.webhooks.base_backoff_seconds * 1000,
        delivery_max_ms=settings.webhooks.max_backoff_seconds * 1000,
        # Twice a timeout: recording the upload may take as long as a request, and the upload starts
        # after it.
        sweep_delay_ms=settings.limits.request_timeout_ms + settings.artifacts.timeout_ms,
        budget=_budget(settings.budgets),
        budgets={each.tenant: _budget(each) for each in settings.budgets.tenants},
        unbudgeted_upload_bytes_max=settings.artifacts.tenant_bytes_max,
        queues_max=settings.limits.queues_max,
        shards=settings.shards,
    )


def limits_of(settings: NodeSettings) -> EngineLimits:
    """Return the bounds of an engine."""
    return EngineLimits(
        operations_max=settings.limits.operations_queued_max,
        bytes_max=settings.limits.operations_queued_bytes_max,
        lease_grace_ms=int(settings.lifecycle.lease_grace_seconds * 1000),
        entry_bytes_max=settings.raft.entry_bytes_max,
    )


def _budget(bounds: BudgetSettings | TenantBudget) -> Budget:
    return Budget(
        waiting_max=bounds.ready_tasks,
        leased_max=bounds.in_flight,
        bytes_max=bounds.stored_bytes,
    )
