"""Provider: the interface of an artifact store, and its descriptions of artifacts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One stored artifact.

    Attributes:
        size: Bytes.
        etag: As in a header, with quotes; a new one after each put. Empty if the store gives none.
    """

    size: int
    etag: str
    content_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """An artifact being read.

    Attributes:
        start: First byte of the chunks.
        end: One past their last byte.
        chunks: The bytes from `start` to `end`, once.
    """

    stored: Stored
    start: int
    end: int
    chunks: AsyncIterator[bytes]


class ArtifactBackend(Protocol):
    """Stores artifacts by path; a call that fails raises ArtifactStoreFailed.

    Paths are those of `names`; the provider prepends its own location.
    """

    async def check(self) -> None:
        """Write, find and delete a test object, so that a wrong setting shows at once."""

    async def put(self, path: str, chunks: AsyncIterator[bytes], *, content_type: str) -> Stored:
        """Store the chunks, replacing an older artifact; visible whole or not at all.

        It is never cancelled: it ends when `chunks` ends or raises. An error of `chunks` passes
        through after everything written by the put has been deleted.
        """

    async def head(self, path: str) -> Stored:
        """Return an artifact's description; raises ArtifactMissing if there is none."""

    def get(
        self, path: str, *, start: int, end: int | None, etag: str
    ) -> AbstractAsyncContextManager[Reading]:
        """Open an artifact.

        Args:
            path: By `names`.
            start: First byte, below the size unless it is 0.
            end: One past the last byte, cut to the size; None for the size.
            etag: The etag it must have; empty for any.

        Raises:
            ArtifactMissing: There is none, or it has another etag.
        """

    async def delete(self, path: str) -> None:
        """Delete an artifact, if there is one."""

    async def delete_prefix(self, prefix: str) -> int:
        """Delete everything below a prefix and return the count; a prefix ends at a segment."""
