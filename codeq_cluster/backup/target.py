"""Target: the common interface of a directory and a bucket of backups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class BackupTarget(Protocol):
    """Stores files by the backup's id and their own name; every method blocks.

    A call that fails raises BackupFailed.
    """

    @property
    def where(self) -> str:
        """Return the place's name, for a reader."""

    def write(self, backup: str, file: str, pieces: Iterator[bytes]) -> None:
        """Store a file; durable when it returns, and never visible in part.

        An error of `pieces` ends it, and nothing is stored.
        """

    def read(self, backup: str, file: str) -> Iterator[bytes]:
        """Yield a file's content; raises BackupFailed if there is none."""

    def backups(self) -> dict[str, frozenset[str]]:
        """Return the files of each backup by its id, complete or not."""

    def delete(self, backup: str) -> None:
        """Delete a backup, its manifest first: what a crash leaves is then no backup."""
