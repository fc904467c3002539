"""Segments: the format of the write-ahead log's files. Pure: bytes in, values out.

A segment is a header frame, then job frames, without gaps:

    salt (8 bytes)   random per segment; tells its frames from older ones in a recycled file
    length (4)       of the body
    checksum (4)     CRC-32 of salt, length and body
    body             msgpack

A job frame has every write of one sync, so a power cut leaves all of them or none.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

FORMAT_VERSION = 1
SALT_BYTES = 8
_HEAD = struct.Struct(">8sII")
_T = TypeVar("_T")

Row = tuple[bytes, bytes]
Range = tuple[bytes, bytes]


class Write(Struct, frozen=True, array_like=True):
    """One shard's write to its log: the range deletes, then the rows.

    Attributes:
        delete_ranges: Half-open key ranges.
        puts: n rows, any order.
    """

    shard: int
    delete_ranges: Sequence[Range]
    puts: Sequence[Row]


class Job(Struct, frozen=True, array_like=True):
    """Writes that one sync makes durable.

    Attributes:
        seq: Counts the jobs of a node across all segments; the first is 1.
    """

    seq: int
    writes: list[Write]


class Header(Struct, frozen=True, array_like=True):
    """A segment's header.

    Attributes:
        number: Counts the segments of a node.
        after: Every job up to this one is in an earlier segment or in the databases.
    """

    version: int
    number: int
    after: int


class SegmentDamaged(ValueError):
    """A segment does not have the content that was written."""


_encode = msgspec.msgpack.Encoder().encode
_decode_job = msgspec.msgpack.Decoder(Job).decode
_decode_header = msgspec.msgpack.Decoder(Header).decode


def frame(salt: bytes, body: Struct) -> bytes:
    """Return the frame of a header or a job."""
    encoded = _encode(body)
    length = len(encoded)
    crc = zlib.crc32(encoded, zlib.crc32(salt + length.to_bytes(4, "big")))
    return _HEAD.pack(salt, length, crc) + encoded


def read(content: bytes) -> tuple[Header, list[Job]] | None:
    """Return a segment's header and jobs, up to its end or to a frame torn by a crash.

    None when the file has no header, because a crash stopped its creation.

    Raises:
        SegmentDamaged: A damaged frame is followed by others, or a frame has an unknown form.
    """
    salt = content[:SALT_BYTES]
    first = _body(content, 0, salt)
    if first is None:
        return None
    header = _decoded(_decode_header, first)
    if header.version != FORMAT_VERSION:
        raise SegmentDamaged(f"its format is {header.version}, this release reads {FORMAT_VERSION}")
    jobs: list[Job] = []
    offset = _HEAD.size + len(first)
    while (body := _body(content, offset, salt)) is not None:
        jobs.append(_decoded(_decode_job, body))
        offset += _HEAD.size + len(body)
    _refuse_frames_behind(content, offset, salt)
    return header, jobs


def _refuse_frames_behind(content: bytes, offset: int, salt: bytes) -> None:
    """Refuse an intact frame after a damaged one: a job begins only once the last is on disk."""
    place = content.find(salt, offset + 1)
    while place >= 0:
        if _body(content, place, salt) is not None:
            raise SegmentDamaged(f"the frame at byte {offset} is damaged, one behind it is whole")
        place = content.find(salt, place + 1)


def _body(content: bytes, offset: int, salt: bytes) -> bytes | None:
    """Return the body of the frame at an offset, or None when there is no complete one."""
    if len(content) - offset < _HEAD.size:
        return None
    found, length, crc = _HEAD.unpack_from(content, offset)
    body = content[offset + _HEAD.size : offset + _HEAD.size + length]
    if found != salt or length == 0 or len(body) != length:
        return None
    if zlib.crc32(body, zlib.crc32(salt + length.to_bytes(4, "big"))) != crc:
        return None
    return body


def _decoded(decode: Callable[[bytes], _T], body: bytes) -> _T:
    try:
        return decode(body)
    except msgspec.MsgspecError as error:
        raise SegmentDamaged(f"a frame is none of this release: {error}") from error
