"""Records: the values of the keyspace as bytes, each a version byte and a MessagePack array.

Fields go by position. A new field is added at the end with a default, so that older records stay
readable. Any other change needs a new version byte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from codeq_cluster.core.items import Item
from codeq_cluster.core.stored_item import StoredItem
from codeq_cluster.core.task import Counters, Result, Task
from codeq_cluster.core.view import KeyRow
from codeq_cluster.errors import CodeqError

_I = TypeVar("_I", bound=StoredItem)

_VERSION = b"\x01"

# What a decoder raises: texts may be no UTF-8, and structures too deep.
UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)

_encode = msgspec.msgpack.Encoder().encode


class RecordInvalid(CodeqError, ValueError):
    """A stored value is damaged, or a version unknown to this one has written it."""


# What decoding a row's key or value raises.
UNREADABLE_ROW = (RecordInvalid, ValueError, IndexError)


def encode(record: Task | Result | KeyRow | Counters | Item) -> bytes:
    """Return a record's bytes."""
    return _VERSION + _encode(record)


def _decoder(of: object, name: str) -> Callable[[bytes], Any]:
    """Return a function that returns the record in its bytes.

    It raises `RecordInvalid` for bytes that are no such record of a known version.
    """
    read = msgspec.msgpack.Decoder(of).decode

    def decode(value: bytes) -> object:
        if value[:1] != _VERSION:
            version = value[:1].hex() or "none"
            raise RecordInvalid(f"stored value has version {version}, expected 01")
        try:
            return read(memoryview(value)[1:])
        except UNREADABLE as error:
            raise RecordInvalid(f"stored {name} damaged: {error}") from error

    return decode


decode_task: Callable[[bytes], Task] = _decoder(Task, "task is")
decode_result: Callable[[bytes], Result] = _decoder(Result, "result is")
decode_key_row: Callable[[bytes], KeyRow] = _decoder(KeyRow, "idempotency row is")
decode_counters: Callable[[bytes], Counters] = _decoder(Counters, "counters are")
decode_item: Callable[[bytes], Item] = _decoder(Item, "item is")


def item_in(record: bytes | None, kind: type[_I]) -> _I | None:
    """Return the item of a row, or None for no row and an item of another kind."""
    found = None if record is None else decode_item(record)
    return found if isinstance(found, kind) else None
