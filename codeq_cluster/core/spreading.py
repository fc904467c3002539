"""Spreading: rules of a queue or a limit, from the tenant's home shard to every other one."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from codeq_cluster.core import sending
from codeq_cluster.core.changes import ItemChange
from codeq_cluster.core.gating import in_force
from codeq_cluster.core.lane import FLOWS_MAX, FlowRule, lane_name
from codeq_cluster.core.sharding import home_shard
from codeq_cluster.core.view import View

RULED = "queues and limits with rules"  # Of which a refusal says that there are too many.


def is_full(view: View, tenant: str, scope: str, *, begun: int = 0) -> bool:
    """Return whether a queue or a limit has to stay without rules: too many others have some.

    Args:
        view: Of the tenant's home shard.
        scope: The queue, or the limit's scope. One with a `Flow` may always have other rules.
        begun: How many of them are new and not in the view yet.
    """
    ruled = view.ruled.get(tenant, frozenset())
    return scope not in ruled and len(ruled) + begun >= FLOWS_MAX


def spread(view: View, rule: FlowRule, shards: int) -> Iterator[ItemChange]:
    """Yield what puts a rule in force here, and the relays to all other shards."""
    home = home_shard(rule.tenant, shards)
    cause = f"flow:{lane_name(rule.queue)}"
    yield from in_force(view, rule)
    yield from sending.sent(
        view,
        [
            sending.Cause(
                f"{cause}.{rule.seq}.{shard}",
                cause,
                shard,
                replace(rule, shard=shard),
            )
            for shard in range(shards)
            if shard != home
        ],
    )
