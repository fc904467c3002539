"""Entries: the content of the replicated log: a batch of mutations and where it was decided.

    version byte, then the version's fields: [epoch, ordinal, clock_ms, seq, {key: value | null}]
    1: in CBOR
    2: in MessagePack, which takes a tenth of the time
    3: like 2, and its mutations are net: each index row of a task is put only where there is none

A node reads every version. It writes the newest one that the format version in use allows, because
every node of the group can read that.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Annotated, NamedTuple

import cbor2
import msgspec
from msgspec import Meta, Struct

from codeq_cluster.errors import CodeqError

_NUMBER_MAX = 2**63 - 1
_Number = Annotated[int, Meta(ge=0)]  # The decoder bounds it to 64 bits; `_unpacked` checks 63.
_DEPTH_MAX = 4  # The list and the map; nothing deeper is an entry.
_KEY_TYPES = {bytes}
_VALUE_TYPES = {bytes, type(None)}


class EntryInvalid(CodeqError, ValueError):
    """The bytes are no entry of a known version."""


class Entry(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One batch of decisions.

    Attributes:
        epoch: Raft term in which the batch was decided.
        ordinal: Number of the batch within the epoch.
        clock_ms: Of the last decision: Unix milliseconds, never smaller than an earlier entry's.
        seq: The last sequence number drawn so far.
        mutations: New value of each key, None for a deleted one; n keys, any order.
    """

    epoch: _Number
    ordinal: _Number
    clock_ms: _Number
    seq: _Number
    mutations: dict[bytes, bytes | None]


class _Form(NamedTuple):
    """The writer and reader of one version.

    Attributes:
        level: The first format version in which it is written.
    """

    level: int
    encode: Callable[[Entry], bytes]
    decode: Callable[[bytes], Entry]


def encode(entry: Entry, *, level: int) -> bytes:
    """Return the payload of a log entry.

    Args:
        entry: The batch.
        level: The format version in use in the group.
    """
    version = max(version for version, form in _FORMS.items() if form.level <= level)
    return bytes((version,)) + _FORMS[version].encode(entry)


def decode(payload: bytes) -> Entry:
    """Return the entry in a payload.

    Raises:
        EntryInvalid: The payload has another version, is damaged, or has bytes after the entry.
    """
    form = _FORMS.get(payload[0]) if payload else None
    if form is None:
        raise EntryInvalid(
            f"entry has version {payload[:1].hex() or 'none'}, this release reads "
            f"{', '.join(f'{version:02x}' for version in _FORMS)}"
        )
    return form.decode(payload[1:])


def is_net(payload: bytes) -> bool:
    """Return whether the mutations of a valid payload are net.

    Then a task's index row is put only where there is none, and deleted only where there is one.
    Otherwise a task that left a place and came back within the batch may put a row that exists.
    """
    return payload[0] >= _NET_FROM


def _to_cbor(entry: Entry) -> bytes:
    return cbor2.dumps([entry.epoch, entry.ordinal, entry.clock_ms, entry.seq, entry.mutations])


def _from_cbor(body: bytes) -> Entry:
    stream = BytesIO(body)
    try:
        fields = cbor2.CBORDecoder(
            stream, max_depth=_DEPTH_MAX, allow_indefinite=False, allow_duplicate_keys=False
        ).decode()
    except cbor2.CBORError as error:
        raise EntryInvalid(f"entry is damaged: {error}") from error
    if stream.tell() != len(body):
        raise EntryInvalid("entry is followed by other bytes")
    return _entry(fields)


def _unpacked(body: bytes) -> Entry:
    try:
        entry = _unpack(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise EntryInvalid(f"entry is damaged: {error}") from error
    if max(entry.epoch, entry.ordinal, entry.clock_ms, entry.seq) > _NUMBER_MAX:
        raise EntryInvalid("entry has a number out of range")
    return entry


def _entry(fields: object) -> Entry:
    match fields:
        case [int(epoch), int(ordinal), int(clock_ms), int(seq), dict(mutations)]:
            for number in (epoch, ordinal, clock_ms, seq):
                if type(number) is not int or not 0 <= number <= _NUMBER_MAX:
                    raise EntryInvalid(f"entry has a number out of range: {number}")
            if not set(map(type, mutations)) <= _KEY_TYPES:
                raise EntryInvalid("entry has a key that is not bytes")
            if not set(map(type, mutations.values())) <= _VALUE_TYPES:
                raise EntryInvalid("entry has a value that is neither bytes nor null")
            return Entry(epoch, ordinal, clock_ms, seq, mutations)
        case _:
            raise EntryInvalid("entry is not a list of four numbers and a map")


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Entry).decode
_NET_FROM = 3
_FORMS = {
    1: _Form(1, _to_cbor, _from_cbor),
    2: _Form(2, _pack, _unpacked),
    3: _Form(3, _pack, _unpacked),
}
