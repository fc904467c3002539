"""The promises of every store: the state commits entries completely, and the log is ordered."""

from __future__ import annotations

import pytest

from .conftest import Store as Shard
from .conftest import WaitedShard

DIGEST = bytes(range(16))
# This key is after every key of these tests; stores keep rows of their own behind it.
END = b"o"


def rows(*keys: bytes) -> list[tuple[bytes, bytes]]:
    return [(key, b"v" + key) for key in keys]


def test_a_fresh_state_has_applied_the_first_entry_only(shard: Shard) -> None:
    """The log begins with an entry of its own at index 1."""
    assert 1 == shard.state.applied_index
    assert shard.state.digest == bytes(16)
    assert shard.state.get(b"a") is None


def test_a_commit_shows_all_of_an_entry(shard: Shard) -> None:
    """Rows, index and digest change together; None deletes."""
    shard.state.commit({b"a": b"1", b"b": b"2"}, index=2, digest=DIGEST)
    shard.state.commit({b"a": None, b"b": b"3", b"c": b""}, index=3, digest=DIGEST[::-1])

    assert [None, b"3", b"", None] == shard.state.get_many([b"a", b"b", b"c", b"d"])
    assert [] == shard.state.get_many([])
    assert (3, DIGEST[::-1]) == (shard.state.applied_index, shard.state.digest)


def test_an_entry_may_change_nothing(shard: Shard) -> None:
    """The index advances all the same."""
    shard.state.commit({}, index=2, digest=DIGEST)

    assert (2, DIGEST) == (shard.state.applied_index, shard.state.digest)


@pytest.mark.parametrize("index", [0, 1, 3])
def test_entries_are_committed_one_after_another(shard: Shard, index: int) -> None:
    """A repeated or skipped index is a bug, and nothing is written."""
    with pytest.raises(AssertionError, match="after entry 1"):
        shard.state.commit({b"a": b"1"}, index=index, digest=DIGEST)

    assert 1 == shard.state.applied_index
    assert shard.state.get(b"a") is None


def test_deleting_what_is_not_there_is_harmless(shard: Shard) -> None:
    """A mutation states the result, so the row it deletes may be missing already."""
    shard.state.commit({b"a": None}, index=2, digest=DIGEST)

    assert shard.state.get(b"a") is None


@pytest.mark.parametrize(
    ("start", "end", "limit", "keys"),
    [
        (b"", b"c\x01", 100, [b"a", b"b", b"b\x00", b"c"]),
        (b"b", b"c", 100, [b"b", b"b\x00"]),
        (b"a", b"a", 100, []),
        (b"c", b"a", 100, []),
        (b"a\x00", b"b", 100, []),
        (b"a", b"d", 2, [b"a", b"b"]),
        (b"a", b"d", 0, []),
        (b"d", END, 5, []),
    ],
)
def test_a_scan_is_half_open_ascending_and_bounded(
    shard: Shard, start: bytes, end: bytes, limit: int, keys: list[bytes]
) -> None:
    """State and log both give rows of start <= key < end in the order of their bytes."""
    there = rows(b"c", b"b\x00", b"a", b"b")
    shard.state.commit(dict(there), index=2, digest=DIGEST)
    shard.log.write(there, sync=False)

    assert rows(*keys) == shard.state.scan(start, end, limit)
    assert rows(*keys) == shard.log.scan(start, end, limit=limit, bytes_max=1000)


def test_a_log_scan_ends_at_the_row_that_reaches_its_bytes(shard: Shard) -> None:
    """At least one row comes back, so a reader always makes progress."""
    shard.log.write([(b"%d" % n, b"x" * 99) for n in range(5)], sync=False)

    assert 1 == len(shard.log.scan(b"", END, limit=10, bytes_max=0))
    assert 1 == len(shard.log.scan(b"", END, limit=10, bytes_max=1))
    assert 2 == len(shard.log.scan(b"", END, limit=10, bytes_max=101))
    assert 5 == len(shard.log.scan(b"", END, limit=10, bytes_max=500))


def test_range_deletes_come_before_the_puts_of_their_write(shard: Shard) -> None:
    """One write can therefore replace a tail of the log."""
    shard.log.write(rows(b"1", b"2", b"3", b"4"), sync=True)
    shard.log.write([(b"3", b"new")], delete_ranges=[(b"3", END), (b"0", b"2")], sync=True)

    assert [(b"2", b"v2"), (b"3", b"new")] == shard.log.scan(b"", END, limit=9, bytes_max=99)


def test_a_range_delete_is_half_open_and_may_be_empty(shard: Shard) -> None:
    """The end stays, and an empty range deletes nothing."""
    shard.log.write(rows(b"a", b"b", b"c"), sync=False)
    shard.log.write([], delete_ranges=[(b"a", b"b"), (b"c", b"c"), (b"l", b"n")], sync=False)

    assert rows(b"b", b"c") == shard.log.scan(b"", END, limit=9, bytes_max=99)


def test_an_inverted_range_is_a_bug_found_before_it_is_written(shard: Shard) -> None:
    """Nothing of the write happens, and the store stays usable."""
    with pytest.raises(AssertionError, match="inverted"):
        shard.log.write(rows(b"a"), delete_ranges=[(b"c", b"b")], sync=True)

    assert shard.log.get(b"a") is None
    shard.log.write(rows(b"a"), sync=True)
    assert b"va" == shard.log.get(b"a")


def test_log_and_state_are_two_places(shard: Shard) -> None:
    """A key in one says nothing about the other."""
    shard.log.write([(b"a", b"log")], sync=False)
    shard.state.commit({b"a": b"state"}, index=2, digest=DIGEST)
    shard.log.write([], delete_ranges=[(b"", END)], sync=False)

    assert shard.log.get(b"a") is None
    assert b"state" == shard.state.get(b"a")


def test_closing_twice_is_harmless(shard: Shard) -> None:
    """The node's stop may find the store closed."""
    shard.close()
    shard.close()


def test_a_page_skips_no_stored_row_for_a_newer_one_behind_it() -> None:
    """If memory deletes rows of a full page from the database, the page ends before newer rows."""
    shard = WaitedShard(None, spilled=False)
    there = rows(b"a", b"b", b"c", b"d", b"e")
    shard.state.commit(dict(there), index=2, digest=DIGEST)
    shard.log.write(there, sync=True)
    shard.spill()
    shard.state.commit({b"a": None, b"b": None, b"k": b"vk"}, index=3, digest=DIGEST)
    shard.log.write(rows(b"k"), delete_ranges=[(b"a", b"c")], sync=True)

    assert rows(b"c", b"d") == shard.state.scan(b"a", END, 2)
    assert rows(b"c", b"d", b"e", b"k") == shard.state.scan(b"a", END, 9)
    assert rows(b"c", b"d") == shard.log.scan(b"a", END, limit=2, bytes_max=1000)
    assert rows(b"c", b"d", b"e") == shard.log.scan(b"a", b"f", limit=9, bytes_max=1000)
