"""Imports: a tenant's tasks from another cluster, imported into this running one."""

from __future__ import annotations

import asyncio
import re

import msgspec
from aiohttp import web
from aiohttp.http import HttpProcessingError

from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import COMMAND, Call
from codeq_cluster.api.http.errors import ApiError, bad_request, invalid_body
from codeq_cluster.api.http.refusals import STALLED, body_too_large
from codeq_cluster.api.routes.dead_letters import flag
from codeq_cluster.api.schemas.backup_views import ImportView, import_view
from codeq_cluster.backup.manifest import is_id
from codeq_cluster.backup.tenant_rows import tenant_name
from codeq_cluster.codec.arrivals import Arrivals, decode_arrivals
from codeq_cluster.codec.levels import LEVEL_MAX
from codeq_cluster.codec.records import RecordInvalid
from codeq_cluster.core.importing import fault, item_fault
from codeq_cluster.core.items import Topic
from codeq_cluster.core.operations import Arrival

_BYTES_MIN = 2 * 2**20
TASKS_MAX = 256  # Per request, and as many items: 25 ms of decisions on one shard.

INVALID_BACKUP = bad_request("invalid 'backup' (use the id of the backup)", "invalid-query")
OTHER_TENANT = ApiError(403, "the token is not of the tenant that 'tenant' names", "other-tenant")
MALFORMED = invalid_body("the body is none that this release imports")
INVALID_LEVEL = bad_request(f"invalid 'level' (use 1 to {LEVEL_MAX})", "out-of-range")
NEWER_FORMATS = ApiError(
    409,
    "the backup has formats of level 2, and the cluster uses those up to level 1: "
    "have an operator let it use them first, by cluster upgrade",
    "level-not-used",
)
TOO_MANY = bad_request(f"at most {TASKS_MAX} tasks and as many items", "out-of-range")

# The broker's ids: the part after a dot in a callback's id is not the task's.
_TASK_ID = re.compile(r"[A-Za-z0-9_:-]{1,128}")
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,256}")


async def take(call: Call) -> HttpAnswer[ImportView]:
    """Import tasks, topics, pauses and subscriptions of another cluster.

    The body is what `codeq-cluster import` extracts from a backup. Tasks and items that exist
    already are left unchanged, so the same request may be repeated. Everything becomes part of the
    caller's tenant.
    """
    source = call.query_text("backup")
    if not is_id(source):
        raise INVALID_BACKUP
    tenant = call.query_text("tenant")
    if not tenant or tenant_name(tenant) != call.identity.tenant:
        raise OTHER_TENANT
    _refuse_newer(call)
    forget_keys, dry_run = flag(call, "forgetKeys"), flag(call, "dryRun")
    with call.services.import_room.one():
        arrivals = await asyncio.to_thread(_arrivals, await _body(call))
        outcome = await call.services.broker.importer.take(
            call.identity.tenant,
            arrivals,
            by=call.identity.subject,
            source=source,
            forget_keys=forget_keys,
            dry_run=dry_run,
            timeout_s=call.timeout_s,
        )
    return reply(import_view(outcome, dry_run=dry_run))


def _refuse_newer(call: Call) -> None:
    """Refuse rows of formats that the cluster does not use yet.

    An older node could not read such rows once they are stored.
    """
    # Backups of the first formats have no such field.
    level = call.query_integer("level") if call.query_text("level") else 1
    if not 1 <= level <= LEVEL_MAX:
        raise INVALID_LEVEL
    used = min(shard.level for shard in call.services.broker.shard_status())
    if level > used:
        raise NEWER_FORMATS.saying(
            f"the backup has formats of level {level}, and the cluster uses those up to level "
            f"{used}: have an operator let it use them first, by cluster upgrade"
        )


def bytes_max(entry_bytes_max: int) -> int:
    """Return the limit of a body: many small tasks, or one that took three entries."""
    return max(_BYTES_MIN, 4 * entry_bytes_max)


async def _body(call: Call) -> bytes:
    settings = call.services.settings
    most = bytes_max(settings.raft.entry_bytes_max)
    body = bytearray()
    try:
        async with asyncio.timeout(settings.limits.body_timeout_ms / 1000):
            async for chunk in call.request.content.iter_any():
                body += chunk
                if len(body) > most:
                    raise body_too_large(most)
    except TimeoutError as stalled:
        raise STALLED from stalled
    except (web.RequestPayloadError, HttpProcessingError) as broken:
        raise MALFORMED from broken
    return bytes(body)


def _arrivals(body: bytes) -> Arrivals:
    """Decode a body and check that every task and item is valid; blocks for long."""
    try:
        arrivals = decode_arrivals(body)
    except RecordInvalid as invalid:
        raise MALFORMED from invalid
    if max(len(arrivals.tasks), len(arrivals.items)) > TASKS_MAX:
        raise TOO_MANY
    for arrival in arrivals.tasks:
        why = _fault(arrival)
        if why:
            raise invalid_body(f"task {arrival.task.id[:128]}: {why}")
    for item in arrivals.items:
        name = item.name if isinstance(item, Topic) else item.id
        why = item_fault(item)
        if not (_NAME.fullmatch(item.id) and _NAME.fullmatch(name)):
            why = "its name is none"
        if why:
            raise invalid_body(f"item {item.id[:128]}: {why}")
    return arrivals


def _fault(arrival: Arrival) -> str:
    task = arrival.task
    if not _TASK_ID.fullmatch(task.id):
        return "its id is none"
    if not COMMAND.fullmatch(task.command):
        return "its command is none"
    if task.dead_queue and not COMMAND.fullmatch(task.dead_queue.lower()):
        return "its queue of dead letters is none"
    callbacks = (delivery.id for delivery, _ in arrival.deliveries)
    if not all(_NAME.fullmatch(name) for name in (task.claim or "-", *task.uploads, *callbacks)):
        return "the id of its claim, of an upload or of a callback is none"
    texts = [body.body for _, body in arrival.deliveries if body.body]
    if arrival.result is not None and arrival.result.body:
        texts.append(arrival.result.body)
    try:
        for text in (arrival.payload, *texts):
            msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.MsgspecError, UnicodeError):
        return "its payload or its result is not JSON"
    return fault(arrival)
