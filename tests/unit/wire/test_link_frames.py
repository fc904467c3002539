"""Frames: only sealed bodies come out, in the order in which they were sealed."""

from __future__ import annotations

import struct
from contextlib import suppress
from itertools import pairwise

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.wire.frames import (
    GREETING_BYTES_MAX,
    FrameReader,
    FrameWriter,
    decode_greeting,
    plain_frame,
)
from codeq_cluster.wire.refusals import BadFrame, FrameRefusedError

KEY = b"k" * 32
FRAME_BYTES_MAX = 1000


def secured() -> FrameReader:
    reader = FrameReader()
    reader.secure(KEY, frame_bytes_max=FRAME_BYTES_MAX)
    return reader


def sealed(bodies: list[bytes], key: bytes = KEY) -> list[bytes]:
    writer = FrameWriter(key)
    return [writer.seal(body) + body for body in bodies]


def read(reader: FrameReader, chunks: list[bytes]) -> tuple[list[bytes], BadFrame | None]:
    """Return the bodies delivered, and the reason why reading ended, if it did."""
    bodies: list[bytes] = []
    try:
        for chunk in chunks:
            reader.feed(chunk)
            while (body := reader.next()) is not None:
                bodies.append(body)
    except FrameRefusedError as refused:
        return bodies, refused.reason
    return bodies, None


def cut(whole: bytes, places: list[int]) -> list[bytes]:
    """Cut `whole` at every place that is inside it."""
    ends = sorted({place % (len(whole) + 1) for place in places} | {0, len(whole)})
    return [whole[start:end] for start, end in pairwise(ends)]


bodies_strategy = st.lists(st.binary(min_size=1, max_size=200), max_size=8)
cuts_strategy = st.lists(st.integers(0, 10_000), max_size=20)


@given(bodies=bodies_strategy, places=cuts_strategy)
def test_frames_survive_any_cut_into_chunks(bodies: list[bytes], places: list[int]) -> None:
    """The bodies come out complete and in order, however TCP cuts the bytes."""
    chunks = cut(b"".join(sealed(bodies)), places)

    assert (bodies, None) == read(secured(), chunks)


@given(data=st.binary(max_size=5000), places=cuts_strategy)
def test_no_bytes_without_the_key_are_ever_delivered(data: bytes, places: list[int]) -> None:
    """Any bytes, cut in any way, neither crash the reader nor come out as a body."""
    bodies, _ = read(secured(), cut(data, places))

    assert [] == bodies


@given(bodies=bodies_strategy, places=cuts_strategy, at=st.integers(0), flip=st.integers(1, 255))
def test_an_altered_byte_ends_the_stream_at_its_frame(
    bodies: list[bytes], places: list[int], at: int, flip: int
) -> None:
    """Frames before the altered one are delivered; that one and the later ones never."""
    whole = bytearray(b"".join(sealed(bodies)))
    if not whole:
        return
    at %= len(whole)
    whole[at] ^= flip
    delivered, _ = read(secured(), cut(bytes(whole), places))
    intact, length = 0, 0
    for body in bodies:
        length += 20 + len(body)
        if length > at:
            break
        intact += 1

    assert delivered == bodies[:intact]


@given(order=st.permutations(range(5)))
def test_reordered_frames_are_refused(order: list[int]) -> None:
    """The first frame out of order closes the stream."""
    bodies = [bytes([number]) * 10 for number in range(5)]
    frames = sealed(bodies)
    in_place = next((i for i, number in enumerate(order) if i != number), 5)
    delivered, reason = read(secured(), [frames[number] for number in order])

    assert delivered == bodies[:in_place]
    assert reason == (None if in_place == 5 else BadFrame.MAC)


def test_a_repeated_frame_is_refused() -> None:
    """A frame is valid at one place of the stream only."""
    (frame,) = sealed([b"once"])

    assert ([b"once"], BadFrame.MAC) == read(secured(), [frame, frame])


def test_a_frame_of_another_key_is_refused() -> None:
    """A frame recorded on one connection means nothing on the next."""
    assert ([], BadFrame.MAC) == read(secured(), sealed([b"hello"], key=b"x" * 32))


@pytest.mark.parametrize(
    ("length", "reason"),
    [
        (16 + FRAME_BYTES_MAX + 1, BadFrame.OVERSIZE),
        (2**32 - 1, BadFrame.OVERSIZE),
        (16, BadFrame.GARBAGE),
        (0, BadFrame.GARBAGE),
    ],
)
def test_a_length_out_of_bounds_is_refused_before_its_body(length: int, reason: BadFrame) -> None:
    """Four bytes are enough to refuse; the reader neither awaits nor holds the body."""
    assert ([], reason) == read(secured(), [struct.pack(">I", length)])


def test_a_frame_of_the_largest_size_passes() -> None:
    """The bound applies to the body and is inclusive."""
    body = b"x" * FRAME_BYTES_MAX

    assert ([body], None) == read(secured(), sealed([body]))


def test_a_stranger_can_say_no_more_than_a_greeting() -> None:
    """Before the key is agreed, a frame has at most 4 KiB."""
    largest = b"g" * GREETING_BYTES_MAX

    assert ([largest], None) == read(FrameReader(), [plain_frame(largest)])
    assert ([], BadFrame.OVERSIZE) == read(
        FrameReader(), [struct.pack(">I", GREETING_BYTES_MAX + 1)]
    )


def test_the_reader_holds_no_more_than_a_frame_and_a_chunk() -> None:
    """The largest frame plus one read bounds the memory of a connection."""
    reader = secured()
    chunk = b"".join(sealed([b"x" * FRAME_BYTES_MAX] * 20))
    writer_position = 0
    held = 0
    while writer_position < len(chunk):
        reader.feed(chunk[writer_position : writer_position + 300])
        writer_position += 300
        while reader.next() is not None:
            pass
        held = max(held, reader.pending_bytes)

    assert held <= FRAME_BYTES_MAX + 20 + 300


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"\x9f\x01\xff",  # a list of indefinite length
        b"\xc1\x01",  # a date
        b"\xd8\x1c\x81\xd8\x1d\x00",  # a list that holds itself
        b"\xc2\x41\x01",  # a big number
        b"\x81" * 1000,  # a thousand lists within each other
        cbor2.dumps([1]) + b"x",
    ],
)
def test_a_greeting_is_one_plain_value(body: bytes) -> None:
    """A body that is not plain, finite and complete is garbage."""
    with pytest.raises(FrameRefusedError, match=BadFrame.GARBAGE):
        decode_greeting(body)


@given(data=st.binary(max_size=300))
def test_decoding_any_bytes_ends_in_a_value_or_a_refusal(data: bytes) -> None:
    """The decoder raises nothing but its refusal."""
    with suppress(FrameRefusedError):
        decode_greeting(data)
