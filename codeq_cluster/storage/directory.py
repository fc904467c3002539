"""Directory: a node's data on disk: whose it is, who has it open, and how often it was opened."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Self

import msgspec

from codeq_cluster.errors import DataDirectoryRefused

FORMAT_VERSION = 1

_IDENTITY = "node.json"
_LOCK = "LOCK"


class Identity(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """What `node.json` says: fixed when the directory is made, but for the incarnation.

    Attributes:
        incarnation: Opened so many times; peers tell a restarted node from its earlier self by it.
    """

    format_version: int
    cluster_id: str
    node_id: str
    shards: int
    incarnation: int


class DataDirectory:
    """A data directory, locked by this process."""

    def __init__(self, path: Path, lock: int, identity: Identity) -> None:
        self.path = path
        self.incarnation = identity.incarnation
        self._lock: int | None = lock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def shard_path(self, shard: int) -> Path:
        """Return where a shard's database is."""
        return self.path / f"shard-{shard}"

    def close(self) -> None:
        """Unlock; harmless when it is unlocked."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def open_directory(path: Path, *, cluster_id: str, node_id: str, shards: int) -> DataDirectory:
    """Lock the directory, check whose it is, count one more incarnation.

    Raises:
        DataDirectoryRefused: It is locked, not writable, or made for something else.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise DataDirectoryRefused(f"the data directory {path} cannot be used: {error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        identity = _next_incarnation(path, cluster_id=cluster_id, node_id=node_id, shards=shards)
        _write_durably(path / _IDENTITY, msgspec.json.encode(identity))
    except BlockingIOError as error:
        os.close(lock)
        raise DataDirectoryRefused(
            f"the data directory {path} is in use by another process"
        ) from error
    except OSError as error:
        os.close(lock)
        raise DataDirectoryRefused(f"the data directory {path} cannot be used: {error}") from error
    except DataDirectoryRefused:
        os.close(lock)
        raise
    return DataDirectory(path, lock, identity)


def _next_incarnation(path: Path, *, cluster_id: str, node_id: str, shards: int) -> Identity:
    file = path / _IDENTITY
    if not file.exists():
        strangers = sorted(entry.name for entry in path.iterdir() if entry.name != _LOCK)
        # A crash before the first rename leaves only our own temporary file behind.
        strangers = [name for name in strangers if name != _temporary(file).name]
        if strangers and strangers != ["node.log"]:
            raise DataDirectoryRefused(
                f"the data directory {path} is not empty and was not made by codeq-cluster: "
                f"it has {strangers[0]} and no {_IDENTITY}"
            )
        was = Identity(
            format_version=FORMAT_VERSION,
            cluster_id=cluster_id,
            node_id=node_id,
            shards=shards,
            incarnation=0,
        )
    else:
        try:
            was = msgspec.json.decode(file.read_bytes(), type=Identity)
        except msgspec.MsgspecError as error:
            raise DataDirectoryRefused(f"{file} is damaged: {error}") from error
    for what, theirs, ours in (
        ("format version", was.format_version, FORMAT_VERSION),
        ("cluster", was.cluster_id, cluster_id),
        ("node", was.node_id, node_id),
        ("shard count", was.shards, shards),
    ):
        if theirs != ours:
            raise DataDirectoryRefused(
                f"the data directory {path} was made for {what} {theirs}, not {ours}"
            )
    return msgspec.structs.replace(was, incarnation=was.incarnation + 1)


def _temporary(file: Path) -> Path:
    return file.with_suffix(".tmp")


def _write_durably(file: Path, content: bytes) -> None:
    """Replace the file: a crash leaves the old one or the new one, a return the new one on disk."""
    temporary = _temporary(file)
    with temporary.open("wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)
    directory = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
