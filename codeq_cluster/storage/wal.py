"""Write-ahead log: one file sequence per node that makes its shards' Raft logs durable.

The shards' own databases get the same rows later and in bulk, without a sync of their own. Until
the rows are on disk there, the segments here have them. A segment is deleted once every shard's
database has synced all its rows.

This module knows no threads: call its blocking methods where blocking is allowed, one call at a
time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from codeq_cluster.errors import DataDirectoryRefused, StorageFailed
from codeq_cluster.storage import segments
from codeq_cluster.storage.segments import Header, Job, SegmentDamaged, Write

# Rewriting blocks on disk leaves the file's metadata unchanged, so a sync need not wait for it.
# Therefore zeros are written ahead, and deleted segments are reused.
SEGMENT_BYTES = 16 * 2**20
GROW_BYTES = 2**18
_NAME = "segment-"


class SegmentFile(Protocol):
    """One open segment."""

    def write(self, offset: int, content: bytes) -> None:
        """Write to the page cache; raises OSError."""

    def sync(self) -> None:
        """Return once everything written is on disk; blocks; raises OSError."""

    def fill(self, offset: int, size: int) -> None:
        """Write zeros, so that later writes there need no new blocks; raises OSError."""

    def close(self) -> None:
        """Close the file."""


class SegmentDisk(Protocol):
    """The directory of the segments; every method blocks."""

    def names(self) -> list[str]:
        """Return the names of the segments, ascending; raises OSError."""

    def read(self, name: str) -> bytes:
        """Return a segment's content; raises OSError."""

    def create(self, name: str, head: bytes, size: int) -> tuple[SegmentFile, int]:
        """Make a segment that begins with `head` durable under its name, all or nothing.

        Args:
            name: Greater than that of every segment.
            head: At most `size` bytes.
            size: The file is filled up to at least this size, unless a deleted file is reused.

        Returns:
            The open file and its size in bytes.

        Raises:
            OSError: The segment does not exist, or it is unknown whether it does.
        """

    def delete(self, name: str) -> None:
        """Delete a segment, durably; harmless when it is gone; raises OSError.

        Its file may be reused.
        """


@dataclass(slots=True)
class _Segment:
    name: str
    number: int
    last: int  # Sequence number of its last job.


class Wal:
    """The write-ahead log of one node.

    Attributes:
        seq: Number of the last job that was begun.
        durable: Every job up to this one is as durable as the settings require.
        file: The segment that takes writes: its sync makes every appended job durable. None while
            there is none.
    """

    def __init__(
        self,
        disk: SegmentDisk,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        grow_bytes: int = GROW_BYTES,
    ) -> None:
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._grow_bytes = grow_bytes
        self._segments: list[_Segment] = []
        self.file: SegmentFile | None = None
        self._salt = b""
        self._offset = self._size = 0
        self.seq = self.durable = 0

    # Opening.

    def recover(self, marks: Sequence[int]) -> Iterator[tuple[int, Write]]:
        """Yield (seq, write) of all writes that the shards' databases lack, in order.

        Args:
            marks: By shard, the last job whose writes its database holds.

        Raises:
            DataDirectoryRefused: A segment is damaged or missing.
        """
        for job in stored_jobs(self._disk, marks):
            self.seq = self.durable = max(self.seq, job.seq)
            for write in job.writes:
                if write.shard >= len(marks):
                    raise DataDirectoryRefused(
                        f"the write-ahead log has a write of shard {write.shard}, "
                        f"there are {len(marks)}"
                    )
                if job.seq > marks[write.shard]:
                    yield job.seq, write

    def begin(self, after: int) -> None:
        """Begin a segment and delete those before it; the databases must have synced all of them.

        Args:
            after: The mark of every database; at least the last job.

        Raises:
            StorageFailed: The disk refused.
        """
        assert after >= self.seq, f"a segment after job {after}, the log ends at {self.seq}"
        self.seq = self.durable = after
        try:
            names = self._disk.names()
            number = _number(names[-1]) if names else 0
            self._roll(number + 1)
            for name in names:
                self._disk.delete(name)
        except OSError as error:
            raise StorageFailed(f"beginning a write-ahead log: {error}") from error

    def end(self) -> None:
        """Delete every segment; the databases must have synced all of them, and nothing follows.

        Raises:
            StorageFailed: The disk refused.
        """
        self.close()
        self._segments.clear()
        try:
            for name in self._disk.names():
                self._disk.delete(name)
        except OSError as error:
            raise StorageFailed(f"ending the write-ahead log: {error}") from error

    def close(self) -> None:
        """Close the file; the segments stay. No sync may be under way."""
        if self.file is not None:
            self.file.close()
            self.file = None

    # Writing.

    def make_room(self, needed: int) -> None:
        """Make room for a job of `needed` bytes; blocks, raises StorageFailed, may be retried."""
        try:
            if self.file is None or self._offset + needed > max(self._segment_bytes, self._size):
                if self.file is not None:
                    # The next header claims that every job before it is in the log. Without this
                    # sync that could be false where jobs are not synced one by one.
                    self.file.sync()
                self.close()
                self._roll(self._segments[-1].number + 1, needed=needed)
            if self._offset + needed > self._size:
                grown = self._offset + needed + self._grow_bytes
                assert self.file is not None, "a segment was begun"
                self.file.fill(self._size, grown - self._size)
                self._size = grown
        except OSError as error:
            self.abandon()
            raise StorageFailed(f"extending the write-ahead log: {error}") from error

    def append(self, writes: list[Write]) -> int:
        """Write the next job after the others, to the page cache.

        Returns:
            0; or the bytes for which `make_room` must come first, when nothing was written.

        Raises:
            StorageFailed: The job is not completely written; the segment accepts no more jobs.
        """
        frame = segments.frame(self._salt, Job(self.seq + 1, writes))
        if self.file is None or self._offset + len(frame) > self._size:
            return len(frame)
        self.seq += 1
        try:
            self.file.write(self._offset, frame)
        except OSError as error:
            self.abandon()
            raise StorageFailed(f"writing the write-ahead log: {error}") from error
        self._offset += len(frame)
        self._segments[-1].last = self.seq
        return 0

    def not_synced(self, error: OSError) -> StorageFailed:
        """Note that a sync failed; return the error to report.

        How much of the last job is on disk is unknown; the segment accepts no more jobs.
        """
        self.abandon()
        failed = StorageFailed(f"syncing the write-ahead log: {error}")
        failed.__cause__ = error
        return failed

    def abandon(self) -> None:
        """Write no more to this segment: the content of its end is unknown."""
        self.close()

    # Forgetting.

    @property
    def releasable(self) -> bool:
        """Return whether there are segments that are no longer written to."""
        return len(self._segments) > 1

    def release(self, upto: int) -> None:
        """Delete the segments whose jobs are all at or before `upto`; blocks.

        Args:
            upto: Every shard's database has synced the writes of all jobs up to this one.

        Raises:
            StorageFailed: The disk refused; the call may be retried.
        """
        try:
            while len(self._segments) > 1 and self._segments[0].last <= upto:
                self._disk.delete(self._segments[0].name)
                del self._segments[0]
        except OSError as error:
            raise StorageFailed(f"shortening the write-ahead log: {error}") from error

    def kept(self, shard: int, after: int) -> list[Write]:
        """Return one shard's writes on disk after job `after`; blocks, raises StorageFailed."""
        found: list[Write] = []
        try:
            # Iterate over a copy, because `release` may shorten the list; the segments it deletes
            # are skipped.
            for segment in list(self._segments):
                if segment.last <= after and segment is not self._segments[-1]:
                    continue
                content = segments.read(self._disk.read(segment.name))
                for job in content[1] if content is not None else ():
                    if job.seq > after:
                        found += [write for write in job.writes if write.shard == shard]
        except (OSError, SegmentDamaged) as error:
            raise StorageFailed(f"reading the write-ahead log: {error}") from error
        return found

    # Inside.

    def _roll(self, number: int, *, needed: int = 0) -> None:
        self._salt = os.urandom(segments.SALT_BYTES)
        head = segments.frame(self._salt, Header(segments.FORMAT_VERSION, number, self.durable))
        name = f"{_NAME}{number:012d}"
        size = len(head) + needed + self._grow_bytes
        self.file, self._size = self._disk.create(name, head, size)
        self._offset = len(head)
        self._segments.append(_Segment(name, number, self.durable))


