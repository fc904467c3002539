"""Arrivals: a part of another cluster's tasks and items on its way into this one, as bytes.

The format is a version byte and a MessagePack array; fields go by position, as in the records.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from codeq_cluster.codec.records import RecordInvalid
from codeq_cluster.core.items import Pause, Subscription, Topic
from codeq_cluster.core.operations import Arrival

_VERSION = b"\x01"

_encode = msgspec.msgpack.Encoder().encode


class Arrivals(Struct, frozen=True, array_like=True):
    """The tasks and items of one request."""

    tasks: tuple[Arrival, ...] = ()
    items: tuple[Topic | Pause | Subscription, ...] = ()


_decode = msgspec.msgpack.Decoder(Arrivals).decode


def encode_arrivals(arrivals: Arrivals) -> bytes:
    """Return the arrivals as bytes."""
    return _VERSION + _encode(arrivals)


def decode_arrivals(content: bytes) -> Arrivals:
    """Return the arrivals in these bytes.

    Raises:
        RecordInvalid: The bytes are no arrivals of a known version.
    """
    if content[:1] != _VERSION:
        raise RecordInvalid(f"arrivals have version {content[:1].hex() or 'none'}, expected 01")
    try:
        return _decode(memoryview(content)[1:])
    except msgspec.MsgspecError as error:
        raise RecordInvalid(f"arrivals are damaged: {error}") from error
