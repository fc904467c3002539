"""Artifact files: adapts the artifact store to the broker's interface."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

from codeq_cluster.artifacts import ArtifactStore, Stored, Upload, open_store
from codeq_cluster.artifacts.names import artifact_path, upload_prefix
from codeq_cluster.broker.values import NewFile
from codeq_cluster.errors import ArtifactStoreFailed
from codeq_cluster.node.base import NodeBase

log = logging.getLogger(__name__)


class ArtifactFiles:
    """Stores the files of uploads.

    Args:
        store: Opened and closed by the caller.
        bytes_max: Of one artifact.
        timeout_s: Of all the files of one result together; the store bounds the rest.

    Attributes:
        kept: The store, for reading artifacts.
    """

    def __init__(self, store: ArtifactStore, *, bytes_max: int, timeout_s: float) -> None:
        self.kept = store
        self._bytes_max = bytes_max
        self._timeout_s = timeout_s

    async def check_soon(self) -> None:
        """Log a warning if the store cannot be used; the node serves in any case."""
        try:
            await self.check()
        except ArtifactStoreFailed as error:
            log.warning("artifacts cannot be stored", extra={"error": str(error)})

    async def check(self) -> None:
        """Write, find and delete a test file; raises ArtifactStoreFailed."""
        await self.kept.check()

    async def store(
        self,
        tenant: str,
        task_id: str,
        upload: str,
        *,
        name: str,
        content_type: str,
        chunks: AsyncIterator[bytes],
    ) -> Stored:
        """Store one file; raises ArtifactTooLarge, ArtifactStoreFailed and errors of `chunks`."""
        path = artifact_path(tenant, task_id, upload, name)
        return await self.kept.put(
            path, chunks, content_type=content_type, bytes_max=self._bytes_max
        )

    async def store_all(
        self, tenant: str, task_id: str, upload: str, files: Sequence[NewFile]
    ) -> None:
        """Store files, all or none; raises ArtifactStoreFailed."""
        uploads = [
            Upload(name=each.name, chunks=_given(each.chunks), content_type=each.content_type)
            for each in files
        ]
        bound = asyncio.timeout(self._timeout_s)
        try:
            async with bound:
                await self.kept.put_all(
                    uploads,
                    tenant=tenant,
                    task_id=task_id,
                    upload_id=upload,
                    bytes_max=self._bytes_max,
                )
        except TimeoutError as error:
            assert bound.expired(), "the store's own deadlines are its errors"
            text = f"storing {len(files)} artifacts: not done within {self._timeout_s:g} s"
            raise ArtifactStoreFailed(text) from error

    async def discard(self, tenant: str, task_id: str, upload: str) -> None:
        """Delete all of an upload; raises ArtifactStoreFailed."""
        await self.kept.delete_prefix(upload_prefix(tenant, task_id, upload))


def open_artifacts(base: NodeBase) -> ArtifactFiles | None:
    """Return the configured artifact store, or None if none is configured."""
    settings = base.settings
    store = open_store(settings.artifacts)
    if store is None:
        return None
    base.stack.push_async_callback(store.close)
    return ArtifactFiles(
        store,
        bytes_max=settings.limits.max_artifact_bytes,
        timeout_s=settings.artifacts.timeout_ms / 1000,
    )


async def _given(chunks: Sequence[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
