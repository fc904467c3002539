"""Queues: how full the caller's queues are."""

from __future__ import annotations

from aiohttp import web

from codeq_cluster.api.call import Call, reply
from codeq_cluster.api.ports import QueueDepth
from codeq_cluster.api.rendering import encode, queue_view
from codeq_cluster.core.task import Counters


async def queues(call: Call) -> web.Response:
    """Return the depth of every queue of the caller's tenant, by name."""
    depths = await _depths(call)
    now_ms = call.services.now_ms()
    depths.sort(key=lambda depth: depth.command)
    return reply(encode([queue_view(depth, now_ms=now_ms) for depth in depths]))


async def queue(call: Call) -> web.Response:
    """Return the depth of one queue; a command nobody has used has an empty one."""
    command = call.request.match_info["command"]
    wanted = command.lower()
    counters, oldest_ready_ms = Counters(), 0
    for depth in await _depths(call):
        if depth.command.lower() == wanted:
            counters, oldest_ready_ms = depth.counters, depth.oldest_ready_ms
    found = QueueDepth(command, counters, oldest_ready_ms)
    return reply(encode(queue_view(found, now_ms=call.services.now_ms())))


async def _depths(call: Call) -> list[QueueDepth]:
    return list(await call.services.broker.queues(call.identity.tenant, timeout_s=call.timeout_s))
