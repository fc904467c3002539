"""Bucket: backups as objects of an S3-compatible store, below an optional prefix."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import Full, Queue
from typing import Any

import obstore
from obstore.exceptions import BaseError

from codeq_cluster.artifacts.s3 import open_bucket, reason
from codeq_cluster.backup.manifest import MANIFEST, is_id
from codeq_cluster.errors import BackupFailed
from codeq_cluster.settings import BackupSettings

# S3 takes 10,000 parts of one object: 160 GiB of compressed rows per shard. Two are in memory.
_PART_BYTES = 16 * 2**20
_PARTS_AT_ONCE = 2
_READ_BYTES = 256 * 1024
# Bounds the memory between the thread that makes pieces of about a MiB and the one that sends them.
_PIECES_AHEAD = 4
_LOOK_S = 0.1


class BackupBucket:
    """Stores backups in a bucket; implements `BackupTarget`."""

    def __init__(self, settings: BackupSettings) -> None:
        prefix = f"/{settings.s3.prefix}" if settings.s3.prefix else ""
        self.where = f"s3://{settings.s3.bucket}{prefix}"
        self._store = open_bucket(settings.s3, timeout_ms=settings.timeout_ms)

    def write(self, backup: str, file: str, pieces: Iterator[bytes]) -> None:
        """Store a file; the S3 client aborts an upload that fails in the middle."""
        source = _Source()
        with ThreadPoolExecutor(max_workers=1) as sender:
            putting = sender.submit(
                obstore.put,
                self._store,
                f"{backup}/{file}",
                source,
                use_multipart=True,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )
            source.fill(pieces, putting)
            error = putting.exception()
        if error is None:
            return
        if source.error is not None:
            raise source.error from error
        if not isinstance(error, BaseError | FileNotFoundError):
            raise error
        raise self._failed(f"writing {backup}/{file}", error) from error

    def read(self, backup: str, file: str) -> Iterator[bytes]:
        """Yield a file's content."""
        with self._failing(f"reading {backup}/{file}"):
            found = iter(obstore.get(self._store, f"{backup}/{file}").stream(_READ_BYTES))
        while True:
            with self._failing(f"reading {backup}/{file}"):
                piece = next(found, None)
            if piece is None:
                return
            yield bytes(piece)

    def backups(self) -> dict[str, frozenset[str]]:
        """Return the files of each backup."""
        found: dict[str, set[str]] = {}
        with self._failing("listing"):
            for page in obstore.list(self._store):
                for entry in page:
                    backup, _, file = entry["path"].partition("/")
                    if is_id(backup):
                        found.setdefault(backup, set()).add(file)
        return {backup: frozenset(found[backup]) for backup in sorted(found)}

    def delete(self, backup: str) -> None:
        """Delete a backup, its manifest first, so that a partly deleted one is never read."""
        files = self.backups().get(backup, frozenset())
        for file in sorted(files, key=lambda name: name != MANIFEST):
            with self._failing(f"deleting {backup}/{file}"):
                obstore.delete(self._store, f"{backup}/{file}")

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            raise self._failed(what, error) from error

    def _failed(self, what: str, error: Exception) -> BackupFailed:
        return BackupFailed(f"backups in {self.where}: {what}: {reason(error)}")


class _Source:
    """Passes pieces to the sending thread, and keeps the error raised while making them.

    The S3 client reads the pieces inside its own runtime, where it cannot send other requests.
    Making a piece may read from a bucket, so pieces are made outside that runtime.
    """

    def __init__(self) -> None:
        self._pieces: Queue[bytes | BaseException | None] = Queue(_PIECES_AHEAD)
        self.error: BaseException | None = None

    def fill(self, pieces: Iterator[bytes], putting: Future[Any]) -> None:
        """Make the pieces, waiting while too many are unsent; ends when the sending ends."""
        try:
            for piece in pieces:
                if not self._offer(piece, putting):
                    return
        except BaseException as error:  # noqa: BLE001, raised once the sending has ended
            self.error = error
        self._offer(self.error, putting)

    def _offer(self, piece: bytes | BaseException | None, putting: Future[Any]) -> bool:
        while not putting.done():
            try:
                self._pieces.put(piece, timeout=_LOOK_S)
            except Full:
                continue
            return True
        return False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        piece = self._pieces.get()
        if piece is None:
            raise StopIteration
        if isinstance(piece, BaseException):
            raise piece
        return piece
