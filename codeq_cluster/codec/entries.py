"""Entries: what the replicated log carries: a batch of mutations and where it was decided.

    version byte, then CBOR [epoch, ordinal, clock_ms, seq, {key: value | null}]

The mutations are one flat map of bytes, the shape CBOR reads fastest.
"""

from __future__ import annotations

from io import BytesIO

import cbor2
from msgspec import Struct

from codeq_cluster.errors import CodeqError

_VERSION = 1
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


def encode(entry: Entry) -> bytes:
    """Return the payload of a log entry."""
    fields = [entry.epoch, entry.ordinal, entry.clock_ms, entry.seq, entry.mutations]
    return bytes((_VERSION,)) + cbor2.dumps(fields)


def decode(payload: bytes) -> Entry:
    """Return the entry.

    Raises:
        EntryInvalid: Another version, damaged, or more than an entry.
    """
    if payload[:1] != bytes((_VERSION,)):
        raise EntryInvalid(f"entry has version {payload[:1].hex() or 'none'}, expected 01")
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
