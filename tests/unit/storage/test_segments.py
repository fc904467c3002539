"""The segment's format: a frame torn by a crash is cut, and damage is never mistaken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.storage import segments
from codeq_cluster.storage.segments import Header, Job, SegmentDamaged, Write

SALT = b"8 bytes!"
OTHER = b"others !"
JOBS = [
    Job(
        8 + n,
        [
            Write(0, [(b"log/1", b"log0")], [(b"log/1", b"x" * 9)]),
            Write(3, [], [(b"vote", b"v%d" % n)]),
        ],
    )
    for n in range(3)
]
HEADER = Header(segments.FORMAT_VERSION, 5, 7)


def content(jobs: list[Job], *, salt: bytes = SALT, header: Header = HEADER) -> bytes:
    """Return a segment."""
    return segments.frame(salt, header) + b"".join(segments.frame(salt, job) for job in jobs)


def spread(jobs: list[Job]) -> list[tuple[int, list[tuple[int, list[object], list[object]]]]]:
    """Return jobs in a comparable form: a decoded sequence is a list."""
    return [
        (
            job.seq,
            [
                (each.shard, [tuple(r) for r in each.delete_ranges], [tuple(r) for r in each.puts])
                for each in job.writes
            ],
        )
        for job in jobs
    ]


def jobs_of(content_: bytes) -> list[Job]:
    """Return the jobs in a segment."""
    found = segments.read(content_)
    assert found is not None
    return found[1]


rows = st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=200)), max_size=4)
writes = st.lists(st.builds(Write, st.integers(0, 2**16), rows, rows), max_size=4)


@given(
    every=st.lists(writes, max_size=4),
    salt=st.binary(min_size=8, max_size=8),
    behind=st.binary(max_size=40),
)
def test_what_is_written_is_read(every: list[list[Write]], salt: bytes, behind: bytes) -> None:
    """Any rows come back, whatever zeros or remains follow them."""
    jobs = [Job(n, each) for n, each in enumerate(every, 8)]
    found = segments.read(content(jobs, salt=salt) + bytes(40) + behind)

    assert found is not None
    assert HEADER == found[0]
    assert spread(jobs) == spread(found[1])


def test_a_frame_that_a_crash_has_torn_is_cut() -> None:
    """A frame torn at any byte, followed by nothing or zeros, is cut; all frames before it stay."""
    whole, short = content(JOBS), content(JOBS[:2])
    for end in range(len(short), len(whole)):
        for rest in (b"", bytes(len(whole) - end), bytes(1000)):
            assert spread(JOBS[:2]) == spread(jobs_of(whole[:end] + rest)), end

    assert spread(JOBS) == spread(jobs_of(whole))


def test_a_segment_with_a_torn_header_does_not_exist() -> None:
    """A segment with a header torn at any byte does not exist."""
    header = content([])
    for end in range(len(header)):
        assert segments.read(header[:end] + bytes(100)) is None


def test_a_change_before_the_last_frame_is_damage() -> None:
    """Every byte counts: an intact frame follows, and it was written after the damaged one."""
    start, end = len(content([])), len(content(JOBS[:2]))
    whole = content(JOBS)
    for place in range(start, end):
        damaged = bytearray(whole)
        damaged[place] ^= 0x5A
        with pytest.raises(SegmentDamaged, match="one behind it is whole"):
            segments.read(bytes(damaged))


def test_frames_of_a_files_earlier_life_are_none() -> None:
    """A recycled file has old frames after its own, at places where one could begin."""
    before = content(JOBS * 3, salt=OTHER)
    for jobs in ([], JOBS[:1], JOBS[:2]):
        now = content(jobs)

        assert spread(jobs) == spread(jobs_of(now + before[len(now) :]))
        assert spread(jobs) == spread(jobs_of(now + segments.frame(OTHER, JOBS[2])))


def test_a_later_format_is_refused_by_name() -> None:
    """The operator learns that the release is too old."""
    with pytest.raises(SegmentDamaged, match="its format is 2, this release reads 1"):
        segments.read(content(JOBS, header=Header(2, 5, 7)))


def test_a_frame_that_is_whole_and_says_something_else_is_damage() -> None:
    """Its checksum is right, so it is not a torn frame."""
    with pytest.raises(SegmentDamaged, match="a frame is none of this release"):
        segments.read(content([]) + segments.frame(SALT, HEADER))
