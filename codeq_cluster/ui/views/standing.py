"""Standing: what every view shows of the node that serves it, and how much waits in all."""

from __future__ import annotations

from msgspec import Struct

from codeq_cluster.api.http.call import Call
from codeq_cluster.auth import Role
from codeq_cluster.broker.queries.depths import plus
from codeq_cluster.core.task import Counters
from codeq_cluster.ui.sources import Sources

TENANT = (Role.VIEWER, Role.ADMIN)


class NodeLink(Struct, rename="camel", kw_only=True):
    """A node of the cluster, as the serving one sees it."""

    id: str
    url: str
    connected: bool
    own: bool


class Standing(Struct, rename="camel", kw_only=True):
    """The serving node.

    Attributes:
        leaderless: Shards of which it knows no leader: it cannot change, nor surely read, them.
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
    in_progress: int
    dlq: int
    completed: int
    failed: int
    stored_bytes: int


def standing(call: Call) -> Standing:
    """Return how the node stands."""
    shards = call.services.broker.shard_status()
    own = shards[0]
    links = {
        own.self_id: NodeLink(id=own.self_id, url=own.self_http_addr, connected=True, own=True)
    }
    for peer in (peer for shard in shards for peer in shard.peers):
        links[peer.id] = NodeLink(
            id=peer.id, url=peer.http_addr, connected=peer.connected, own=False
        )
    return Standing(
        node=own.self_id,
        nodes=[links[name] for name in sorted(links)],
        leaderless=[shard.shard_idx for shard in shards if not shard.has_leader],
        shards=len(shards),
        missing=call.services.broker.missing(in_full=Role.OPERATOR in call.identity.roles),
    )


async def totals(call: Call, sources: Sources) -> Totals | None:
    """Return what the caller's tenant has; None for who has nothing to do with it."""
    if call.identity.roles.isdisjoint(TENANT):
        return None
    queues = await depths(call.identity.tenant, sources)
    return totals_of(queues)


async def depths(tenant: str, sources: Sources) -> dict[str, Counters]:
    """Return the tenant's queues, as of a moment ago."""
    return await sources.shared.of(("depths", tenant), 1, lambda: sources.depths.queues(tenant))


def totals_of(queues: dict[str, Counters]) -> Totals:
    """Return the sum of queues."""
    total = Counters()
    for counters in queues.values():
        total = plus(total, counters)
    return totals_view(total)


def totals_view(counters: Counters) -> Totals:
    """Render counters."""
    return Totals(
        ready=counters.ready,
        delayed=counters.delayed,
        in_progress=counters.leased,
        dlq=counters.dead,
        completed=counters.done,
        failed=counters.failed,
        stored_bytes=counters.stored_bytes,
    )
