"""Cluster: the nodes, and the leader of each shard."""

from __future__ import annotations

from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, bad_request, invalid_body
from codeq_cluster.api.routes.recording import put_on_record
from codeq_cluster.api.schemas import requests
from codeq_cluster.api.schemas.cluster_views import ClusterStatus, Transferred, cluster_view

NO_SUCH_NODE = bad_request("invalid 'to' (no such node)", "no-such-node")
NOT_TRANSFERRED = ApiError(409, "leadership not transferred", "not-transferred", retryable=True)
_INVALID = invalid_body()


async def cluster(call: Call) -> HttpAnswer[ClusterStatus]:
    """Return the nodes and the shards as this node sees them."""
    services = call.services
    return reply(cluster_view(services.settings.cluster_id, services.broker.shard_status()))


async def transfer(call: Call) -> HttpAnswer[Transferred]:
    """Transfer the leadership of a shard to a node, or to the peer that has most of its log.

    A shard's preferred node takes it back after a while, as long as it is up to date.
    """
    body = requests.TRANSFER.decode(call.text, error=_INVALID.text)
    settings = call.services.settings
    shard, to = body.shard, body.to or ""
    if shard is None:
        raise _INVALID
    if not 0 <= shard < settings.shards:
        raise no_such_shard(settings.shards)
    status = call.services.broker.shard_status()[shard]
    voters = {peer.id for peer in status.peers if peer.voter} | {status.self_id}
    if to and to not in voters:
        raise NO_SUCH_NODE
    done = await call.services.cluster.transfer(shard, to, timeout_s=call.timeout_s)
    if done.leader == done.before and to != done.before:
        # The peer is away or too far behind, there is no other, or another transfer is in progress.
        raise NOT_TRANSFERRED
    changed = done.leader != done.before
    if changed:
        detail = f"{done.before} to {done.leader}"
        await put_on_record(call, "cluster.transfer", f"shard {shard}", detail=detail)
    return reply(Transferred(shard=shard, before=done.before, leader=done.leader, changed=changed))


def no_such_shard(shards: int) -> ApiError:
    """Return the error for a shard number in a cluster of so many shards."""
    return bad_request(f"invalid 'shard' (use 0 to {shards - 1})", "out-of-range")
