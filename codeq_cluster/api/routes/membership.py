"""Membership: adding and removing nodes, with a preview of the effect on every shard.

If a shard refuses, nothing is started. A change that was started and did not finish is finished by
repeating the request.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from codeq_cluster.api.declared.bodies import Body, Schema, field
from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, bad_request
from codeq_cluster.api.routes.audit import put_on_record
from codeq_cluster.auth import Access
from codeq_cluster.codec.levels import LEVEL_MAX
from codeq_cluster.codec.membership import ADDRESS, HTTP_ADDRESS, MEMBERS_MAX, NODE_ID
from codeq_cluster.membership.plan import Dismiss, Expect, Raise
from codeq_cluster.membership.service import Effect

ROUTES = Routes(__name__, __doc__, Access.OPERATOR)
UPGRADING = Routes(
    "upgrading",
    "Upgrading: enabling newer formats once every node knows them; they stay enabled.\n\n"
    "If a shard refuses, nothing is started. A change that was started and did not finish is "
    "finished by\nrepeating the request.",
    Access.OPERATOR,
)

INVALID_NODE = bad_request(
    "invalid 'nodeId' (1 to 64 letters, digits, '.', '_' and '-')", "invalid-node"
)
INVALID_ADDRESS = bad_request("invalid 'addr' (use host:port of its link)", "invalid-address")
INVALID_URL = bad_request("invalid 'httpAddr' (use http://host:port)", "invalid-address")
INVALID_LEVEL = bad_request(f"invalid 'level' (use 1 to {LEVEL_MAX})", "out-of-range")
_BUSY = ApiError(409, "another change is under way: try again", "busy", retryable=True)
_UNSAFE = ApiError(409, "at most one voter is added or removed at a time", "unsafe")
_ITSELF = ApiError(409, "n2 is the node asked: ask another one to remove it", "asked-itself")
_JOIN_REFUSALS = (
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
_REMOVE_REFUSALS = (
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
_LEVEL_REFUSALS = (
    _BUSY,
    ApiError(
        409,
        "not every node knows formats of level 2: n3 (level 1); start each of these with the newer "
        "release, or remove it",
        "level-unknown",
    ),
    ApiError(409, "formats of level 2 are in use, which nothing lowers to 1", "level-in-use"),
    ApiError(409, "a member does not know the formats that would be in use", "unsafe"),
)
_BY_CODE = {refusal.code: refusal for refusal in (*_JOIN_REFUSALS, *_REMOVE_REFUSALS)}
_BY_CODE |= {refusal.code: refusal for refusal in _LEVEL_REFUSALS}

_NODE_ID = field(
    "Id of the node.", default="", required=True, pattern=NODE_ID, refused=(INVALID_NODE,)
)
_DRY_RUN = field("Return the effect on each shard, and change nothing.")


class JoinBody(Body):
    """The node to add, and its addresses."""

    node_id: str = _NODE_ID
    addr: str = field(
        "host:port at which the other nodes reach it.",
        pattern=ADDRESS,
        refused=(INVALID_ADDRESS,),
        required=True,
        default="",
    )
    http_addr: str = field(
        "Base URL at which clients reach it.",
        pattern=HTTP_ADDRESS,
        refused=(INVALID_URL,),
        required=True,
        default="",
    )
    dry_run: bool | None = _DRY_RUN


class RemoveBody(Body):
    """The node to remove for good."""

    node_id: str = _NODE_ID
    dry_run: bool | None = _DRY_RUN


class UpgradeBody(Body):
    """The version of formats to enable."""

    level: int | None = field(
        "Version of formats to enable; absent for the newest that any node knows.",
        ge=1,
        le=LEVEL_MAX,
        refused=(INVALID_LEVEL,),
    )
    dry_run: bool | None = _DRY_RUN


_JOIN = Schema(JoinBody)
_REMOVE = Schema(RemoveBody)
_UPGRADE = Schema(UpgradeBody)


class MemberShard(Struct, rename="camel", kw_only=True):
    """The effect of a change of nodes on one shard; `answering` counts `votersAfter`."""

    shard: int
    leader: str
    voters: Sequence[str]
    voters_after: Sequence[str]
    learners_after: Sequence[str]
    quorum: int
    quorum_after: int
    answering: int
    done: bool


class MembersChanged(Struct, rename="camel", kw_only=True):
    """The effect of a change of nodes, made or only previewed."""

    node_id: str
    dry_run: bool
    changed: bool
    shards: list[MemberShard]


class LevelShard(Struct, rename="camel"):
    """The effect of an upgrade on one shard."""

    shard: int
    leader: str
    level: int
    level_after: int
    done: bool


class LevelNode(Struct):
    """The newest version of formats that a node knows, in every shard."""

    id: str
    level: int


class LevelRaised(Struct, rename="camel", kw_only=True):
    """The effect of an upgrade; `level` is the version in use once it has been made."""

    level: int
    dry_run: bool
    changed: bool
    shards: list[LevelShard]
    nodes: list[LevelNode]


_AGREED = "The effect on each shard; repeating the request changes nothing more."


def _changed(voters_after: tuple[str, ...], learners_after: tuple[str, ...]) -> Answer:
    shard = MemberShard(
        shard=0,
        leader="n1",
        voters=("n1", "n2", "n3"),
        voters_after=voters_after,
        learners_after=learners_after,
        quorum=2,
        quorum_after=2,
        answering=len(voters_after),
        done=True,
    )
    return Answer(
        _AGREED, MembersChanged(node_id="n4", dry_run=False, changed=True, shards=[shard])
    )


@ROUTES(
    "POST",
    "/admin/cluster/join",
    _changed(("n1", "n2", "n3"), ("n4",)),
    body=_JOIN,
    example={"nodeId": "n4", "addr": "10.0.0.4:7000", "httpAddr": "http://10.0.0.4:8080"},
    errors=_JOIN_REFUSALS,
)
async def join(call: Call) -> HttpAnswer[MembersChanged]:
    """Add a node: as a learner, and as a voter once it holds the log."""
    body = _JOIN.decode(call.text)
    change = Expect(id=body.node_id, link=body.addr, http=body.http_addr)
    return await _change(call, change, action="cluster.join", dry_run=body.dry_run or False)


@ROUTES(
    "POST",
    "/admin/cluster/remove",
    _changed(("n1", "n2"), ()),
    body=_REMOVE,
    example={"nodeId": "n3"},
    errors=_REMOVE_REFUSALS,
)
async def remove(call: Call) -> HttpAnswer[MembersChanged]:
    """Remove a node for good; its leaderships are transferred first."""
    body = _REMOVE.decode(call.text)
    change = Dismiss(id=body.node_id)
    return await _change(call, change, action="cluster.remove", dry_run=body.dry_run or False)


@UPGRADING(
    "POST",
    "/admin/cluster/upgrade",
    Answer(
        _AGREED,
        LevelRaised(
            level=2,
            dry_run=False,
            changed=True,
            shards=[LevelShard(shard=0, leader="n1", level=1, level_after=2, done=True)],
            nodes=[LevelNode("n1", 2)],
        ),
    ),
    body=_UPGRADE,
    example={"dryRun": True},
    may_miss=True,
    errors=_LEVEL_REFUSALS,
)
async def upgrade(call: Call) -> HttpAnswer[LevelRaised]:
    """Enable newer formats on every shard; no older release can return afterwards."""
    body = _UPGRADE.decode_any(call.text)
    dry_run = body.dry_run or False
    newest = Raise(level=0)
    level = body.level or max(each.level_after for each in await _ask(call, newest, dry=True))
    change = Raise(level=level)
    effects = await _ask(call, change, dry=True)
    is_new = any(effect.changes for effect in effects)
    if not dry_run:
        # Repeat it even when nothing is new: an earlier request may not have taken effect.
        effects = await _ask(call, change, dry=False)
        if is_new:
            await put_on_record(call, "cluster.upgrade", f"level {level}")
    return reply(_raised(effects, level=level, dry_run=dry_run, new=is_new))


async def _change(
    call: Call, change: Expect | Dismiss, *, action: str, dry_run: bool
) -> HttpAnswer[MembersChanged]:
    effects = await _ask(call, change, dry=True)
    is_new = any(effect.changes for effect in effects)
    if is_new and isinstance(change, Dismiss) and change.id == call.services.settings.node_id:
        # A removed node can neither learn of its removal nor record it in the audit.
        raise _ITSELF.saying(f"{change.id} is the node asked: ask another one to remove it")
    if not dry_run:
        effects = await _ask(call, change, dry=False)
        if is_new:
            await put_on_record(call, action, f"node {change.id}")
    return reply(
        MembersChanged(
            node_id=change.id,
            dry_run=dry_run,
            changed=is_new and not dry_run,
            shards=list(map(_shard, effects)),
        )
    )


async def _ask(call: Call, change: Expect | Dismiss | Raise, *, dry: bool) -> list[Effect]:
    members, timeout_s = call.services.cluster.members, call.timeout_s
    effects = [
        await members.change(shard, change, timeout_s=timeout_s, dry=dry)
        for shard in range(call.services.settings.shards)
    ]
    for effect in effects:
        if effect.refused:
            # The first shard is representative: shards differ in their leader, and seldom in their
            # voters. A node reports its formats to every shard.
            raise _BY_CODE[effect.code].saying(effect.refused)
    return effects


def _shard(effect: Effect) -> MemberShard:
    return MemberShard(
        shard=effect.shard,
        leader=effect.leader,
        voters=effect.voters,
        voters_after=effect.voters_after,
        learners_after=effect.learners_after,
        quorum=len(effect.voters) // 2 + 1,
        quorum_after=len(effect.voters_after) // 2 + 1,
        answering=effect.answering,
        done=effect.done,
    )


def _raised(effects: Sequence[Effect], *, level: int, dry_run: bool, new: bool) -> LevelRaised:
    """Render an upgrade of every shard; `new` is true if it changed one of them."""
    known: dict[str, int] = {}
    for node_id, knows in (each for effect in effects for each in effect.levels):
        known[node_id] = min(knows, known.get(node_id, knows))
    return LevelRaised(
        level=level,
        dry_run=dry_run,
        changed=new and not dry_run,
        shards=msgspec.convert(effects, list[LevelShard], from_attributes=True),
        nodes=[LevelNode(node_id, knows) for node_id, knows in sorted(known.items())],
    )
