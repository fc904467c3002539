"""The write-ahead log over its segments: jobs come back in order, and gaps are always found."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from codeq_cluster.errors import DataDirectoryRefused, StorageFailed
from codeq_cluster.storage.segment_files import SegmentFiles
from codeq_cluster.storage.segments import Write
from codeq_cluster.storage.wal import SegmentDisk, Wal
from tests.simulator.disk import SimSegments


class Disk:
    """Simulated segments on a disk that may be full."""

    def __init__(self) -> None:
        self.full = False
        self.segments = SimSegments(lambda: self.full)


def write(shard: int, key: bytes, size: int = 10) -> Write:
    """Return a write of one row."""
    return Write(shard, [], [(key, b"x" * size)])


def begun(disk: SegmentDisk, *, after: int = 0, segment_bytes: int = 2_000) -> Wal:
    """Return a log open for writes, with segments for two jobs of a kilobyte."""
    wal = Wal(disk, segment_bytes=segment_bytes, grow_bytes=100)
    wal.begin(after)
    return wal


def job(wal: Wal, *writes: Write) -> int:
    """Make writes durable; return their job's number."""
    if needed := wal.append(list(writes)):
        wal.make_room(needed)
        assert not wal.append(list(writes))
    assert wal.file is not None
    wal.file.sync()
    wal.durable = wal.seq
    return wal.seq


def filled(disk: SegmentDisk, *, jobs: int = 6) -> Wal:
    """Return a log of three segments of two jobs each, of shards 0 and 1 in turns."""
    wal = begun(disk)
    for n in range(1, jobs + 1):
        assert n == job(wal, write(n % 2, b"%d" % n, 900))
    return wal


def recovered(disk: SegmentDisk, *marks: int) -> list[tuple[int, int, bytes]]:
    """Return (job, shard, first key) of the writes that the databases lack."""
    return [(seq, each.shard, each.puts[0][0]) for seq, each in Wal(disk).recover(marks)]


def test_a_log_rolls_and_comes_back_in_order() -> None:
    """Any number of segments is read back in order."""
    disk = Disk().segments
    filled(disk)

    assert 3 == len(disk.names())
    assert [(n, n % 2, b"%d" % n) for n in range(1, 7)] == recovered(disk, 0, 0)


def test_a_database_gets_what_is_behind_its_mark() -> None:
    """Each database has its own mark: a row older than the database would undo later ones."""
    disk = Disk().segments
    filled(disk)

    assert [(3, 1, b"3"), (5, 1, b"5"), (6, 0, b"6")] == recovered(disk, 4, 1)
    assert [] == recovered(disk, 6, 6)


def test_a_write_of_a_shard_that_is_not_there_is_refused() -> None:
    """The log belongs to another directory."""
    disk = Disk().segments
    filled(disk)

    with pytest.raises(DataDirectoryRefused, match="has a write of shard 1, there are 1"):
        recovered(disk, 0)


@pytest.mark.parametrize(
    ("lost", "text"),
    [
        (0, "begins after job 2, a shard's database ends at 0"),
        (1, "lacks segment 2"),
    ],
)
def test_a_lost_segment_is_refused(lost: int, text: str) -> None:
    """The loss of any segment but the last is noticed; nothing tells that the last one existed."""
    disk = Disk().segments
    filled(disk)
    disk.delete(disk.names()[lost])

    with pytest.raises(DataDirectoryRefused, match=text):
        recovered(disk, 0, 0)


def test_a_log_without_any_segment_is_refused() -> None:
    """A running node has at least one segment."""
    with pytest.raises(DataDirectoryRefused, match="the write-ahead log is gone"):
        recovered(Disk().segments, 0, 0)


def test_a_torn_end_is_refused_where_another_segment_follows() -> None:
    """The next segment records how much of the previous one was on disk."""
    disk = Disk().segments
    filled(disk)
    disk.tear(disk.names()[1], keep=0.7)

    with pytest.raises(DataDirectoryRefused, match="segment 2 ends at job 3, not at 4"):
        recovered(disk, 0, 0)


def test_a_torn_header_is_refused() -> None:
    """A segment gets its name only once its header is on disk."""
    disk = Disk().segments
    filled(disk)
    disk.tear(disk.names()[2], keep=0.001)

    with pytest.raises(DataDirectoryRefused, match="segment-000000000003 is damaged: no header"):
        recovered(disk, 0, 0)


def test_a_segment_under_anothers_name_is_refused() -> None:
    """Files whose names were swapped do not make a log."""
    disk = Disk().segments
    filled(disk)
    content = disk.read(disk.names()[2])
    disk.delete(disk.names()[1])
    disk.create("segment-000000000002", content, len(content))

    with pytest.raises(DataDirectoryRefused, match="segment-000000000002 is segment 3"):
        recovered(disk, 0, 0)


def test_a_job_that_failed_may_be_there_and_is_followed_by_others() -> None:
    """The writer does not know whether it is on disk, so each failure closes its segment."""
    disk = Disk()
    wal = begun(disk.segments)
    job(wal, write(0, b"1"))
    for _ in range(2):
        wal.make_room(100)
        wal.append([write(0, b"failed")])
        disk.full = True
        assert wal.file is not None
        with pytest.raises(OSError, match="No space left") as refused:
            wal.file.sync()
        assert "syncing the write-ahead log: No space left" in str(wal.not_synced(refused.value))
        assert wal.append([write(0, b"more")])
        disk.full = False
    assert 4 == job(wal, write(0, b"4"))
    # The power cut shows that the failed jobs are not completely on disk.
    disk.segments.crash(Random(4))

    found = recovered(disk.segments, 0)

    assert 3 == len(disk.segments.names())
    assert [b"1", b"4"] == [key for _, _, key in found if key != b"failed"]
    assert sorted({seq for seq, _, _ in found}) == [seq for seq, _, _ in found]


