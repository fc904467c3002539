"""Raft: this node's view of its groups."""

from __future__ import annotations

from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.schemas.node_views import RaftStatus, raft_view


async def status(call: Call) -> HttpAnswer[RaftStatus]:
    """Return every local group, by shard."""
    return reply(raft_view(call.services.broker.shard_status()))
