"""Directory: a node's data on disk: its owner, its lock, and how often it was opened.

Data has a random identity of its own, by which its node is a member. A node that comes back under
its old name with other data has forgotten its votes and the entries it acknowledged. It must not
count for a majority again.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Self

import msgspec

from codeq_cluster.codec import levels
from codeq_cluster.codec.membership import Membership, incarnation_of
from codeq_cluster.durable import sync_directory
from codeq_cluster.errors import DataDirectoryRefused, ReleaseTooOld, StorageFailed
from codeq_cluster.forwarded import forwarded
from codeq_cluster.storage.applied import AppliedFile
from codeq_cluster.storage.identity import (
    IDENTITY,
    DirectoryIdentity,
    fresh_identity,
    read_file,
    refuse_other_time,
)
from codeq_cluster.storage.segment_files import SegmentFiles
from codeq_cluster.storage.swap import settle

_LOCK = "LOCK"
_APPLIED = "applied"
_ASIDE = "damaged-"
_KEPT = ("node.log", "lost+found")  # A log file, and the directory that a mount brings.


class DataDirectory:
    """A data directory, locked by this process.

    Attributes:
        data: The identity of this data.
        bootstrap: The bootstrap membership, if this node was in it and knows it.
        virtual_by_ms: How far its virtual time is ahead of the machine's; None for real time.
        has_wal: The databases lack rows that the write-ahead log has.
        made: The databases of all shards have been made.
    """

    data: int = forwarded("_identity.data")
    bootstrap: Membership | None = forwarded("_identity.bootstrap")
    virtual_by_ms: int | None = forwarded("_identity.virtual_by_ms")
    has_wal: bool = forwarded("_identity.has_wal")
    made: bool = forwarded("_identity.made")

    def __init__(self, path: Path, lock: int, identity: DirectoryIdentity) -> None:
        self.path = path
        self._identity = identity
        self._lock: int | None = lock
        self._applied: AppliedFile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def incarnation(self) -> int:
        """Return the number of this opening of this data; it grows with each opening."""
        return incarnation_of(self._identity.data, self._identity.opened)

    def note_bootstrap(self, membership: Membership) -> None:
        """Record durably which members bootstrap the cluster; raises StorageFailed."""
        self._write(msgspec.structs.replace(self._identity, bootstrap=membership))

    def use(self, level: int) -> None:
        """Record durably that the formats of a level are in use; a lower one changes nothing.

        A release that does not know the level then refuses the directory before it reads more of
        it.

        Raises:
            StorageFailed: The disk refused.
        """
        if level > self._identity.level:
            self._write(msgspec.structs.replace(self._identity, level=level))

    def note_offset(self, virtual_by_ms: int) -> None:
        """Record durably how far virtual time is ahead of the machine's; raises StorageFailed."""
        assert self._identity.virtual_by_ms is not None, "the data is of real time"
        self._write(msgspec.structs.replace(self._identity, virtual_by_ms=virtual_by_ms))

    def note_wal(self, *, begun: bool) -> None:
        """Record durably that the newest rows are in the write-ahead log, or no longer.

        Raises:
            StorageFailed: The disk refused.
        """
        if begun != self._identity.has_wal:
            self._write(msgspec.structs.replace(self._identity, has_wal=begun))

    @property
    def applied(self) -> AppliedFile:
        """Return how far the shards' states had come; the file stays open with the directory.

        Raises:
            StorageFailed: The disk refused.
        """
        if self._applied is None:
            try:
                self._applied = AppliedFile(self.path / _APPLIED, shards=self._identity.shards)
            except OSError as error:
                raise StorageFailed(f"opening {_APPLIED}: {error}") from error
        return self._applied

    @property
    def segments(self) -> SegmentFiles:
        """Return the directory of the write-ahead log's segments."""
        return _segments_of(self.path)

    @property
    def wal(self) -> SegmentFiles | None:
        """Return the write-ahead log whose rows the databases lack; None if they lack none."""
        return wal_of(self.path, self._identity)

    def note_made(self) -> None:
        """Record durably that the databases of all shards exist.

        A database that goes missing later is lost. A new one in its place would hide that, and
        would have forgotten its vote and the entries it acknowledged.

        Raises:
            StorageFailed: The disk refused.
        """
        if not self._identity.made:
            self._write(msgspec.structs.replace(self._identity, made=True))

    def _write(self, identity: DirectoryIdentity) -> None:
        try:
            _write_durably(self.path / IDENTITY, msgspec.json.encode(identity))
        except OSError as error:
            raise StorageFailed(f"writing {IDENTITY}: {error}") from error
        self._identity = identity

    def shard_path(self, shard: int) -> Path:
        """Return the path of a shard's database."""
        return _shard_path(self.path, shard)

    def snapshots_path(self, shard: int) -> Path:
        """Return the path of a shard's snapshots."""
        return self.path / "snapshots" / str(shard)

    @property
    def backup_path(self) -> Path:
        """Return the path of the checkpoints from which a backup is made."""
        return self.path / "backup"

    def close(self) -> None:
        """Unlock; harmless when it is unlocked."""
        if self._applied is not None:
            self._applied.close()
            self._applied = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def open_directory(
    path: Path,
    *,
    cluster_id: str,
    node_id: str,
    shards: int,
    virtual_by_ms: int | None = None,
) -> DataDirectory:
    """Lock the directory, check its owner, and count one more incarnation.

    Args:
        path: Of the directory, which is made if it is missing.
        virtual_by_ms: How far its virtual time is to be ahead of the machine's, at least; None for
            real time.

    Raises:
        DataDirectoryRefused: It is locked, not writable, or made for something else.
        ReleaseTooOld: It has formats that this release does not know.
    """
    lock = _lock_file(path)
    try:
        _hold(path, lock)
        identity = _next_incarnation(
            path,
            cluster_id=cluster_id,
            node_id=node_id,
            shards=shards,
            virtual_by_ms=virtual_by_ms,
        )
        _write_durably(path / IDENTITY, msgspec.json.encode(identity))
    except OSError as error:
        os.close(lock)
        raise DataDirectoryRefused(f"the data directory {path} cannot be used: {error}") from error
    except (DataDirectoryRefused, ReleaseTooOld):
        os.close(lock)
        raise
    return DataDirectory(path, lock, identity)


