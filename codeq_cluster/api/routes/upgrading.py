"""Upgrading: enabling newer formats once every node knows them; they stay enabled.

If a shard refuses, nothing is started. A change that was started and did not finish is finished by
repeating the request.
"""

from __future__ import annotations

from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, bad_request, invalid_body
from codeq_cluster.api.routes.recording import put_on_record
from codeq_cluster.api.schemas import requests
from codeq_cluster.api.schemas.cluster_views import LevelRaised, level_raised
from codeq_cluster.codec.levels import LEVEL_MAX
from codeq_cluster.membership.plan import Raise
from codeq_cluster.membership.service import Effect

_INVALID = invalid_body()
_INVALID_LEVEL = bad_request(f"invalid 'level' (use 1 to {LEVEL_MAX})", "out-of-range")
REFUSALS = (
    _INVALID_LEVEL,
    ApiError(409, "another change is under way: try again", "busy", retryable=True),
    ApiError(
        409,
        "not every node knows formats of level 2: n3 (level 1); start each of these with the newer "
        "release, or remove it",
        "level-unknown",
    ),
    ApiError(409, "formats of level 2 are in use, which nothing lowers to 1", "level-in-use"),
    ApiError(409, "a member does not know the formats that would be in use", "unsafe"),
)
_BY_CODE = {refusal.code: refusal for refusal in REFUSALS}


async def upgrade(call: Call) -> HttpAnswer[LevelRaised]:
    """Enable newer formats on every shard; no older release can return afterwards."""
    body = requests.UPGRADE.decode_any(call.text, error=_INVALID.text)
    dry_run = body.dry_run or False
    if body.level is not None and not 1 <= body.level <= LEVEL_MAX:
        raise _INVALID_LEVEL
    level = body.level or max(effect.level_after for effect in await _ask(call, 0, dry=True))
    effects = await _ask(call, level, dry=True)
    is_new = any(effect.changes for effect in effects)
    if not dry_run:
        # Repeat it even when nothing is new: an earlier request may not have taken effect.
        effects = await _ask(call, level, dry=False)
        if is_new:
            await put_on_record(call, "cluster.upgrade", f"level {level}")
    return reply(level_raised(effects, level=level, dry_run=dry_run, new=is_new))


async def _ask(call: Call, level: int, *, dry: bool) -> list[Effect]:
    members, timeout_s = call.services.members, call.timeout_s
    effects = [
        await members.change(shard, Raise(level=level), timeout_s=timeout_s, dry=dry)
        for shard in range(call.services.settings.shards)
    ]
    for effect in effects:
        if effect.refused:
            # The first shard is representative: a node reports its formats to every shard.
            raise _BY_CODE[effect.code].saying(effect.refused)
    return effects
