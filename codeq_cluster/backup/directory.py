"""Directory: backups as subdirectories of one directory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from codeq_cluster.backup.manifest import MANIFEST, is_id
from codeq_cluster.durable import sync_directory
from codeq_cluster.errors import BackupFailed

_READ_BYTES = 256 * 1024
_UNFINISHED = ".part"


class BackupDirectory:
    """Stores backups below one directory, readable by its owner alone."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    @property
    def where(self) -> str:
        """Return the directory's path, as messages show it."""
        return str(self._root)

    def write(self, backup: str, file: str, pieces: Iterator[bytes]) -> None:
        """Store a file."""
        home = self._root / backup
        target = home / file
        unfinished = home / (file + _UNFINISHED)
        with self._failing(f"writing {backup}/{file}"):
            self._root.mkdir(parents=True, exist_ok=True)
            home.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as out:
                for piece in pieces:
                    with self._failing(f"writing {backup}/{file}"):
                        out.write(piece)
                with self._failing(f"writing {backup}/{file}"):
                    out.flush()
                    os.fsync(out.fileno())
            with self._failing(f"writing {backup}/{file}"):
                unfinished.replace(target)
                sync_directory(home)
                sync_directory(self._root)
        except BaseException:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise

    def read(self, backup: str, file: str) -> Iterator[bytes]:
        """Yield a file's content."""
        with self._failing(f"reading {backup}/{file}"):
            source = (self._root / backup / file).open("rb")
        with source:
            while True:
                with self._failing(f"reading {backup}/{file}"):
                    piece = source.read(_READ_BYTES)
                if not piece:
                    return
                yield piece

    def backups(self) -> dict[str, frozenset[str]]:
        """Return the files of each backup."""
        with self._failing("listing"):
            if not self._root.exists():
                return {}
            there = {}
            for home in sorted(self._root.iterdir()):
                if is_id(home.name) and home.is_dir():
                    with suppress(FileNotFoundError):  # Another node deletes it at this moment.
                        there[home.name] = frozenset(each.name for each in home.iterdir())
            return there

    def delete(self, backup: str) -> None:
        """Delete a backup, its manifest first, so that a partly deleted one is never read."""
        home = self._root / backup
        with self._failing(f"deleting {backup}"):
            with suppress(FileNotFoundError):
                (home / MANIFEST).unlink(missing_ok=True)
                sync_directory(home)
            shutil.rmtree(home, onerror=_unless_gone)

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or error
            raise BackupFailed(f"backups in {self._root}: {what}: {reason}") from error


def _unless_gone(_call: object, _path: str, raised: tuple[Any, BaseException, Any]) -> None:
    """Go on deleting what another node deletes too, and raise anything else."""
    if not isinstance(raised[1], FileNotFoundError):
        raise raised[1]
