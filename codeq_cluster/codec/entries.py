"""Entries: what the replicated log carries: a batch of mutations and where it was decided.

    version byte, then CBOR of the version's fields
    1: [epoch, ordinal, clock_ms, seq, {key: value | null}]

The mutations are one flat map of bytes, the shape CBOR reads fastest. All versions are read; which
one is written is for the level in use to say, which every node of the group knows.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import NamedTuple

import cbor2
from msgspec import Struct

from codeq_cluster.errors import CodeqError

_NUMBER_MAX = 2**63 - 1
_DEPTH_MAX = 4  # The list and the map; anything deeper is no entry.
_KEY_TYPES = {bytes}
_VALUE_TYPES = {bytes, type(None)}


class EntryInvalid(CodeqError, ValueError):
    """The bytes are no entry of a known version."""


class Entry(Struct, frozen=True):
    """One batch of decisions.

    Attributes:
        epoch: Raft term the batch was decided in.
        ordinal: Number of the batch within the epoch.
        clock_ms: Of the last decision: Unix milliseconds, never smaller than an earlier entry's.
        seq: The last sequence number drawn so far.
        mutations: New value of each key, None for a deleted one; n keys, any order.
    """

    epoch: int
    ordinal: int
    clock_ms: int
    seq: int
    mutations: dict[bytes, bytes | None]


class _Form(NamedTuple):
    """How one version is written and read.

    Attributes:
        level: From which on it is written.
    """

    level: int
    fields: Callable[[Entry], list[object]]
    entry: Callable[[object], Entry]


def encode(entry: Entry, *, level: int) -> bytes:
    """Return the payload of a log entry.

    Args:
        entry: What it carries.
        level: Of the formats in use where it is going to be read.
    """
    version = max(version for version, form in _FORMS.items() if form.level <= level)
    return bytes((version,)) + cbor2.dumps(_FORMS[version].fields(entry))


def decode(payload: bytes) -> Entry:
    """Return the entry.

    Raises:
        EntryInvalid: Another version, damaged, or more than an entry.
    """
    form = _FORMS.get(payload[0]) if payload else None
    if form is None:
        raise EntryInvalid(
            f"entry has version {payload[:1].hex() or 'none'}, this release reads "
            f"{', '.join(f'{version:02x}' for version in _FORMS)}"
        )
    stream = BytesIO(payload)
    stream.seek(1)
    try:
        fields = cbor2.CBORDecoder(
            stream, max_depth=_DEPTH_MAX, allow_indefinite=False, allow_duplicate_keys=False
        ).decode()
    except cbor2.CBORError as error:
        raise EntryInvalid(f"entry is damaged: {error}") from error
    if stream.tell() != len(payload):
        raise EntryInvalid("entry is followed by other bytes")
    return form.entry(fields)


def _fields(entry: Entry) -> list[object]:
    return [entry.epoch, entry.ordinal, entry.clock_ms, entry.seq, entry.mutations]


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


_FORMS = {1: _Form(1, _fields, _entry)}
