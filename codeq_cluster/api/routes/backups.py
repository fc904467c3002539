"""Backups: taking a backup of the whole cluster on this node, and its progress."""

from __future__ import annotations

from collections.abc import Coroutine

from msgspec import UNSET, Struct, UnsetType

from codeq_cluster.api.declared.operations import Answer, Routes
from codeq_cluster.api.declared.wide import Int64
from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, not_applied
from codeq_cluster.api.routes.task_views import NOON_MS
from codeq_cluster.auth import Access
from codeq_cluster.backup.catalogue import FoundBackup, begun_ms
from codeq_cluster.backup.job import SETTLE_S, BackupJobs, BackupRunning, Progress, Stage
from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.values import Caller
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.errors import BackupFailed

ROUTES = Routes(__name__, __doc__, Access.OPERATOR)

NO_PLACE = ApiError(
    409,
    "no place for backups is configured on this node: set backup.directory or backup.s3.bucket",
    "no-backup-place",
)
RUNNING = ApiError(409, "a backup is under way", "backup-running", retryable=True)
UNREACHABLE = not_applied(503, "the place of backups does not answer", "backup-place-failed")
NOT_FOUND = ApiError(404, "backup not found", "not-found")


class BackupView(Struct, rename="camel", kw_only=True):
    """Progress of a backup: `bytes` written or, while VERIFYING, read back."""

    id: str
    node: str
    status: Stage
    shards: int
    shards_done: int
    bytes: Int64
    tasks: int
    started_at: str
    ended_at: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    deleted: list[str] = []


class KeptBackup(Struct, rename="camel", kw_only=True):
    """A stored backup; one with a `problem` is not reliable."""

    id: str
    started_at: str
    complete: bool
    problem: str | UnsetType = UNSET
    cluster_id: str | UnsetType = UNSET
    node: str | UnsetType = UNSET
    shards: int | UnsetType = UNSET
    tasks: int | UnsetType = UNSET
    bytes: Int64 | UnsetType = UNSET
    tenant: str | UnsetType = UNSET


class BackupPage(Struct):
    """The stored backups, the oldest first."""

    backups: list[KeptBackup]


_RUNNING = BackupView(
    id="20260131T123000000Z-5f0c4a2e",
    node="n1",
    status=Stage.WRITING,
    shards=8,
    shards_done=3,
    bytes=73_400_320,
    tasks=0,
    started_at=rfc3339(NOON_MS + 30 * 60_000),
)
_KEPT = KeptBackup(
    id=_RUNNING.id,
    started_at=_RUNNING.started_at,
    complete=True,
    cluster_id="orders",
    node="n1",
    shards=8,
    tasks=120_000,
    bytes=195_035_136,
)


@ROUTES(
    "POST",
    "/admin/backup",
    Answer("The backup has begun; this node returns its progress.", _RUNNING, status=202),
    errors=(NO_PLACE, RUNNING),
    replicated=False,
)
async def create(call: Call) -> HttpAnswer[BackupView]:
    """Start a backup; the answer has its id, and it runs in the background."""
    who, queue_policies = call.identity, call.services.broker.queue_policies

    def recording(progress: Progress) -> Coroutine[None, None, None]:
        return queue_policies.record(
            Caller(who.tenant, who.subject, deadline_in(SETTLE_S)),
            action="backup.create",
            target=progress.id,
            detail=f"on {progress.node}",
        )

    try:
        begun = _of(call).start(recording)
    except BackupRunning as running:
        raise RUNNING from running
    return reply(_progress(begun), status=202)


@ROUTES(
    "GET",
    "/admin/backup",
    Answer("All backups in the place.", BackupPage([_KEPT])),
    errors=(NO_PLACE, UNREACHABLE),
    replicated=False,
)
async def backups(call: Call) -> HttpAnswer[BackupPage]:
    """Return the backups in this node's place for backups, the oldest first."""
    try:
        found = await _of(call).found()
    except BackupFailed as failed:
        raise UNREACHABLE from failed
    return reply(BackupPage(list(map(_kept, found))))


@ROUTES(
    "GET",
    "/admin/backup/{id}",
    Answer("The progress of the backup.", _RUNNING),
    errors=(NOT_FOUND, NO_PLACE, UNREACHABLE),
    replicated=False,
)
async def backup(call: Call) -> HttpAnswer[BackupView]:
    """Return the progress of a backup."""
    try:
        progress = await _of(call).progress(call.task_id(not_found=NOT_FOUND))
    except BackupFailed as failed:
        raise UNREACHABLE from failed
    if progress is None:
        raise NOT_FOUND
    return reply(_progress(progress))


def _of(call: Call) -> BackupJobs:
    if call.services.cluster.backups is None:
        raise NO_PLACE
    return call.services.cluster.backups


def _progress(progress: Progress) -> BackupView:
    return BackupView(
        id=progress.id,
        node=progress.node,
        status=progress.stage,
        shards=progress.parts,
        shards_done=progress.parts_done,
        bytes=progress.bytes,
        tasks=progress.tasks,
        started_at=rfc3339(progress.started_ms),
        ended_at=rfc3339(progress.ended_ms) if progress.ended_ms else UNSET,
        error=progress.error or UNSET,
        deleted=list(progress.deleted),
    )


def _kept(found: FoundBackup) -> KeptBackup:
    manifest = found.manifest
    if manifest is None:
        return KeptBackup(
            id=found.id,
            started_at=rfc3339(begun_ms(found.id)),
            complete=False,
            problem=found.problem,
        )
    return KeptBackup(
        id=found.id,
        started_at=rfc3339(manifest.created_ms),
        complete=True,
        cluster_id=manifest.cluster_id,
        node=manifest.node_id,
        shards=manifest.shards,
        tasks=manifest.tasks,
        bytes=manifest.size,
        tenant=UNSET if manifest.tenant is None else manifest.tenant,
    )
