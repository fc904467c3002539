"""Place: where backups are kept: what a directory and a bucket have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class Place(Protocol):
    """Keeps files by the backup's id and their own name; every method blocks.

    What it cannot carry out raises BackupFailed.
    """

    @property
    def where(self) -> str:
        """Name it for a reader."""

    def write(self, backup: str, file: str, pieces: Iterator[bytes]) -> None:
        """Store a file; whole and on disk once it returns, and never seen in part.

        What `pieces` raises ends it, and nothing is stored.
        """

    def read(self, backup: str, file: str) -> Iterator[bytes]:
        """Yield a file's content; raises BackupFailed when there is none."""

    def backups(self) -> dict[str, frozenset[str]]:
        """Return the files of each backup by its id, complete or not."""

    def delete(self, backup: str) -> None:
        """Delete a backup, its manifest first, so that what a crash leaves is none."""
