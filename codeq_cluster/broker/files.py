"""Files: the interface the broker needs from the artifact store, which `node/` provides."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from codeq_cluster.broker.values import NewFile


class Kept(Protocol):
    """A stored artifact."""

    @property
    def size(self) -> int:
        """Return its size in bytes."""

    @property
    def etag(self) -> str:
        """Return its etag as written in a header."""


class Files(Protocol):
    """Stores artifacts below their task and their upload; every call is bounded in time."""

    async def check(self) -> None:
        """Raise ArtifactStoreFailed if nothing can be stored now."""

    async def store(
        self,
        tenant: str,
        task_id: str,
        upload: str,
        *,
        name: str,
        content_type: str,
        chunks: AsyncIterator[bytes],
    ) -> Kept:
        """Store one file; after any error, no part of it is left.

        Raises:
            ArtifactTooLarge: The file is too large; errors of `chunks` pass through as well.
            ArtifactStoreFailed: It could not be stored in time.
        """

    async def store_all(
        self, tenant: str, task_id: str, upload: str, files: Sequence[NewFile]
    ) -> None:
        """Store files, all or none; raises ArtifactStoreFailed."""

    async def discard(self, tenant: str, task_id: str, upload: str) -> None:
        """Delete all of an upload; raises ArtifactStoreFailed if some of it may be left."""
