"""Serving node: the parts of every view: the serving node, and the totals of waiting tasks."""

from __future__ import annotations

from functools import partial

import msgspec
from msgspec import Struct

from codeq_cluster.api.http.call import Call
from codeq_cluster.api.routes.cluster import nodes_of
from codeq_cluster.auth import Role
from codeq_cluster.broker.queries.depths import plus
from codeq_cluster.core.task import Counters
from codeq_cluster.portions import in_portions
from codeq_cluster.ui.sources import Sources

TENANT = (Role.VIEWER, Role.ADMIN)
SHOWN_S = 1  # For so long, viewers share what was made of all queues.


class NodeLink(Struct, rename="camel", kw_only=True):
    """A node of the cluster, as the serving one sees it."""

    id: str
    http_addr: str = msgspec.field(name="url")
    connected: bool
    is_self: bool = msgspec.field(name="self")


class ServingNode(Struct, rename="camel", kw_only=True):
    """The serving node.

    Attributes:
        leaderless: Shards without a known leader: it can neither change them nor read them safely.
        missing: Why it is not ready, for the operator.
    """

    node: str
    nodes: list[NodeLink]
    leaderless: list[int]
    shards: int
    missing: list[str]


class Totals(Struct, rename="camel", kw_only=True):
    """How many tasks of a tenant are in each state."""

    ready: int
    delayed: int
    leased: int = msgspec.field(name="inProgress")
    dead: int = msgspec.field(name="dlq")
    done: int = msgspec.field(name="completed")
    failed: int
    held: int
    stored_bytes: int


def serving(call: Call) -> ServingNode:
    """Return the node's state."""
    shards = call.services.broker.shard_status()
    return ServingNode(
        node=shards[0].self_id,
        nodes=msgspec.convert(nodes_of(shards), list[NodeLink], from_attributes=True),
        leaderless=[shard.shard_idx for shard in shards if not shard.has_leader],
        shards=len(shards),
        missing=call.services.broker.missing(in_full=Role.OPERATOR in call.identity.roles),
    )


async def totals(call: Call, sources: Sources) -> Totals | None:
    """Return the totals of the caller's tenant; None for a caller without one."""
    if call.identity.roles.isdisjoint(TENANT):
        return None
    tenant = call.identity.tenant

    async def make() -> Totals:
        return await _totals_of(await depths(tenant, sources))

    return await sources.shared.of(tenant, "totals", SHOWN_S, make)


async def depths(tenant: str, sources: Sources) -> dict[str, Counters]:
    """Return the tenant's queues, at most a moment old."""
    make = partial(sources.depths.queues, tenant)
    return await sources.shared.of(tenant, "depths", SHOWN_S, make)


async def _totals_of(queues: dict[str, Counters]) -> Totals:
    """Return the sum of queues."""
    total = Counters()
    async for counters in in_portions(list(queues.values())):
        total = plus(total, counters)
    return totals_view(total)


def totals_view(counters: Counters) -> Totals:
    """Render counters."""
    return msgspec.convert(counters, Totals, from_attributes=True)