@contextmanager
def new_directory(
    path: Path, *, cluster_id: str, node_id: str, shards: int
) -> Iterator[Callable[[int], Path]]:
    """Make a data directory from shards that the block fills; yields the path of each shard.

    A node can use it only after the end of the block. A failure or a crash before then leaves a
    directory that every node refuses. If a node took it, it would begin a cluster of its own,
    without the data the block was to write.

    Raises:
        DataDirectoryRefused: The directory is in use, not empty or not writable.
    """
    lock = _lock_file(path)
    try:
        _hold(path, lock)
        if (path / IDENTITY).exists():
            raise DataDirectoryRefused(f"the data directory {path} is a node's already")
        _prepare(path, shards)
        yield partial(_shard_path, path)
        fresh = fresh_identity(cluster_id=cluster_id, node_id=node_id, shards=shards)
        # This release writes its rows before any group says which formats are in use.
        identity = msgspec.structs.replace(fresh, level=levels.LEVEL, made=True)
        _write_durably(path / IDENTITY, msgspec.json.encode(identity))
    finally:
        os.close(lock)


@contextmanager
def stopped_directory(path: Path) -> Iterator[DirectoryIdentity]:
    """Hold the directory of a stopped node, and yield its identity; changes nothing.

    Raises:
        DataDirectoryRefused: It is in use, or is no data directory.
        ReleaseTooOld: It has formats that this release does not know.
    """
    with held_directory(path):
        yield read_identity(path)


@contextmanager
def held_directory(path: Path) -> Iterator[None]:
    """Keep a node from starting on a directory, whatever is in it; changes nothing.

    Raises:
        DataDirectoryRefused: It is in use, or is no data directory.
    """
    try:
        lock = os.open(path / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise DataDirectoryRefused(f"{path} is no data directory: {error}") from error
    try:
        _hold(path, lock)
        yield
    finally:
        os.close(lock)


def _lock_file(path: Path) -> int:
    """Return the open lock file of a directory, which is made if it is missing."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        return os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise DataDirectoryRefused(f"the data directory {path} cannot be used: {error}") from error


def _hold(path: Path, lock: int) -> None:
    """Lock a directory by its open lock file, until that file is closed."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DataDirectoryRefused(
            f"the data directory {path} is in use by another process; stop that one first"
        ) from error


def read_identity(path: Path) -> DirectoryIdentity:
    """Return the identity of a directory; raises DataDirectoryRefused if it has no sound one."""
    if not (path / IDENTITY).is_file():
        raise DataDirectoryRefused(f"{path} is no data directory: it has no {IDENTITY}")
    return read_file(path / IDENTITY)


