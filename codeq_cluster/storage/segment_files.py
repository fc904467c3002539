"""Segment files: the write-ahead log's segments as files of a directory."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from codeq_cluster.durable import sync_directory

_PREFIX = "segment-"
_SPARE = "spare"
_NEW = "new"
_ZEROS = bytes(2**18)


class OpenSegment:
    """One open file; implements `wal.SegmentFile`.

    Attributes:
        fd: The file's descriptor, for a sync by others.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def write(self, offset: int, content: bytes) -> None:
        """Write to the page cache."""
        view = memoryview(content)
        while view:
            written = os.pwrite(self.fd, view, offset)
            offset += written
            view = view[written:]

    def sync(self) -> None:
        """Return once everything written is on disk; blocks."""
        os.fdatasync(self.fd)

    def fill(self, offset: int, size: int) -> None:
        """Write zeros."""
        end = offset + size
        while offset < end:
            self.write(offset, _ZEROS[: end - offset])
            offset += len(_ZEROS)

    def close(self) -> None:
        """Close the file."""
        os.close(self.fd)


class SegmentFiles:
    """A directory of segments; implements `wal.SegmentDisk`.

    One deleted file is kept for the next segment, because its blocks are already on disk.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> list[str]:
        """Return the names of the segments, ascending."""
        try:
            names = [file.name for file in self._path.iterdir()]
        except FileNotFoundError:
            return []
        return sorted(name for name in names if name.startswith(_PREFIX))

    def read(self, name: str) -> bytes:
        """Return a segment's content."""
        return (self._path / name).read_bytes()

    def create(self, name: str, head: bytes, size: int) -> tuple[OpenSegment, int]:
        """Make a segment that begins with `head` durable under its name, all or nothing."""
        self._path.mkdir(exist_ok=True)
        new = self._path / _NEW
        with suppress(FileNotFoundError):
            (self._path / _SPARE).replace(new)
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        segment = OpenSegment(fd)
        try:
            there = os.fstat(fd).st_size
            segment.write(0, head)
            if there < size:
                segment.fill(max(there, len(head)), size - max(there, len(head)))
            os.fsync(fd)
            new.replace(self._path / name)
            sync_directory(self._path)
            sync_directory(self._path.parent)
        except BaseException:
            segment.close()
            raise
        return segment, max(there, size)

    def delete(self, name: str) -> None:
        """Delete a segment, durably; the file is kept for the next one."""
        # The file is gone already if the last attempt could not sync the directory.
        with suppress(FileNotFoundError):
            (self._path / name).replace(self._path / _SPARE)
        sync_directory(self._path)
