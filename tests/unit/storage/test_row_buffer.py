"""The row buffer: rows in memory over rows of a database read like one store."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.storage.buffer import MISSING, RowBuffer

keys = st.sampled_from([b"a", b"a\x00", b"b", b"c", b"ca", b"d", b"\xff"])
values = st.binary(max_size=4)
Rows = dict[bytes, bytes]


class Both:
    """A buffer over stored rows, and a dictionary with the same content."""

    def __init__(
        self, stored: Rows, *, is_transient: Callable[[bytes], bool] = lambda _key: False
    ) -> None:
        self.stored = dict(stored)
        self.model = dict(stored)
        self.is_transient = is_transient
        self.buffer = RowBuffer(is_transient)

    def write(self, puts: list[tuple[bytes, bytes]], ranges: list[tuple[bytes, bytes]]) -> None:
        """Delete the ranges, then put the rows."""
        self.buffer.write(puts, ranges)
        self.model = {
            key: value
            for key, value in self.model.items()
            if not any(start <= key < end for start, end in ranges)
        } | dict(puts)

    def update(self, rows: dict[bytes, bytes | None]) -> None:
        """Put rows; None deletes."""
        self.buffer.update(rows)
        for key, value in rows.items():
            self.model.pop(key, None)
            if value is not None:
                self.model[key] = value

    def spill(self) -> None:
        """Bring every row into the stored rows, in the order in which a database takes them."""
        for start, end in self.buffer.ranges:
            for key in [key for key in self.stored if start <= key < end]:
                del self.stored[key]
        for key, value in self.buffer.rows.items():
            self.stored.pop(key, None)
            if value is not None:
                self.stored[key] = value
        self.buffer = RowBuffer(self.is_transient)

    def page(self, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        """Return the stored rows of a range, ascending."""
        return sorted((k, v) for k, v in self.stored.items() if start <= k < end)


steps = st.lists(
    st.one_of(
        st.tuples(
            st.lists(st.tuples(keys, values), max_size=3),
            st.lists(st.tuples(keys, keys).map(lambda each: (min(each), max(each))), max_size=2),
        ),
        st.dictionaries(keys, st.none() | values, max_size=3),
    ),
    max_size=6,
)


def driven(stored: Rows, calls: list[object]) -> Both:
    """Return both after these calls."""
    both = Both(stored)
    for call in calls:
        if isinstance(call, dict):
            both.update(call)
        elif isinstance(call, tuple):
            both.write(*call)
    return both


@given(stored=st.dictionaries(keys, values), calls=steps, start=keys, end=keys)
def test_reads_see_the_newest_of_both(
    stored: Rows, calls: list[object], start: bytes, end: bytes
) -> None:
    """Single keys and ranges read the same from the buffer as from the dictionary."""
    both = driven(stored, calls)
    wanted = sorted((k, v) for k, v in both.model.items() if start <= k < end)
    found = both.buffer.get(start)

    assert (stored.get(start) if found is MISSING else found) == both.model.get(start)
    assert wanted == both.buffer.merged(both.page(start, end), start, end)
    assert wanted == list(both.buffer.over(both.page(start, end), start, end))


@pytest.mark.parametrize("seed", range(5))
def test_ranges_of_many_rows_that_come_and_go_are_read_in_order(seed: int) -> None:
    """Reads bring keys into order now and then; those that are put after it are found as well."""
    draw = random.Random(seed)
    both = Both({}, is_transient=lambda _key: seed % 2 == 0)
    for _ in range(200):
        drawn = {draw.randbytes(2): b"1" for _ in range(20)}
        gone = dict.fromkeys(draw.sample(sorted(both.model), min(5, len(both.model))))
        both.update({**drawn, **gone})
        start, end = sorted((draw.randbytes(1), draw.randbytes(1)))
        wanted = sorted((key, value) for key, value in both.model.items() if start <= key < end)

        assert wanted == both.buffer.merged([], start, end)


@given(stored=st.dictionaries(keys, values), calls=steps)
def test_a_spill_changes_nothing_that_is_read(stored: Rows, calls: list[object]) -> None:
    """A spill deletes the ranges first, so rows put after a deletion stay."""
    both = driven(stored, calls)

    both.spill()

    assert both.model == both.stored


@given(calls=st.lists(st.sets(keys, min_size=1) | st.none(), max_size=10))
def test_rows_that_come_and_go_are_spilled_as_if_each_had_been_written(
    calls: list[set[bytes] | None],
) -> None:
    """Updates toggle keys, and None is a spill."""
    both = Both({b"a": b"", b"d": b""}, is_transient=lambda _key: True)
    for call in calls:
        if call is not None:
            both.update({key: None if key in both.model else b"" for key in call})
        else:
            both.spill()
    both.spill()

    assert both.stored == both.model


def test_a_row_that_came_and_went_is_not_spilled() -> None:
    """The database has no such row to delete; a record may be there, and is deleted."""
    buffer = RowBuffer(lambda key: key == b"index")
    buffer.update({b"index": b"", b"record": b"1"})
    buffer.update({b"index": None, b"record": None})

    assert {b"record": None} == buffer.rows


def test_a_stored_row_that_came_and_went_again_is_deleted() -> None:
    """A task is leased and spilled, then given back, leased and given back again."""
    buffer = RowBuffer(lambda _key: True)
    for value in (None, b"", None):
        buffer.update({b"lease": value})

    assert {b"lease": None} == buffer.rows


@given(toggles=st.lists(st.sets(keys, min_size=1), max_size=8))
def test_the_size_follows_rows_that_come_and_go(toggles: list[set[bytes]]) -> None:
    """A buffer that kept the size of rows it has lost would be spilled early or hold its log."""
    buffer = RowBuffer(lambda _key: True)
    present: set[bytes] = set()
    for toggled in toggles:
        buffer.update({key: None if key in present else b"" for key in toggled})
        present ^= toggled
    buffer.update(dict.fromkeys(present))

    assert 0 == buffer.size
    assert not buffer


@given(calls=steps)
def test_a_buffer_that_was_written_to_is_not_empty(calls: list[object]) -> None:
    """Its size is above zero from the first row or range on, so that its bound can be reached."""
    buffer = driven({}, calls).buffer

    assert bool(buffer.rows or buffer.ranges) == bool(buffer)
    assert (buffer.size > 0) >= bool(buffer)
    assert buffer.size >= sum(len(key) + len(value or b"") for key, value in buffer.rows.items())