def aside_path(path: Path) -> Path:
    """Return the unused path to which a directory's data would be set aside now."""
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for number in count():
        aside = path / f"{_ASIDE}{now}{f'-{number}' if number else ''}"
        if not aside.exists():
            return aside
    raise AssertionError("a count ends")


def set_aside(path: Path, aside: Path) -> None:
    """Move a held directory's data into a directory below it; the rest is a directory without data.

    The data stays below it, because the directory may be a volume of its own. After a crash on the
    way no node starts on the directory; setting the rest aside completes the move.

    Raises:
        DataDirectoryRefused: The disk refused.
    """
    try:
        aside.mkdir()
        # The identity goes first, so that a node refuses to start on the rest.
        entries = sorted(path.iterdir(), key=lambda entry: (entry.name != IDENTITY, entry.name))
        for entry in entries:
            if entry.name not in (_LOCK, *_KEPT) and not entry.name.startswith(_ASIDE):
                entry.rename(aside / entry.name)
        sync_directory(aside)
        sync_directory(path)
    except OSError as error:
        raise DataDirectoryRefused(f"setting {path} aside: {error}") from error


def _next_incarnation(
    path: Path, *, cluster_id: str, node_id: str, shards: int, virtual_by_ms: int | None
) -> DirectoryIdentity:
    file = path / IDENTITY
    if file.exists():
        was = read_file(file)
        refuse_other_time(path, was, virtual=virtual_by_ms is not None)
    else:
        _prepare(path, shards)
        was = fresh_identity(cluster_id=cluster_id, node_id=node_id, shards=shards)
    if virtual_by_ms is not None:
        # Releases below this level do not know virtual time, and would take it for real.
        had = was.virtual_by_ms
        was = msgspec.structs.replace(
            was,
            virtual_by_ms=max(virtual_by_ms, virtual_by_ms if had is None else had),
            level=max(was.level, levels.VIRTUAL_TIME_FROM),
        )
    for what, theirs, ours in (
        ("cluster", was.cluster_id, cluster_id),
        ("node", was.node_id, node_id),
        ("shard count", was.shards, shards),
    ):
        if theirs != ours:
            raise DataDirectoryRefused(
                f"the data directory {path} was made for {what} {theirs}, not {ours}"
            )
    for shard in range(shards):
        settle(_shard_path(path, shard))
        # A new log would have forgotten its vote and the entries it acknowledged, so none is
        # created here.
        if not _shard_path(path, shard).is_dir():
            raise DataDirectoryRefused(
                f"the data directory {path} has lost {_shard_path(path, shard).name}: "
                f"restore it from a copy of this node's own data"
            )
    return msgspec.structs.replace(was, opened=was.opened + 1)


def _prepare(path: Path, shards: int) -> None:
    """Make the shards' directories before the file that marks the data directory complete."""
    strangers = sorted(entry.name for entry in path.iterdir() if not _is_ours(entry))
    if strangers:
        has = f"it has {strangers[0]} and no {IDENTITY}"
        if all(re.fullmatch(r"shard-\d+", name) for name in strangers):
            raise DataDirectoryRefused(
                f"the data directory {path} is not empty: {has}; "
                "a restore or a repair was cut off: for a restore empty it"
            )
        raise DataDirectoryRefused(
            f"the data directory {path} is not empty and was not made by codeq-cluster: {has}"
        )
    for shard in range(shards):
        _shard_path(path, shard).mkdir(exist_ok=True)
    sync_directory(path)
    sync_directory(path.parent)


def _is_ours(entry: Path) -> bool:
    """Return whether an entry may exist before the first use: a log, a mount's, a crash's rest."""
    if entry.name.startswith("shard-"):
        return entry.is_dir() and not any(entry.iterdir())
    if entry.name.startswith(_ASIDE):
        return entry.is_dir()
    return entry.name in (_LOCK, _temporary(entry.parent / IDENTITY).name, *_KEPT)


def wal_of(path: Path, identity: DirectoryIdentity) -> SegmentFiles | None:
    """Return the write-ahead log whose rows the databases lack; None if they lack none."""
    return _segments_of(path) if identity.has_wal else None


def _segments_of(path: Path) -> SegmentFiles:
    return SegmentFiles(path / "wal")


def _shard_path(path: Path, shard: int) -> Path:
    return path / f"shard-{shard}"


def _temporary(file: Path) -> Path:
    return file.with_suffix(".tmp")


def _write_durably(file: Path, content: bytes) -> None:
    """Replace the file durably; a crash leaves either the old or the new content."""
    temporary = _temporary(file)
    with temporary.open("wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)
    sync_directory(file.parent)
