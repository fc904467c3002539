"""Backup views: backups, and what an import from one did, as JSON."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Struct, UnsetType

from codeq_cluster.backup.catalogue import FoundBackup, begun_ms
from codeq_cluster.backup.job import Progress, Stage
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.outcomes import Imported


class BackupView(Struct, rename="camel", kw_only=True):
    """Progress of a backup: `bytes` written or, while VERIFYING, read back."""

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
    """A stored backup; one with a `problem` is not reliable."""

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


class ImportView(Struct, rename="camel", kw_only=True):
    """The outcome of importing the tasks and items of one request.

    `imported`, `present`, `ended`, `left` and the lists of ids together cover all its tasks. The
    name of a list ends with the reason its tasks were left out: `Taken`, `Apart` or `Large`. If
    some are `left`, `limit` names the exhausted budget.
    """

    imported: int
    present: int
    ended: int
    forgotten_keys: int
    keys_taken: tuple[str, ...]
    keys_apart: tuple[str, ...]
    ids_taken: tuple[str, ...]
    too_large: tuple[str, ...]
    left: int
    limit: str
    items_imported: int
    items_present: int
    items_refused: tuple[str, ...]
    dry_run: bool


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


def import_view(outcome: Imported, *, dry_run: bool) -> ImportView:
    """Render the outcome of importing one request."""
    return ImportView(**msgspec.structs.asdict(outcome), dry_run=dry_run)
