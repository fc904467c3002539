"""Provider: what a place that keeps artifacts can do, and what it says of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One artifact as it is stored.

    Attributes:
        size: Bytes.
        etag: As it stands in a header, quotes included; another one after each put. Empty when the
            store gives none.
    """

    size: int
    etag: str
    content_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """An artifact being read.

    Attributes:
        start: First byte that comes.
        end: One past the last byte that comes.
        chunks: The bytes from `start` to `end`, once.
    """

    stored: Stored
    start: int
    end: int
    chunks: AsyncIterator[bytes]


class Provider(Protocol):
    """Keeps artifacts by path; what it cannot carry out raises ArtifactStoreFailed.

    Paths are those of `names`; the provider adds where it keeps them.
    """

    async def check(self) -> None:
        """Write, find and delete something, so that a wrong setting shows at once."""

    async def put(self, path: str, chunks: AsyncIterator[bytes], *, content_type: str) -> Stored:
        """Store the chunks, replacing what was there; visible whole or not at all.

        Never cancelled: it ends when `chunks` ends or raises, and an error of `chunks` passes
        through after everything the put had written is gone.
        """

    async def head(self, path: str) -> Stored:
        """Describe an artifact.

        Raises:
            ArtifactMissing: There is none.
        """

    def get(
        self, path: str, *, start: int, end: int | None, etag: str
    ) -> AbstractAsyncContextManager[Reading]:
        """Open an artifact.

        Args:
            path: By `names`.
            start: First byte, below the size unless it is 0.
            end: One past the last byte, cut to the size; None for the size.
            etag: What it must have; empty for whatever it has.

        Raises:
            ArtifactMissing: There is none, or it has another etag.
        """

    async def delete(self, path: str) -> None:
        """Delete an artifact, if there is one."""

    async def delete_prefix(self, prefix: str) -> int:
        """Delete all below a prefix and return how many there were; a prefix ends at a segment."""
