"""Entries: the content of the replicated log: a batch of mutations and where it was decided.

    version byte, then the version's fields
    1: in MessagePack, [epoch, ordinal, clock_ms, seq, {key: value | null}]

The mutations are net: a task's index row is put only where there is none, and deleted only where
there is one.
A node reads every version. It writes the newest one of the level in use, because every node of the
group can read that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta, Struct

from codeq_cluster.errors import CodeqError

_NUMBER_MAX = 2**63 - 1
_Number = Annotated[int, Meta(ge=0)]  # The decoder bounds it to 64 bits; `_unpacked` checks 63.


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
        level: The first level in which it is written.
    """

    level: int
    encode: Callable[[Entry], bytes]
    decode: Callable[[bytes], Entry]


def encode(entry: Entry, *, level: int) -> bytes:
    """Return the payload of a log entry.

    Args:
        level: In use in the group.
    """
    head, pack = _newest(level)
    return head + pack(entry)


@lru_cache
def _newest(level: int) -> tuple[bytes, Callable[[Entry], bytes]]:
    """Return the newest version of a level, as a byte, and its writer."""
    version = max(version for version, form in _FORMS.items() if form.level <= level)
    return bytes((version,)), _FORMS[version].encode


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


def _unpacked(body: bytes) -> Entry:
    try:
        entry = _unpack(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise EntryInvalid(f"entry is damaged: {error}") from error
    if max(entry.epoch, entry.ordinal, entry.clock_ms, entry.seq) > _NUMBER_MAX:
        raise EntryInvalid("entry has a number out of range")
    return entry


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Entry).decode
_FORMS = {1: _Form(1, _pack, _unpacked)}
