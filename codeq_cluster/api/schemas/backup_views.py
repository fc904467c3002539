"""Backup views: backups as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from codeq_cluster.backup.catalogue import FoundBackup, begun_ms
from codeq_cluster.backup.job import Progress, Stage
from codeq_cluster.core.instants import rfc3339


class BackupView(Struct, rename="camel", kw_only=True):
    """Progress of a backup: `bytes` written or, while VERIFYING, read again."""

    id: str
    node: str
    status: Stage
    shards: int
    shards_done: int
    bytes: int
    tasks: int
    started_at: str
    ended_at: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    deleted: list[str] = []


class KeptBackup(Struct, rename="camel", kw_only=True):
    """A stored backup; do not rely on one that has a `problem`."""

    id: str
    started_at: str
    complete: bool
    problem: str | UnsetType = UNSET
    cluster_id: str | UnsetType = UNSET
    node: str | UnsetType = UNSET
    shards: int | UnsetType = UNSET
    tasks: int | UnsetType = UNSET
    bytes: int | UnsetType = UNSET
    tenant: str | UnsetType = UNSET


class BackupPage(Struct):
    """The stored backups, the oldest first."""

    backups: list[KeptBackup]


def backup_view(progress: Progress) -> BackupView:
    """Render the progress of a backup."""
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


def kept_backup(found: FoundBackup) -> KeptBackup:
    """Render a stored backup."""
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


def backup_page(found: Sequence[FoundBackup]) -> BackupPage:
    """Render the stored backups."""
    return BackupPage(backups=[kept_backup(each) for each in found])
