"""Rules: the durations and bounds of decisions; a node keeps the same ones from start to stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from codeq_cluster.core.backoff import POLICIES
from codeq_cluster.core.budget import NO_BUDGET, Budget
from codeq_cluster.core.task import HISTORY_ATTEMPTS_MAX

_DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LifetimeRules:
    """Durations and bounds of new decisions; nodes may differ in them for a while.

    Attributes:
        backoff_policy: A key of `backoff.POLICIES`.
        backoff_base_ms: The base delay of the policies, `b` in their formulas.
        backoff_max_ms: Upper bound of every delay after a nack, requested or computed.
        retention_ms: From the terminal instant to the task's deletion.
        dlq_retention_ms: The same for a dead letter.
        key_retention_ms: From a create, the minimum life of its idempotency key and so of its task.
        history_attempts_max: A task keeps this many finished attempts, the newest.
        overtime_ms: From the end of a task's time limit to the latest end of its lease; room for
            the worker to end its handler and to report it.
        max_attempts_default: Used if neither the task nor its topic sets `max_attempts`.
        audit_retention_ms: From an operator's action to the deletion of its record.
        delivery_attempts_max: Attempts at a result callback before it is dead.
        delivery_age_max_ms: A callback is dead after this time, even without an attempt.
        delivery_base_ms: Wait after the first failed attempt; it doubles with each further one.
        delivery_max_ms: Upper bound of that wait.
        sweep_delay_ms: From a task's end to the sweep of its uploads; longer than any upload takes.
        budget: The budget of each tenant that is not in `budgets`.
        unbudgeted_upload_bytes_max: The stored bytes beyond which a tenant without a budget of them
            uploads nothing; 0 for no bound.
        queues_max: A tenant with so many queues on any shard begins no more; 0 for no bound.
    """

    backoff_policy: str = "exp_full_jitter"
    backoff_base_ms: int = 5_000
    backoff_max_ms: int = 900_000
    retention_ms: int = _DAY_MS
    dlq_retention_ms: int = 7 * _DAY_MS
    key_retention_ms: int = _DAY_MS
    history_attempts_max: int = HISTORY_ATTEMPTS_MAX
    overtime_ms: int = 60_000
    max_attempts_default: int = 5
    audit_retention_ms: int = 90 * _DAY_MS
    delivery_attempts_max: int = 5
    delivery_age_max_ms: int = _DAY_MS
    delivery_base_ms: int = 2_000
    delivery_max_ms: int = 60_000
    sweep_delay_ms: int = 0
    budget: Budget = NO_BUDGET
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    unbudgeted_upload_bytes_max: int = 0
    queues_max: int = 0
    shards: int = 1

    def budget_of(self, tenant: str) -> Budget:
        """Return the tenant's budget."""
        return self.budgets.get(tenant, self.budget)

    def upload_bytes_max(self, tenant: str) -> int:
        """Return the stored bytes beyond which the tenant uploads nothing; 0 for no bound."""
        return self.budget_of(tenant).bytes_max or self.unbudgeted_upload_bytes_max

    def allows_another_queue(self, count: int) -> bool:
        """Return whether a tenant with so many queues on its fullest shard may begin another."""
        return not self.queues_max or count < self.queues_max

    def __post_init__(self) -> None:
        assert self.backoff_policy in POLICIES
        assert 0 <= self.backoff_base_ms
        assert 0 <= self.backoff_max_ms
        assert 0 <= self.retention_ms
        assert 0 <= self.dlq_retention_ms
        assert 0 <= self.key_retention_ms
        assert 1 <= self.history_attempts_max <= HISTORY_ATTEMPTS_MAX
