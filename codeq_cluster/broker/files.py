"""Files: what the broker needs from the place that keeps artifacts, which `node.py` provides."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from codeq_cluster.broker.requests import NewFile


class Kept(Protocol):
    """An artifact as it is stored."""

    @property
    def size(self) -> int:
        """Return its bytes."""

    @property
    def etag(self) -> str:
        """Return its etag, as it stands in a header."""


class Files(Protocol):
    """Keeps artifacts below their task and their upload; every call is bounded in time."""

    async def check(self) -> None:
        """Raise ArtifactStoreFailed when nothing can be stored now."""

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
        """Store one file; whatever is raised, nothing of it is left.

        Raises:
            ArtifactTooLarge: It is; an error of `chunks` passes through as well.
            ArtifactStoreFailed: It could not be stored in time.
        """

    async def store_all(
        self, tenant: str, task_id: str, upload: str, files: Sequence[NewFile]
    ) -> None:
        """Store files, all or none; raises ArtifactStoreFailed."""

    async def discard(self, tenant: str, task_id: str, upload: str) -> None:
        """Delete all of an upload; raises ArtifactStoreFailed when some of it may be left."""
