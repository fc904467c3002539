"""Backups: the requests and answers of the handlers of backups, and of imports from them."""

from __future__ import annotations

from codeq_cluster.api.http.refusals import STALLED, body_too_large
from codeq_cluster.api.openapi.examples import NOON_MS, TASK_ID
from codeq_cluster.api.openapi.parameters import query
from codeq_cluster.api.openapi.types import DescribedAnswer, DescribedOperation, Operations
from codeq_cluster.api.routes import backups, imports
from codeq_cluster.api.schemas.backup_views import BackupPage, KeptBackup, backup_view, import_view
from codeq_cluster.backup.job import Progress, Stage
from codeq_cluster.backup.manifest import ID
from codeq_cluster.codec.levels import LEVEL_MAX
from codeq_cluster.core.outcomes import Imported

_RUNNING = backup_view(
    Progress(
        id="20260131T123000000Z-5f0c4a2e",
        node="n1",
        stage=Stage.WRITING,
        parts=8,
        parts_done=3,
        bytes=73_400_320,
        started_ms=NOON_MS + 30 * 60_000,
    )
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
_IMPORTED = Imported(imported=120, present=7, keys_taken=(TASK_ID,), items_imported=2)


def operations(entry_bytes_max: int) -> Operations:
    """Return the description of these handlers, given the size limit of a log entry."""
    return {
        backups.create: DescribedOperation(
            DescribedAnswer(
                "The backup has begun; this node returns its progress.", _RUNNING, status=202
            ),
            errors=(backups.NO_PLACE, backups.RUNNING),
            replicated=False,
        ),
        backups.backup: DescribedOperation(
            DescribedAnswer("The progress of the backup.", _RUNNING),
            errors=(backups.NOT_FOUND, backups.NO_PLACE, backups.UNREACHABLE),
            replicated=False,
        ),
        backups.backups: DescribedOperation(
            DescribedAnswer("All backups in the place.", BackupPage([_KEPT])),
            errors=(backups.NO_PLACE, backups.UNREACHABLE),
            replicated=False,
        ),
        imports.take: DescribedOperation(
            DescribedAnswer(
                "The outcome for each task and item.", import_view(_IMPORTED, dry_run=False)
            ),
            binary=True,
            parameters=(
                query(
                    "backup",
                    "Id of the backup that the body comes from, for the audit record.",
                    required=True,
                    pattern=f"^{ID.pattern}$",
                ),
                query(
                    "tenant",
                    "The token's tenant, as a safeguard; `_` for the default tenant.",
                    required=True,
                ),
                query(
                    "forgetKeys",
                    "Import a task without its idempotency key if the key cannot be kept.",
                    type="boolean",
                ),
                query("dryRun", "`true` returns the outcome and changes nothing.", type="boolean"),
                query(
                    "level",
                    "Version of the backup's formats; default: 1.",
                    type="integer",
                    minimum=1,
                    maximum=LEVEL_MAX,
                ),
            ),
            errors=(
                imports.INVALID_BACKUP,
                imports.OTHER_TENANT,
                imports.INVALID_LEVEL,
                imports.NEWER_FORMATS,
                imports.MALFORMED,
                imports.TOO_MANY,
                body_too_large(imports.bytes_max(entry_bytes_max)),
                STALLED,
            ),
        ),
    }
