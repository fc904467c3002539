"""Imports: a tenant's tasks from another cluster, imported into this running one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from time import monotonic

from msgspec import Struct
from msgspec.structs import asdict

from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.declared.parameters import query
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.bodies import import_bytes_max
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, bad_request, invalid_body
from codeq_cluster.api.http.refusals import STALLED, body_too_large
from codeq_cluster.api.routes.listing import caller
from codeq_cluster.api.routes.task_views import NOON_MS, TASK_ID
from codeq_cluster.auth import Access
from codeq_cluster.backup.manifest import ID, is_id
from codeq_cluster.backup.tenant_rows import tenant_name
from codeq_cluster.broker.values import new_request
from codeq_cluster.codec.arrivals import Arrivals, decode_arrivals
from codeq_cluster.codec.levels import LEVEL_MAX
from codeq_cluster.codec.records import RecordInvalid
from codeq_cluster.core.faults import fault, new_item_fault
from codeq_cluster.core.items import KIND_OF, audit_id, audit_ms
from codeq_cluster.core.outcomes import Imported

ROUTES = Routes(__name__, __doc__, Access.ADMIN)

_CHECKED_AT_ONCE_S = 0.003  # One task with 2,200 rows beside it takes four times as long.

INVALID_BACKUP = bad_request("invalid 'backup' (use the id of the backup)", "invalid-query")
OTHER_TENANT = ApiError(403, "the token is of another tenant than 'tenant' names", "other-tenant")
_UNREADABLE = "the body is none that this release imports"
MALFORMED = invalid_body(_UNREADABLE)
INVALID_LEVEL = bad_request(f"invalid 'level' (use 1 to {LEVEL_MAX})", "out-of-range")
NEWER_FORMATS = ApiError(
    409,
    "the backup has formats of level 2, and the cluster uses those up to level 1: "
    "have an operator let it use them first, by cluster upgrade",
    "level-not-used",
)

_BACKUP = query(
    "backup",
    "Id of the backup that the body comes from, for the audit record.",
    INVALID_BACKUP,
    required=True,
    pattern=f"^{ID.pattern}$",
)
_TENANT = query(
    "tenant",
    "The token's tenant, as a safeguard; `_` for the default tenant.",
    OTHER_TENANT,
    required=True,
)
_FORGET_KEYS = query(
    "forgetKeys",
    "Import a task without its idempotency key if the key cannot be kept.",
    type="boolean",
)
_DRY_RUN = query("dryRun", "`true` returns the outcome and changes nothing.", type="boolean")
INVALID_RECORD = bad_request("invalid 'record' (use the one of an answer)", "invalid-query")
_RECORD = query(
    "record",
    "`record` of the answer to an earlier part of the same import, so that the audit has one "
    "record of both, with the sum of their counts. Absent, or an hour old: a new one.",
    INVALID_RECORD,
)
_LEVEL = query(
    "level",
    "Version of the backup's formats; default: 1.",
    INVALID_LEVEL,
    type="integer",
    minimum=1,
    maximum=LEVEL_MAX,
)


class ImportView(Struct, rename="camel", kw_only=True):
    """The outcome of importing the tasks and items of one request.

    `imported`, `present`, `ended`, `left` and the lists of ids together cover all its tasks. The
    name of a list ends with the reason its tasks were left out: `Taken`, `Apart` or `Large`. If
    some are `left`, `limit` names the exhausted budget. A task keeps its id if it was created in a
    tenant of the caller's name. `renamed` counts those that did not; the lists have the ids of the
    backup. `topicsApart` has `queue@limit` of topics left out because their queues cannot share
    here the limits that they name. `record` names the audit record, for the next part.
    """

    imported: int
    present: int
    ended: int
    forgotten_keys: int
    renamed: int
    keys_taken: tuple[str, ...]
    keys_apart: tuple[str, ...]
    too_large: tuple[str, ...]
    left: int
    limit: str
    items_imported: int
    items_present: int
    items_refused: tuple[str, ...]
    topics_apart: tuple[str, ...]
    dry_run: bool
    record: str


@ROUTES(
    "POST",
    "/admin/import",
    Answer(
        "The outcome for each task and item.",
        ImportView(
            **asdict(Imported(imported=120, present=7, keys_taken=(TASK_ID,), items_imported=2)),
            dry_run=False,
            record=audit_id(NOON_MS, "0c8a2f4e6d1b4f7a9b3c5e2d"),
        ),
    ),
    binary=True,
    parameters=(_BACKUP, _TENANT, _RECORD, _FORGET_KEYS, _DRY_RUN, _LEVEL),
    errors=(
        NEWER_FORMATS,
        MALFORMED,
        lambda node: body_too_large(import_bytes_max(node.raft.entry_bytes_max)),
        STALLED,
    ),
)
async def take(call: Call) -> HttpAnswer[ImportView]:
    """Import tasks, topics, pauses and subscriptions of another cluster.

    The body is what `codeq-cluster import` extracts from a backup. Tasks and items that exist
    already are left unchanged, so the same request may be repeated. Everything becomes part of the
    caller's tenant.
    """
    source = call.query_text("backup")
    if not is_id(source):
        raise INVALID_BACKUP
    named = call.query_text("tenant")
    if not named:
        raise OTHER_TENANT
    if tenant_name(named) != call.identity.tenant:
        text = f"the token is of tenant {call.identity.tenant or '_'}, not of {named[:128]}"
        raise ApiError(403, text, "other-tenant")
    record = call.query_text("record") or audit_id(call.services.now_ms(), new_request())
    if audit_ms(record) is None:
        raise INVALID_RECORD
    _refuse_newer(call)
    forget_keys, dry_run = _FORGET_KEYS.flag(call), _DRY_RUN.flag(call)
    most = import_bytes_max(call.services.settings.raft.entry_bytes_max)
    tenant = call.identity.tenant
    with call.services.shares.imports.one(tenant), call.services.shares.bodies.of(tenant) as body:
        sent = await body.read(call.request, _UNREADABLE, bytes_max=most)
        arrivals = await asyncio.to_thread(decoded, bytes(sent))
        left = faults(arrivals)
        while await call.services.shares.import_checks.in_turn(tenant, partial(_checked, left)):
            pass
        outcome = await call.services.broker.importer.take(
            caller(call),
            arrivals,
            source=source,
            record=record,
            forget_keys=forget_keys,
            dry_run=dry_run,
        )
    return reply(ImportView(**asdict(outcome), dry_run=dry_run, record=record))


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


def decoded(body: bytes) -> Arrivals:
    """Return the tasks and items in a body; blocks for long.

    Raises:
        ApiError: 400, with the first record and field that cannot be read.
    """
    try:
        return decode_arrivals(body)
    except RecordInvalid as invalid:
        raise MALFORMED.saying(f"{MALFORMED.text}: {invalid}") from invalid


async def _checked(left: Iterator[None]) -> bool:
    """Check records for some milliseconds; return False once all are.

    A thread would take the interpreter from the loop again and again for as long as it checks.
    """
    until_s = monotonic() + _CHECKED_AT_ONCE_S
    return any(monotonic() >= until_s for _ in left)


def faults(arrivals: Arrivals) -> Iterator[None]:
    """Check whether records are within their bounds, one at each step.

    Raises:
        ApiError: 400, with the first record and field that are not.
    """
    for arrival in arrivals.tasks:
        _refuse("task", arrival.task.id, fault(arrival))
        yield
    for item in arrivals.items:
        _refuse(KIND_OF[type(item)].value, item.id, new_item_fault(item))
        yield


def _refuse(kind: str, name: str, why: str) -> None:
    if why:
        raise invalid_body(f"{kind} {name[:128]}: {why}")