def test_a_segment_that_took_half_a_job_takes_no_more() -> None:
    """The next job goes into a new segment, and both are read."""
    disk = Disk()
    wal = begun(disk.segments)
    job(wal, write(0, b"1"))
    disk.full = True
    with pytest.raises(StorageFailed, match="writing the write-ahead log"):
        wal.append([write(0, b"2")])
    with pytest.raises(StorageFailed, match="extending the write-ahead log"):
        wal.make_room(10)
    disk.full = False
    disk.segments.tear(disk.segments.names()[0], keep=0.8)

    assert 3 == job(wal, write(0, b"3"))
    assert [b"1", b"3"] == [key for _, _, key in recovered(disk.segments, 0)]


def test_a_shards_writes_are_read_while_the_log_is_written() -> None:
    """Only writes after the given job are returned, and only of that shard."""
    disk = Disk().segments
    wal = filled(disk)

    assert [b"4", b"6"] == [each.puts[0][0] for each in wal.kept(0, 2)]
    assert [b"1", b"3", b"5"] == [each.puts[0][0] for each in wal.kept(1, 0)]
    assert [b"2", b"4", b"6"] == [each.puts[0][0] for each in wal.kept(0, 1)]
    assert [] == wal.kept(1, 6)


@pytest.mark.parametrize(("upto", "left"), [(0, 3), (1, 3), (2, 2), (3, 2), (5, 1), (6, 1), (9, 1)])
def test_segments_are_deleted_that_hold_nothing_behind_a_job(upto: int, left: int) -> None:
    """The segment open for writes stays, and a database at that job finds every write it lacks."""
    disk = Disk().segments
    wal = filled(disk)

    wal.release(upto)

    assert left == len(disk.names())
    assert list(range(upto + 1, 7)) == [seq for seq, _, _ in recovered(disk, upto, upto)]


def test_a_start_begins_a_segment_and_deletes_those_before() -> None:
    """The databases have all their writes; the numbers of the jobs continue."""
    disk = Disk().segments
    filled(disk)
    wal = Wal(disk, segment_bytes=2_000, grow_bytes=100)
    list(wal.recover([0, 0]))
    wal.begin(6)

    assert ["segment-000000000004"] == disk.names()
    assert 7 == job(wal, write(0, b"7"))
    assert [(7, 0, b"7")] == recovered(disk, 6, 6)


def test_a_start_that_was_cut_off_is_no_gap_to_databases_that_are_beyond() -> None:
    """The databases are beyond a failed job that is in no segment."""
    disk = Disk().segments
    filled(disk)
    names = disk.names()
    contents = {name: disk.read(name) for name in names}
    begun(disk, after=8)
    for name, content in contents.items():
        disk.create(name, content, len(content))

    assert [] == recovered(disk, 8, 8)
    with pytest.raises(DataDirectoryRefused, match="segment 3 ends at job 6, not at 8"):
        recovered(disk, 8, 7)


def test_an_ended_log_leaves_nothing() -> None:
    """Writes that a planned stop brought into the databases are not read twice."""
    disk = Disk().segments
    wal = filled(disk)

    wal.end()

    assert [] == disk.names()


class UnsyncableDirectory(SegmentFiles):
    """A directory whose first deletion may not be durable."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.refuses = 1

    def delete(self, name: str) -> None:
        """Delete the segment, then fail once."""
        super().delete(name)
        if self.refuses:
            self.refuses -= 1
            raise OSError("Input/output error")


def test_a_deletion_that_failed_half_way_is_done_again(tmp_path: Path) -> None:
    """Otherwise the log would grow for ever."""
    disk = UnsyncableDirectory(tmp_path / "wal")
    wal = filled(disk)
    with pytest.raises(StorageFailed, match="shortening the write-ahead log"):
        wal.release(4)

    wal.release(4)

    assert ["segment-000000000003"] == disk.names()
    assert [5, 6] == [seq for seq, _, _ in recovered(disk, 4, 4)]


def test_files_are_used_again_and_their_old_frames_are_not_read(tmp_path: Path) -> None:
    """The next segment reuses a deleted one's blocks, and only its new frames count."""
    disk = SegmentFiles(tmp_path / "wal")
    wal = filled(disk)
    inodes = {name: (tmp_path / "wal" / name).stat().st_ino for name in disk.names()}
    wal.release(2)
    for n in (7, 8, 9):
        job(wal, write(n % 2, b"%d" % n, 500))
    recycled = (tmp_path / "wal" / disk.names()[-1]).stat().st_ino

    assert inodes["segment-000000000001"] == recycled
    assert [3, 4, 5, 6, 7, 8, 9] == [seq for seq, _, _ in recovered(disk, 2, 2)]


@pytest.mark.parametrize("cut", ["new", "spare"])
def test_a_segment_that_a_crash_left_half_made_is_no_segment(tmp_path: Path, cut: str) -> None:
    """It has another name until it is complete, and the next segment is made from it."""
    disk = SegmentFiles(tmp_path / "wal")
    filled(disk)
    (tmp_path / "wal" / cut).write_bytes(os.urandom(5_000))
    assert 3 == len(disk.names())

    wal = Wal(disk, segment_bytes=2_000, grow_bytes=100)
    list(wal.recover([0, 0]))
    wal.begin(6)
    assert 7 == job(wal, write(0, b"7"))

    assert [(7, 0, b"7")] == recovered(disk, 6, 6)
