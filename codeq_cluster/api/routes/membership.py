"""Membership: adding and removing nodes, with a preview of the effect on every shard.

If a shard refuses, nothing is started. A change that was started and did not finish is finished by
repeating the request.
"""

from __future__ import annotations

from collections.abc import Sequence

from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, bad_request, invalid_body
from codeq_cluster.api.routes.recording import put_on_record
from codeq_cluster.api.schemas import requests
from codeq_cluster.api.schemas.cluster_views import MembersChanged, member_shard
from codeq_cluster.codec.membership import ADDRESS, HTTP_ADDRESS, MEMBERS_MAX, NODE_ID
from codeq_cluster.membership.plan import Dismiss, Expect
from codeq_cluster.membership.service import Effect

_INVALID = invalid_body()
_INVALID_NODE = bad_request(
    "invalid 'nodeId' (1 to 64 letters, digits, '.', '_' and '-')", "invalid-node"
)
_INVALID_ADDRESS = bad_request("invalid 'addr' (use host:port of its link)", "invalid-address")
_INVALID_URL = bad_request("invalid 'httpAddr' (use http://host:port)", "invalid-address")
_BUSY = ApiError(409, "another change is under way: try again", "busy", retryable=True)
_UNSAFE = ApiError(409, "at most one voter is added or removed at a time", "unsafe")
_ITSELF = ApiError(409, "n2 is the node asked: ask another one to remove it", "asked-itself")
JOIN_REFUSALS = (
    _INVALID_NODE,
    _INVALID_ADDRESS,
    _INVALID_URL,
    _BUSY,
    _UNSAFE,
    ApiError(
        409,
        "n2 is a member already, at 10.0.0.2:7000 and http://10.0.0.2:8080: for the same node name "
        "these, for a new one another id",
        "already-a-member",
    ),
    ApiError(409, f"a cluster has at most {MEMBERS_MAX} nodes", "too-many-nodes"),
)
REMOVE_REFUSALS = (
    _INVALID_NODE,
    _BUSY,
    _UNSAFE,
    _ITSELF,
    ApiError(409, "n1 is the only voter", "last-voter"),
    ApiError(
        409,
        "without n2 only 1 of 2 voters would answer, which is no majority: "
        "bring the others back, or let those that fetch a snapshot have it, first",
        "no-majority",
        retryable=True,
    ),
)
_BY_CODE = {refusal.code: refusal for refusal in (*JOIN_REFUSALS, *REMOVE_REFUSALS)}


async def join(call: Call) -> HttpAnswer[MembersChanged]:
    """Add a node: as a learner, and as a voter once it holds the log."""
    body = requests.JOIN.decode(call.text, error=_INVALID.text)
    node_id = _node_id(body.node_id)
    addr, http_addr = body.addr or "", body.http_addr or ""
    if not ADDRESS.fullmatch(addr):
        raise _INVALID_ADDRESS
    if not HTTP_ADDRESS.fullmatch(http_addr):
        raise _INVALID_URL
    change = Expect(id=node_id, link=addr, http=http_addr)
    return await _change(call, change, action="cluster.join", dry_run=body.dry_run or False)


async def remove(call: Call) -> HttpAnswer[MembersChanged]:
    """Remove a node for good; its leaderships are transferred first."""
    body = requests.REMOVE.decode(call.text, error=_INVALID.text)
    change = Dismiss(id=_node_id(body.node_id))
    return await _change(call, change, action="cluster.remove", dry_run=body.dry_run or False)


async def _change(
    call: Call, change: Expect | Dismiss, *, action: str, dry_run: bool
) -> HttpAnswer[MembersChanged]:
    members = call.services.members
    shards = range(call.services.settings.shards)
    timeout_s = call.timeout_s
    effects = [
        await members.change(shard, change, timeout_s=timeout_s, dry=True) for shard in shards
    ]
    _refuse(effects)
    is_new = any(effect.changes for effect in effects)
    if is_new and isinstance(change, Dismiss) and change.id == call.services.settings.node_id:
        # A removed node can neither learn of its removal nor record it in the audit.
        raise _ITSELF.saying(f"{change.id} is the node asked: ask another one to remove it")
    if not dry_run:
        effects = [await members.change(shard, change, timeout_s=timeout_s) for shard in shards]
        _refuse(effects)
        if is_new:
            await put_on_record(call, action, f"node {change.id}")
    return reply(
        MembersChanged(
            node_id=change.id,
            dry_run=dry_run,
            changed=is_new and not dry_run,
            shards=list(map(member_shard, effects)),
        )
    )


def _refuse(effects: Sequence[Effect]) -> None:
    refused = [effect for effect in effects if effect.refused]
    if refused:
        # The first shard is representative: shards differ in their leader, and seldom in their
        # voters.
        first = refused[0]
        raise _BY_CODE[first.code].saying(first.refused)


def _node_id(node_id: str | None) -> str:
    if node_id is None or not NODE_ID.fullmatch(node_id):
        raise _INVALID_NODE
    return node_id
