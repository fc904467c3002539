"""Checkpoint: a shard's files as of one entry, for a peer that has fallen behind.

A snapshot is a manifest and a RocksDB checkpoint, whose files are hard links and never change. It
is made when the first peer asks, and shared by all that ask while it is useful. It is deleted when
nobody has read from it for a while. No snapshot survives a restart.
"""

from __future__ import annotations

import os
import secrets
import shutil
import threading
import zlib
from pathlib import Path

from codeq_cluster.errors import StorageFailed
from codeq_cluster.snapshots.manifest import File, SnapshotManifest
from codeq_cluster.storage.shard import Shard
from codeq_cluster.storage.stored_shard import LogAt, StatePosition, read_place

CHUNK_BYTES_MAX = 256 * 2**10  # A heartbeat after one waits 0.1 s on a link of 20 Mbit/s.


class Snapshots:
    """The snapshots of one shard; every method blocks and belongs into a thread.

    Args:
        root: Their directory, on the file system of the shard; emptied at once.
        incoming: The directory for a snapshot that is received.
        log_at: Finds an entry's term and members in a log.
    """

    def __init__(
        self, root: Path, *, shard: int, store: Shard, incoming: Path, log_at: LogAt
    ) -> None:
        self._root = root
        self._shard = shard
        self._store = store
        self._incoming = incoming
        self._log_at = log_at
        shutil.rmtree(root, ignore_errors=True)

    def take(self) -> SnapshotManifest:
        """Make a snapshot of the shard as it is now.

        Raises:
            StorageFailed: The disk refused; nothing is left behind.
        """
        name = secrets.token_hex(8)
        path = self._path(name)
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            self._store.checkpoint(path)
            place = read_place(path, log_at=self._log_at)
            files = sorted(
                (File(each.name, each.stat().st_size) for each in path.iterdir()),
                key=lambda file: (file.size, file.name),
            )
        except OSError as error:
            self._delete(name)
            raise StorageFailed(f"taking a snapshot: {error}") from error
        except BaseException:
            self._delete(name)
            raise
        return SnapshotManifest(
            id=name,
            shard=self._shard,
            index=place.index,
            term=place.term,
            digest=place.digest,
            members=place.members,
            files=tuple(files),
        )

    def read(self, snapshot: SnapshotManifest, file: int, offset: int) -> tuple[int, bytes]:
        """Return the checksum (CRC-32) and the bytes of one chunk of one file.

        Raises:
            ValueError: The file or the offset is outside the snapshot.
            StorageFailed: The disk refused.
        """
        if not (0 <= file < len(snapshot.files) and 0 <= offset <= snapshot.files[file].size):
            raise ValueError(f"snapshot {snapshot.id} has no byte {offset} in file {file}")
        wanted = snapshot.files[file]
        try:
            with (self._path(snapshot.id) / wanted.name).open("rb") as source:
                source.seek(offset)
                chunk = source.read(min(CHUNK_BYTES_MAX, wanted.size - offset))
        except OSError as error:
            raise StorageFailed(f"reading a snapshot: {error}") from error
        return zlib.crc32(chunk), chunk

    def drop(self, snapshot: SnapshotManifest) -> None:
        """Delete a snapshot; quick, because its files are links."""
        self._delete(snapshot.id)

    def begin(self, manifest: SnapshotManifest) -> IncomingSnapshot:
        """Prepare to receive a snapshot.

        Raises:
            ValueError: The manifest is of another shard.
            StorageFailed: The disk refused.
        """
        if manifest.shard != self._shard:
            raise ValueError(f"a snapshot of shard {manifest.shard}, not of {self._shard}")
        return IncomingSnapshot(self._incoming, manifest, log_at=self._log_at)

    def _delete(self, name: str) -> None:
        shutil.rmtree(self._path(name), ignore_errors=True)

    def _path(self, name: str) -> Path:
        return self._root / name


class IncomingSnapshot:
    """A snapshot on its way into this node, file by file.

    Every method but `stop` blocks and belongs into a thread.
    """

    def __init__(self, path: Path, manifest: SnapshotManifest, *, log_at: LogAt) -> None:
        """Begin with an empty directory; raises StorageFailed."""
        self.path = path
        self._log_at = log_at
        self.manifest = manifest
        self._stopped = threading.Event()
        shutil.rmtree(path, ignore_errors=True)
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise StorageFailed(f"receiving a snapshot: {error}") from error

    def write(self, file: int, offset: int, crc: int, chunk: bytes) -> None:
        """Add the next chunk of a file; the last one makes the file durable.

        Raises:
            ValueError: The chunk is damaged, or not the next one.
            StorageFailed: The disk refused.
        """
        if zlib.crc32(chunk) != crc:
            raise ValueError("a chunk whose checksum does not fit")
        wanted = self.manifest.files[file]
        if offset + len(chunk) > wanted.size or (not chunk and wanted.size > offset):
            raise ValueError("a chunk that does not fit its file")
        target = self.path / wanted.name
        try:
            with target.open("ab") as out:
                if out.tell() != offset:
                    raise ValueError(f"a chunk at {offset} of a file that ends at {out.tell()}")
                out.write(chunk)
                if out.tell() == wanted.size:
                    # Synced here, in a thread, because every caller waits for the exchange itself.
                    out.flush()
                    os.fsync(out.fileno())
        except OSError as error:
            raise StorageFailed(f"writing a snapshot: {error}") from error

    def verify(self) -> None:
        """Read every row, so that damage is found before the snapshot is used.

        Raises:
            StorageFailed: A row is damaged, the state is not the manifest's, or `stop` was called.
        """
        found = read_place(
            self.path, log_at=self._log_at, every_row=True, stopped=self._stopped.is_set
        )
        wanted = self.manifest
        if found != StatePosition(wanted.index, wanted.term, wanted.digest, wanted.members):
            raise StorageFailed(f"the snapshot holds entry {found.index}, not {wanted.index}")

    def stop(self) -> None:
        """Make `verify` end at the next row; may be called from any thread."""
        self._stopped.set()

    def drop(self) -> None:
        """Delete the chunks received so far."""
        shutil.rmtree(self.path, ignore_errors=True)
