"""Create: writes a backup from checkpoints of the shards."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

from codeq_cluster.backup import manifest as manifests
from codeq_cluster.backup.chunks import encoded
from codeq_cluster.backup.manifest import MANIFEST, BackupManifest, Part, part_file
from codeq_cluster.backup.rows import CLOCK, SEQ, Row, counts_of, number, primary_rows
from codeq_cluster.backup.target import BackupTarget
from codeq_cluster.codec import keyspace
from codeq_cluster.errors import BackupFailed
from codeq_cluster.storage.stored_shard import StoredShard

_DIGEST_BYTES = 32
# Shorter waits would cause as many switches between threads as there are rows.
_NAP_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One shard as of one entry; it does not change while it is written."""

    shard: int
    index: int
    term: int
    digest: bytes
    stored: StoredShard


class Pace:
    """Limits a thread's bytes per second, and ends its work on request.

    Args:
        bytes_per_s: On average; 0 for no limit.
    """

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._stopped = threading.Event()
        self._begun: float | None = None
        self._spent = 0

    def stop(self) -> None:
        """Make the next `spend` raise; may be called from another thread."""
        self._stopped.set()

    def spend(self, size: int) -> None:
        """Count the bytes, and wait as long as the rate requires.

        Raises:
            BackupFailed: `stop` was called.
        """
        if self._begun is None:
            self._begun = time.monotonic()
        self._spent += size
        ahead = 0.0
        if self._bytes_per_s:
            ahead = self._begun + self._spent / self._bytes_per_s - time.monotonic()
        if self._stopped.wait(ahead) if ahead > _NAP_S else self._stopped.is_set():
            raise BackupFailed("the backup was stopped")


class Written:
    """Counts and hashes pieces on their way into a file."""

    def __init__(self) -> None:
        self.size = 0
        self._hash = blake2b(digest_size=_DIGEST_BYTES)

    def passing(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the pieces."""
        for piece in pieces:
            self.size += len(piece)
            self._hash.update(piece)
            yield piece

    def hexdigest(self) -> str:
        """Return the checksum of all pieces so far."""
        return self._hash.hexdigest()


def write_part(
    place: BackupTarget, backup: str, cut: Cut, *, pace: Pace, passed: Callable[[int], None]
) -> Part:
    """Write one shard's file; blocks.

    Args:
        backup: Its id.
        pace: Spent by the bytes of the rows.
        passed: Called with the bytes of each piece that is written.

    Raises:
        BackupFailed: It cannot be written, or was stopped.
        StorageFailed: It cannot be read.
    """
    tally, written = Counter[keyspace.Family](), Written()

    def rows() -> Iterator[Row]:
        for key, value in primary_rows(cut.stored):
            tally[keyspace.family(key)] += 1
            pace.spend(len(key) + len(value))
            yield key, value

    def pieces() -> Iterator[bytes]:
        for piece in written.passing(encoded(rows())):
            passed(len(piece))
            yield piece

    place.write(backup, part_file(cut.shard), pieces())
    return Part(
        shard=cut.shard,
        file=part_file(cut.shard),
        index=cut.index,
        term=cut.term,
        digest=cut.digest.hex(),
        clock_ms=number(cut.stored, CLOCK),
        seq=number(cut.stored, SEQ),
        size=written.size,
        blake2b=written.hexdigest(),
        counts=counts_of(tally),
    )


def write_manifest(place: BackupTarget, manifest: BackupManifest) -> None:
    """Write the manifest, which completes the backup; blocks, raises BackupFailed."""
    place.write(manifest.id, MANIFEST, iter((manifests.encode(manifest),)))
