"""Arrivals: a part of another cluster's tasks and items on its way into this one, as bytes.

The format is a version byte and a MessagePack array; fields go by position, as in the records.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, get_args

import msgspec
from msgspec import Meta, Raw, Struct

from codeq_cluster.codec.records import UNREADABLE, RecordInvalid
from codeq_cluster.core.arrival import Arrival
from codeq_cluster.core.items import KIND_OF, Governing
from codeq_cluster.core.task import Task

TASKS_MAX = 256  # Of one request, and as many items: 25 ms of decisions on one shard.

_VERSION = b"\x01"

_encode = msgspec.msgpack.Encoder().encode


class Arrivals(Struct, frozen=True, array_like=True):
    """The tasks and items of one request."""

    tasks: tuple[Arrival, ...] = ()
    items: tuple[Governing, ...] = ()


class _Parts(Struct, frozen=True, array_like=True):
    """The same, each record to be decoded by itself: decoding holds the interpreter lock."""

    tasks: Annotated[tuple[Raw, ...], Meta(max_length=TASKS_MAX)] = ()
    items: Annotated[tuple[Raw, ...], Meta(max_length=TASKS_MAX)] = ()


class _TaskHead(Struct, frozen=True, array_like=True):
    id: str


class _ArrivalHead(Struct, frozen=True, array_like=True):
    task: _TaskHead


class _ItemHead(Struct, frozen=True, array_like=True):
    kind: str
    tenant: str
    id: str


def encode_arrivals(arrivals: Arrivals) -> bytes:
    """Return the arrivals as bytes."""
    return _VERSION + _encode(arrivals)


def decode_arrivals(content: bytes) -> Arrivals:
    """Return the arrivals in these bytes.

    A list that is too long is refused by its announced length, before any of it is decoded.

    Raises:
        RecordInvalid: The bytes are no arrivals of a known version, or not within their bounds; the
            text names the record and its field.
    """
    if content[:1] != _VERSION:
        raise RecordInvalid(f"arrivals have version {content[:1].hex() or 'none'}, expected 01")
    try:
        parts = _decode_parts(memoryview(content)[1:])
    except UNREADABLE as error:
        raise RecordInvalid(
            f"arrivals are damaged, or more than {TASKS_MAX} tasks or items: {error}"
        ) from error
    return Arrivals(tuple(map(_task, parts.tasks)), tuple(map(_item, parts.items)))


_decode_parts = msgspec.msgpack.Decoder(_Parts).decode
_decode_task = msgspec.msgpack.Decoder(Arrival).decode
_decode_task_head = msgspec.msgpack.Decoder(_ArrivalHead).decode
_decode_item: Callable[[Raw], Governing] = msgspec.msgpack.Decoder(Governing).decode
_decode_item_head = msgspec.msgpack.Decoder(_ItemHead).decode
_TAGGED = {KIND_OF[each].value: each for each in get_args(Governing)}
# Where an error is: the position of a field, in a record or in the task of an arrival.
_PATH = re.compile(r"`\$\[(\d+)\](?:\[(\d+)\])?")


def _task(raw: Raw) -> Arrival:
    try:
        return _decode_task(raw)
    except UNREADABLE as error:
        try:
            name = f"task {_decode_task_head(raw).task.id[:128]}: "
        except UNREADABLE:
            name = "a task: "
        first, second = _position(error)
        in_task = first == 0 and second is not None
        field = _name(Task, second) if in_task else _name(Arrival, first)
        raise RecordInvalid(f"{name}{field}{error}") from error


def _item(raw: Raw) -> Governing:
    try:
        return _decode_item(raw)
    except UNREADABLE as error:
        try:
            head = _decode_item_head(raw)
        except UNREADABLE:
            raise RecordInvalid(f"an item: {error}") from error
        kind = _TAGGED.get(head.kind)
        first, _ = _position(error)
        # The tag comes before the fields.
        field = "" if kind is None or first is None else _name(kind, first - 1)
        raise RecordInvalid(f"{head.kind[:16]} {head.id[:128]}: {field}{error}") from error


def _position(error: Exception) -> tuple[int | None, int | None]:
    found = _PATH.search(str(error))
    if found is None:
        return None, None
    first, second = found.groups()
    return int(first), None if second is None else int(second)


def _name(of: type[Struct], position: int | None) -> str:
    names = of.__struct_fields__
    known = position is not None and 0 <= position < len(names)
    return f"{names[position]}: " if position is not None and known else ""
