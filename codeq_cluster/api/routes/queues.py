"""Queues: the depth of the caller's queues, and pausing them."""

from __future__ import annotations

import asyncio

from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import COMMAND, Call
from codeq_cluster.api.schemas.queue_views import PausedQueue, QueueView, queue_view
from codeq_cluster.broker.values import QueueDepth
from codeq_cluster.core.task import Counters


async def queues(call: Call) -> HttpAnswer[list[QueueView]]:
    """Return the depth of every queue of the caller's tenant, by name, including paused ones."""
    depths, paused = await _depths(call)
    now_ms = call.services.now_ms()
    idle = paused - {depth.command.lower() for depth in depths}
    depths += [QueueDepth(queue, Counters(), 0) for queue in idle]
    depths.sort(key=lambda depth: depth.command)
    views = [
        queue_view(depth, now_ms=now_ms, paused=depth.command.lower() in paused) for depth in depths
    ]
    return reply(views)


async def queue(call: Call) -> HttpAnswer[QueueView]:
    """Return the depth of one queue; a command that was never used has an empty one."""
    command = call.request.match_info["command"]
    found, paused = QueueDepth(command, Counters(), 0), False
    if COMMAND.fullmatch(command):
        broker, tenant, wanted = call.services.broker, call.identity.tenant, command.lower()
        depths, paused = await asyncio.gather(
            broker.queues(tenant, wanted, timeout_s=call.timeout_s),
            broker.queue_policies.is_paused(tenant, wanted, timeout_s=call.timeout_s),
        )
        for depth in depths:
            found = QueueDepth(command, depth.counters, depth.oldest_ready_ms)
    return reply(queue_view(found, now_ms=call.services.now_ms(), paused=paused))


async def pause(call: Call) -> HttpAnswer[PausedQueue]:
    """Pause a queue: nobody can claim from it, but leases continue and tasks can be added.

    The answer comes once every shard's leader applies it.
    """
    command = call.command()
    changed = await call.services.broker.queue_policies.pause(
        call.identity.tenant, command, by=call.identity.subject, timeout_s=call.timeout_s
    )
    return reply(PausedQueue(command, paused=True, changed=changed))


async def resume(call: Call) -> HttpAnswer[PausedQueue]:
    """Resume a paused queue; waiting claims are woken."""
    command = call.command()
    changed = await call.services.broker.queue_policies.resume(
        call.identity.tenant, command, by=call.identity.subject, timeout_s=call.timeout_s
    )
    return reply(PausedQueue(command, paused=False, changed=changed))


async def _depths(call: Call) -> tuple[list[QueueDepth], frozenset[str]]:
    """Return the tenant's queues, and those that are paused."""
    broker, tenant = call.services.broker, call.identity.tenant
    depths, paused = await asyncio.gather(
        broker.queues(tenant, timeout_s=call.timeout_s),
        broker.queue_policies.paused(tenant, timeout_s=call.timeout_s),
    )
    return list(depths), paused
