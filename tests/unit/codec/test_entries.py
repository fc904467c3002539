"""A log entry is read whole and strictly, or refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.codec import entries
from codeq_cluster.codec.entries import Entry, EntryInvalid
from codeq_cluster.codec.levels import LEVEL

NUMBERS = st.integers(0, 2**63 - 1)
ENTRY = Entry(epoch=3, ordinal=4, clock_ms=5, seq=6, mutations={b"a": b"1", b"b": None})


@given(
    entry=st.builds(
        Entry,
        epoch=NUMBERS,
        ordinal=NUMBERS,
        clock_ms=NUMBERS,
        seq=NUMBERS,
        mutations=st.dictionaries(st.binary(), st.none() | st.binary()),
    )
)
def test_entries_come_back(entry: Entry) -> None:
    """Every replica reads exactly what the leader wrote."""
    assert entry == entries.decode(entries.encode(entry, level=LEVEL))


@given(noise=st.binary())
def test_noise_is_refused_and_raises_nothing_else(noise: bytes) -> None:
    """Decoding any bytes ends in an entry or in EntryInvalid."""
    try:
        entries.decode(b"\x01" + noise)
    except EntryInvalid:
        return

    assert b"\x95" == noise[:1]


@given(cut=st.integers(0, len(entries.encode(ENTRY, level=LEVEL)) - 1))
def test_an_entry_cut_short_is_refused(cut: int) -> None:
    """No prefix of an entry is an entry."""
    with pytest.raises(EntryInvalid):
        entries.decode(entries.encode(ENTRY, level=LEVEL)[:cut])


@pytest.mark.parametrize(
    "fields",
    [
        [1, 2, 3, 4],
        [1, 2, 3, 4, {}, 5],
        [1, 2, 3, 4, []],
        [True, 2, 3, 4, {}],
        [-1, 2, 3, 4, {}],
        [2**63, 2, 3, 4, {}],
        [1.0, 2, 3, 4, {}],
        [1, 2, 3, 4, {"a": b""}],
        [1, 2, 3, 4, {b"a": ""}],
        [1, 2, 3, 4, {b"a": [[]]}],
        {},
        None,
    ],
)
def test_another_shape_is_refused(fields: object) -> None:
    """Other values are recognised by their types."""
    with pytest.raises(EntryInvalid):
        entries.decode(b"\x01" + msgspec.msgpack.encode(fields))


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"", "version none"),
        (b"\x7f" + entries.encode(ENTRY, level=LEVEL)[1:], "this release reads 01"),
        (entries.encode(ENTRY, level=1) + b"\x00", "trailing"),
        (b"\x01" + b"\x91" * 5000, "damaged"),
        (b"\x01\x95\x01\x02\x03\xff\x80", "damaged"),
        (b"\x01\x95\xcf" + b"\xff" * 8 + b"\x02\x03\x04\x80", "out of range"),
    ],
)
def test_a_refusal_says_what_is_wrong(payload: bytes, words: str) -> None:
    """The text helps the operator who finds the damaged log."""
    with pytest.raises(EntryInvalid, match=words):
        entries.decode(payload)


def test_an_entry_is_written_as_the_level_in_use_has_it() -> None:
    """A level that adds nothing to entries writes them in the form of the level before."""
    assert entries.encode(ENTRY, level=LEVEL + 7) == entries.encode(ENTRY, level=LEVEL)
    assert 1 == entries.encode(ENTRY, level=1)[0]
