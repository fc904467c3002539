"""Cursor: up to which entry of each shard's log a watcher has seen what happened.

As text it is URL-safe base64 of the MessagePack array

    [1, index of shard 0, check of shard 0, index of shard 1, ...]

A check is a checksum of the entry itself: the same log has the same entry at the same index, on
every node, and another history has another one. 0 is not checked.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from codeq_cluster.errors import CodeqError

CURSOR_CHARS_MAX = 8192  # 1,000 shards take less.
_FORM = 1
_NUMBER_MAX = 2**53
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[int]).decode


class CursorInvalid(CodeqError):
    """The text is no cursor."""


class CursorExpired(CodeqError):
    """No node that answers has the entries after the cursor."""


class OtherHistory(CodeqError):
    """The cursor is of another log: of a cluster that was made anew, restored or recovered."""


class Position(Struct, frozen=True, array_like=True):
    """The last entry of one shard's log that a watcher has seen; its check may be 0."""

    index: int
    check: int


def check_of(term: int, payload: bytes | None) -> int:
    """Return the check of an entry."""
    return zlib.crc32(payload or b"", zlib.crc32(term.to_bytes(8, "big")))


def encode(positions: Sequence[Position]) -> str:
    """Return the cursor with these positions, one for each shard in order."""
    numbers = [_FORM, *(number for each in positions for number in (each.index, each.check))]
    return base64.urlsafe_b64encode(_pack(numbers)).rstrip(b"=").decode()


def decode(text: str, *, shards: int) -> list[Position]:
    """Return the positions in a cursor.

    Raises:
        CursorInvalid: It is none.
        OtherHistory: It is of a cluster with another number of shards.
    """
    if len(text) > CURSOR_CHARS_MAX:
        raise CursorInvalid("not a cursor")
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        form, *numbers = _unpack(raw)
    except (ValueError, binascii.Error, msgspec.MsgspecError) as error:
        raise CursorInvalid("not a cursor") from error
    if form != _FORM or len(numbers) % 2 or not all(0 <= each <= _NUMBER_MAX for each in numbers):
        raise CursorInvalid("not a cursor")
    if len(numbers) != 2 * shards:
        raise OtherHistory(f"the cursor is of {len(numbers) // 2} shards, here are {shards}")
    return [Position(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]
