"""Open target: creates the place that the settings name."""

from __future__ import annotations

from codeq_cluster.backup.bucket import BackupBucket
from codeq_cluster.backup.directory import BackupDirectory
from codeq_cluster.backup.target import BackupTarget
from codeq_cluster.settings import BackupSettings


def open_place(settings: BackupSettings) -> BackupTarget | None:
    """Return the place of backups, or None if there is none; connects to nothing yet."""
    if settings.directory is not None:
        return BackupDirectory(settings.directory)
    return BackupBucket(settings) if settings.s3.bucket else None
