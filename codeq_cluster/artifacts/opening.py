"""Opening: creates the store that the settings name."""

from __future__ import annotations

from typing import assert_never

from codeq_cluster.artifacts.local import LocalDirectory
from codeq_cluster.artifacts.provider import ArtifactBackend
from codeq_cluster.artifacts.s3 import S3Bucket
from codeq_cluster.artifacts.store import ArtifactStore
from codeq_cluster.settings import ArtifactProvider, ArtifactSettings


def open_store(settings: ArtifactSettings) -> ArtifactStore | None:
    """Return the store, or None if artifacts have no provider; connects to nothing yet."""
    provider: ArtifactBackend
    match settings.provider:
        case ArtifactProvider.NONE:
            return None
        case ArtifactProvider.LOCAL:
            assert settings.directory is not None, "the configuration is checked"
            provider = LocalDirectory(settings.directory)
        case ArtifactProvider.S3:
            provider = S3Bucket(settings)
        case _:
            assert_never(settings.provider)
    return ArtifactStore(
        provider, timeout_s=settings.timeout_ms / 1000, uploads_max=settings.uploads_max
    )
