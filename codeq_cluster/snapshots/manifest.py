"""Manifest: the description of a snapshot, as one node sends it to another."""

from __future__ import annotations

import re

import msgspec
from msgspec import Struct

FILES_MAX = 100_000  # Per snapshot: 6 TiB in RocksDB's files of 64 MiB.

_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9]+)?")


class File(Struct, frozen=True, array_like=True):
    """One file of a snapshot."""

    name: str
    size: int


class SnapshotManifest(Struct, frozen=True, array_like=True, kw_only=True):
    """The description of a snapshot.

    Attributes:
        id: Drawn when the snapshot was made.
        index: Of the last entry in the state.
        term: Of that entry.
        digest: Of the state.
        files: All of them, smallest first.
        members: The row of the log with the group's members at that entry.
        level: Of the formats that its files may have; set when it is sent.
    """

    id: str
    shard: int
    index: int
    term: int
    digest: bytes
    files: tuple[File, ...]
    members: bytes
    level: int = 1

    @property
    def size(self) -> int:
        """Return the total size of all files, in bytes."""
        return sum(file.size for file in self.files)


def encode(manifest: SnapshotManifest) -> object:
    """Return the manifest as plain values for the wire."""
    return msgspec.to_builtins(manifest, builtin_types=(bytes,))


def decode(said: object) -> SnapshotManifest:
    """Return the manifest in these plain values.

    Raises:
        ValueError: It is no manifest, or names files that no snapshot has.
    """
    manifest = msgspec.convert(said, SnapshotManifest, builtin_types=(bytes,))
    names = [file.name for file in manifest.files]
    if len(set(names)) != len(names) or not 0 < len(names) <= FILES_MAX:
        raise ValueError("a manifest with no, repeated or too many files")
    for file in manifest.files:
        if not _NAME.fullmatch(file.name) or file.size < 0:
            raise ValueError(f"a manifest with the file {file.name!r:.100}")
    return manifest
