"""Raft: what this node knows of its groups."""

from __future__ import annotations

from aiohttp import web

from codeq_cluster.api.http.call import Call, reply
from codeq_cluster.api.schemas.responses import encode, raft_view


async def status(call: Call) -> web.Response:
    """Return every local group, by shard."""
    return reply(encode(raft_view(call.services.broker.shard_status())))
