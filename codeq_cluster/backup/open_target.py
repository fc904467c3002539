"""Open target: creates the place that the settings name."""

from __future__ import annotations

from codeq_cluster.backup.bucket import BackupBucket
from codeq_cluster.backup.directory import BackupDirectory
from codeq_cluster.backup.target import BackupTarget
from codeq_cluster.settings import ArtifactSettings, BackupSettings


def open_place(settings: BackupSettings) -> BackupTarget | None:
    """Return the place of backups, or None if there is none; connects to nothing yet."""
    if settings.directory is not None:
        return BackupDirectory(settings.directory)
    if settings.s3_bucket:
        return BackupBucket(
            ArtifactSettings(
                s3_bucket=settings.s3_bucket,
                s3_endpoint=settings.s3_endpoint,
                s3_region=settings.s3_region,
                s3_prefix=settings.s3_prefix,
                s3_access_key_id=settings.s3_access_key_id,
                s3_secret_access_key=settings.s3_secret_access_key,
                s3_allow_http=settings.s3_allow_http,
                s3_virtual_hosted=settings.s3_virtual_hosted,
                timeout_ms=settings.timeout_ms,
            )
        )
    return None