def stored_jobs(disk: SegmentDisk, marks: Sequence[int]) -> Iterator[Job]:
    """Yield the jobs in the segments, in order.

    Args:
        marks: By shard, the last job whose writes its database holds.

    Raises:
        DataDirectoryRefused: A segment is damaged or missing.
    """
    last: int | None = None
    number: int | None = None
    try:
        names = disk.names()
        if not names:
            raise DataDirectoryRefused("the write-ahead log is gone: it has no segment")
        for name in names:
            content = segments.read(disk.read(name))
            if content is None:
                raise DataDirectoryRefused(f"the write-ahead log's {name} is damaged: no header")
            header, jobs = content
            _check_follows(header, name, number=number, last=last, marks=marks)
            number, last = header.number, header.after
            for job in jobs:
                # A failed job leaves a gap in the numbers before the first job of a segment.
                if job.seq <= last or (job is not jobs[0] and job.seq != last + 1):
                    raise DataDirectoryRefused(
                        f"the write-ahead log's {name} has job {job.seq} after job {last}"
                    )
                last = job.seq
                yield job
    except (OSError, SegmentDamaged) as error:
        raise DataDirectoryRefused(f"the write-ahead log cannot be read: {error}") from error


def stored_writes(disk: SegmentDisk, marks: Mapping[int, int]) -> dict[int, list[Write]]:
    """Return, by shard, the writes that the shards' databases lack; changes nothing.

    Raises:
        DataDirectoryRefused: A segment is damaged or missing.
    """
    found: dict[int, list[Write]] = {shard: [] for shard in marks}
    for job in stored_jobs(disk, list(marks.values())):
        for write in job.writes:
            if job.seq > marks.get(write.shard, job.seq):
                found[write.shard].append(write)
    return found


def _check_follows(
    header: Header, name: str, *, number: int | None, last: int | None, marks: Sequence[int]
) -> None:
    """Refuse a segment that follows missing jobs which a database lacks."""
    if f"{_NAME}{header.number:012d}" != name:
        raise DataDirectoryRefused(f"the write-ahead log's {name} is segment {header.number}")
    if number is None or last is None:
        if header.after > min(marks):
            raise DataDirectoryRefused(
                f"the write-ahead log begins after job {header.after}, "
                f"a shard's database ends at {min(marks)}"
            )
        return
    if header.number != number + 1:
        raise DataDirectoryRefused(f"the write-ahead log lacks segment {number + 1}")
    # Failed jobs have numbers too, so a segment may begin after a job that is in no segment.
    if last < header.after and min(marks) < header.after:
        raise DataDirectoryRefused(
            f"the write-ahead log's segment {number} ends at job {last}, not at {header.after}"
        )


def _number(name: str) -> int:
    return int(name.removeprefix(_NAME))
