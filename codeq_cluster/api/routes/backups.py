"""Backups: taking a backup of the whole cluster on this node, and its progress."""

from __future__ import annotations

from functools import partial

from codeq_cluster.api.http.answer import HttpAnswer, reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, not_applied
from codeq_cluster.api.schemas.backup_views import BackupPage, BackupView, backup_page, backup_view
from codeq_cluster.backup.job import SETTLE_S, BackupJobs, BackupRunning
from codeq_cluster.errors import BackupFailed

NO_PLACE = ApiError(
    409,
    "no place for backups is configured on this node: set backup.directory or backup.s3.bucket",
    "no-backup-place",
)
RUNNING = ApiError(409, "a backup is under way", "backup-running", retryable=True)
UNREACHABLE = not_applied(503, "the place of backups does not answer", "backup-place-failed")
NOT_FOUND = ApiError(404, "backup not found", "not-found")


async def create(call: Call) -> HttpAnswer[BackupView]:
    """Start a backup; the answer has its id, and it runs in the background."""
    recording = partial(
        call.services.broker.queue_policies.record,
        call.identity.tenant,
        by=call.identity.subject,
        action="backup.create",
        timeout_s=SETTLE_S,
    )
    try:
        begun = _of(call).start(
            lambda progress: recording(target=progress.id, detail=f"on {progress.node}")
        )
    except BackupRunning as running:
        raise RUNNING from running
    return reply(backup_view(begun), status=202)


async def backup(call: Call) -> HttpAnswer[BackupView]:
    """Return the progress of a backup."""
    try:
        progress = await _of(call).progress(call.task_id(not_found=NOT_FOUND))
    except BackupFailed as failed:
        raise UNREACHABLE from failed
    if progress is None:
        raise NOT_FOUND
    return reply(backup_view(progress))


async def backups(call: Call) -> HttpAnswer[BackupPage]:
    """Return the backups in this node's place for backups, the oldest first."""
    try:
        found = await _of(call).found()
    except BackupFailed as failed:
        raise UNREACHABLE from failed
    return reply(backup_page(found))


def _of(call: Call) -> BackupJobs:
    if call.services.backups is None:
        raise NO_PLACE
    return call.services.backups
