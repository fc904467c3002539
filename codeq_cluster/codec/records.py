"""Records: the values of the keyspace as bytes, each a version byte and a MessagePack array.

Fields go by position. A new field is added at the end with a default, so that older records stay
readable. Any other change needs a new version byte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from codeq_cluster.core.items import Item
from codeq_cluster.core.task import Counters, Result, Task
from codeq_cluster.core.view import KeyRow
from codeq_cluster.errors import CodeqError

T = TypeVar("T")

_VERSION = b"\x01"

_encode = msgspec.msgpack.Encoder().encode
_decode_task = msgspec.msgpack.Decoder(Task).decode
_decode_result = msgspec.msgpack.Decoder(Result).decode
_decode_key_row = msgspec.msgpack.Decoder(KeyRow).decode
_decode_item: Callable[[memoryview], Item] = msgspec.msgpack.Decoder(Item).decode
_decode_counters = msgspec.msgpack.Decoder(Counters).decode


class RecordInvalid(CodeqError, ValueError):
    """A stored value is damaged, or a version unknown to this one has written it."""


def encode_task(task: Task) -> bytes:
    """Return the task's bytes."""
    return _VERSION + _encode(task)


def decode_task(value: bytes) -> Task:
    """Return the task.

    Raises:
        RecordInvalid: The bytes are no task of a known version.
    """
    return _decoded(_decode_task, value, "task is")


def encode_result(result: Result) -> bytes:
    """Return the result's bytes."""
    return _VERSION + _encode(result)


def decode_result(value: bytes) -> Result:
    """Return the result.

    Raises:
        RecordInvalid: The bytes are no result of a known version.
    """
    return _decoded(_decode_result, value, "result is")


def encode_key_row(row: KeyRow) -> bytes:
    """Return the bytes of an idempotency key's row."""
    return _VERSION + _encode(row)


def decode_key_row(value: bytes) -> KeyRow:
    """Return the row of an idempotency key.

    Raises:
        RecordInvalid: The bytes are no row of a known version.
    """
    return _decoded(_decode_key_row, value, "idempotency row is")


def encode_counters(counters: Counters) -> bytes:
    """Return the counters' bytes."""
    return _VERSION + _encode(counters)


def decode_counters(value: bytes) -> Counters:
    """Return the counters.

    Raises:
        RecordInvalid: The bytes are no counters of a known version.
    """
    return _decoded(_decode_counters, value, "counters are")


def encode_item(item: Item) -> bytes:
    """Return the item's bytes."""
    return _VERSION + _encode(item)


def decode_item(value: bytes) -> Item:
    """Return the item.

    Raises:
        RecordInvalid: The bytes are no item of a known version.
    """
    return _decoded(_decode_item, value, "item is")


def _decoded(decode: Callable[[memoryview], T], value: bytes, what: str) -> T:
    if value[:1] != _VERSION:
        raise RecordInvalid(f"stored value has version {value[:1].hex() or 'none'}, expected 01")
    try:
        return decode(memoryview(value)[1:])
    except msgspec.MsgspecError as error:
        raise RecordInvalid(f"stored {what} damaged: {error}") from error
