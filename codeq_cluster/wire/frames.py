"""Frames: the bytes of one direction of a connection, cut into bodies and sealed against change.

A frame is a 4-byte big-endian length, a 16-byte keyed BLAKE2b over (sequence number, body), and the
body. The length counts the bytes after it.
Until the two sides have proved themselves there is no key, so a frame has no MAC and its body has
at most 4 KiB. This module knows no sockets.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import struct
from typing import Any, Final, Never

import cbor2

from codeq_cluster.wire.refusals import BadFrame, FrameRefusedError

# Four times the largest greeting: a stranger can make a node hold no more bytes than this.
GREETING_BYTES_MAX: Final = 4096

_MAC_BYTES: Final = 16
_LENGTH: Final = struct.Struct(">I")
_SEQUENCE: Final = struct.Struct(">Q")
_HEADER_BYTES: Final = _LENGTH.size + _MAC_BYTES


class FrameWriter:
    """Seals the bodies that one side sends on one connection."""

    __slots__ = ("_keyed", "_sequence")

    def __init__(self, key: bytes) -> None:
        self._keyed = hashlib.blake2b(key=key, digest_size=_MAC_BYTES)
        self._sequence = 0

    def seal(self, body: bytes) -> bytes:
        """Return the header that precedes `body` on the wire; send in the order of sealing."""
        mac = self._keyed.copy()
        mac.update(_SEQUENCE.pack(self._sequence))
        mac.update(body)
        self._sequence += 1
        return _LENGTH.pack(_MAC_BYTES + len(body)) + mac.digest()


def plain_frame(body: bytes) -> bytes:
    """Return the frame of a greeting, sent before there is a key."""
    assert len(body) <= GREETING_BYTES_MAX
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts received bytes into bodies; a body is returned only when its seal is valid.

    Holds at most one frame and one chunk of bytes.
    """

    __slots__ = ("_buffer", "_keyed", "_length_max", "_length_min", "_sequence", "_start")

    def __init__(self) -> None:
        self._buffer: bytes | bytearray = b""
        self._start = 0
        self._length_min = 1
        self._length_max = GREETING_BYTES_MAX
        self._keyed: Any = None  # hashlib does not export the type of its keyed state.
        self._sequence = 0

    @property
    def pending_bytes(self) -> int:
        """Return the number of received bytes that do not make a complete frame yet."""
        return len(self._buffer) - self._start

    def secure(self, key: bytes, *, frame_bytes_max: int) -> None:
        """Expect sealed frames from the next byte on, bodies of at most `frame_bytes_max` bytes."""
        self._keyed = hashlib.blake2b(key=key, digest_size=_MAC_BYTES)
        self._length_min = _MAC_BYTES + 1
        self._length_max = _MAC_BYTES + frame_bytes_max

    def feed(self, chunk: bytes) -> None:
        """Add received bytes."""
        if self._start == len(self._buffer):
            self._buffer = chunk
        elif isinstance(self._buffer, bytearray):
            del self._buffer[: self._start]
            self._buffer += chunk
        else:
            self._buffer = bytearray(memoryview(self._buffer)[self._start :])
            self._buffer += chunk
        self._start = 0

    def next(self) -> bytes | None:
        """Return the next complete body, or None until more bytes come.

        Raises:
            FrameRefusedError: The length is out of bounds, or the seal is not valid.
        """
        buffer = self._buffer
        start = self._start
        if len(buffer) - start < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(buffer, start)
        if length > self._length_max:
            raise FrameRefusedError(BadFrame.OVERSIZE)
        if length < self._length_min:
            raise FrameRefusedError(BadFrame.GARBAGE)
        end = start + _LENGTH.size + length
        if end > len(buffer):
            return None
        if self._keyed is None:
            body = bytes(buffer[start + _LENGTH.size : end])
        else:
            body = bytes(memoryview(buffer)[start + _HEADER_BYTES : end])
            mac = self._keyed.copy()
            mac.update(_SEQUENCE.pack(self._sequence))
            mac.update(body)
            if not hmac.compare_digest(
                mac.digest(), buffer[start + _LENGTH.size : start + _HEADER_BYTES]
            ):
                raise FrameRefusedError(BadFrame.MAC)
            self._sequence += 1
        self._start = end
        return body


def decode_greeting(body: bytes) -> object:
    """Return the one CBOR value that fills `body` to the last byte.

    Raises:
        FrameRefusedError: The body is anything else.
    """
    source = io.BytesIO(body)
    try:
        value: object = cbor2.CBORDecoder(
            source,
            tag_hook=_refuse_tag,
            semantic_decoders=_NO_TAGS,
            allow_indefinite=False,
            max_depth=4,
        ).decode()
    except (cbor2.CBORError, ValueError) as error:
        raise FrameRefusedError(BadFrame.GARBAGE) from error
    if source.tell() != len(body):
        raise FrameRefusedError(BadFrame.GARBAGE)
    return value


def _refuse_tag(*_: object) -> Never:
    raise ValueError("tags are not part of this link")


# Tags make a decoder build dates, patterns, networks and shared references; no message needs one.
_NO_TAGS: Final = dict.fromkeys(
    (*range(6), 25, 28, 29, 30, 35, 36, 37, 100, 256, 258, 260, 261, 1004, 43000, 43001, 55799),
    _refuse_tag,
)
