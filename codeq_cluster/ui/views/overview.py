"""Overview: throughput, waiting tasks and their age, and problems."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest

from msgspec import Struct

from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError
from codeq_cluster.auth import Role
from codeq_cluster.portions import in_portions
from codeq_cluster.ui.sources import Sources
from codeq_cluster.ui.views import problems
from codeq_cluster.ui.views.problems import Problem, Severity
from codeq_cluster.ui.views.queues import QueueRow, Rates, all_rows
from codeq_cluster.ui.views.series import SeriesView, series
from codeq_cluster.ui.views.serving_node import SHOWN_S, TENANT, Totals, serving, totals_view

TOP = 8
TENANTS_MAX = 50  # The tenants shown, those with the most waiting tasks.


class TenantRow(Struct, rename="camel", kw_only=True):
    """A tenant's share of the cluster; an empty name is the default tenant."""

    tenant: str
    queues: int
    totals: Totals


class Overview(Struct, rename="camel", kw_only=True):
    """The first view.

    Attributes:
        rates: Of the caller's tenant.
        waiting: The queues with the longest-waiting tasks.
        busy: The queues with the most completed tasks.
        queues: How many the tenant has.
        tenants: For operators; None for others.
    """

    problems: list[Problem]
    rates: Rates | None
    waiting: list[QueueRow]
    busy: list[QueueRow]
    queues: int
    tenants: list[TenantRow] | None
    tenants_all: int


class _OfQueues(Struct, kw_only=True):
    """What the view shows of a tenant's queues; viewers share it."""

    problems: list[Problem]
    rates: Rates
    waiting: list[QueueRow]
    busy: list[QueueRow]
    queues: int


async def look(call: Call, sources: Sources) -> Overview:
    """Return the parts that the caller may see."""
    roles = call.identity.roles
    of_queues: _OfQueues | None = None
    found: list[Problem] = [*problems.of_node(serving(call))]
    tenants: list[TenantRow] | None = None
    tenants_all = 0
    if Role.OPERATOR in roles:
        found += problems.of_cluster(await sources.reports())
        found += problems.of_shards(call.services.broker.shard_status())
        loads = await sources.shared.of(None, "tenants", 2, sources.depths.tenants)
        loads = sorted(loads, key=lambda load: -load.counters.ready)
        tenants_all = len(loads)
        tenants = [
            TenantRow(tenant=load.tenant, queues=load.queues, totals=totals_view(load.counters))
            for load in loads[:TENANTS_MAX]
        ]
    if not roles.isdisjoint(TENANT):
        tenant = call.identity.tenant
        of_queues = await sources.shared.of(
            tenant, "overview", SHOWN_S, lambda: _of_queues(tenant, sources)
        )
        found += of_queues.problems
        found += problems.of_webhooks(sources.depths.dead_deliveries(tenant))
        found += problems.of_asides(sources.depths.asides(tenant))
    found.sort(key=lambda problem: problem.severity is not Severity.BAD)
    return Overview(
        problems=found,
        rates=None if of_queues is None else of_queues.rates,
        waiting=of_queues.waiting if of_queues else [],
        busy=of_queues.busy if of_queues else [],
        queues=of_queues.queues if of_queues else 0,
        tenants=tenants,
        tenants_all=tenants_all,
    )


async def draw(call: Call, sources: Sources, since: int) -> SeriesView:
    """Return the slots of the tenant, or of the cluster for a caller without a tenant.

    An operator may name any tenant, `_` for the default one.
    """
    of_tenant = not call.identity.roles.isdisjoint(TENANT)
    tenant = call.identity.tenant if of_tenant else None
    named = call.query_text("tenant")
    if named:
        if Role.OPERATOR not in call.identity.roles:
            raise ApiError(403, "only an operator may name a tenant", "forbidden")
        tenant = "" if named == "_" else named
    return await series(call, sources, tenant=tenant, queue="", since=since)


async def _of_queues(tenant: str, sources: Sources) -> _OfQueues:
    rows = await all_rows(tenant, sources)
    polled = await sources.shared.of(tenant, "polled", 2, lambda: _polled(tenant, sources))
    late = (row for row in rows if row.ready)
    started = (row for row in rows if row.rates.started)
    return _OfQueues(
        problems=[*problems.of_queues(rows, polled, sources.history.died(tenant))],
        rates=await _sum(row.rates for row in rows),
        waiting=nsmallest(TOP, late, key=lambda row: -row.oldest_ready_seconds),
        busy=nsmallest(TOP, started, key=lambda row: -row.rates.started),
        queues=len(rows),
    )


async def _polled(tenant: str, sources: Sources) -> problems.Polled:
    return await problems.polled(await sources.workers(tenant), now_ms=sources.now_ms())


async def _sum(rates: Iterable[Rates]) -> Rates:
    sums = dict.fromkeys(Rates.__struct_fields__, 0.0)
    async for each in in_portions(rates):
        for name in sums:
            sums[name] += getattr(each, name)
    return Rates(**{name: round(number, 2) for name, number in sums.items()})
