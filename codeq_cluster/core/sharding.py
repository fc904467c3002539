"""Sharding: the shard on which a task lives."""

from __future__ import annotations

from functools import lru_cache, reduce
from operator import getitem
from typing import Any

SHARDS_MAX = 256  # Per cluster.

_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_MASK = 0xFFFFFFFFFFFFFFFF
_BYTES = 256
_DIGITS = b"0123456789abcdef"


def fnv1a_64(text: str) -> int:
    """Return the 64-bit FNV-1a hash of `text` as UTF-8."""
    state = _FNV_OFFSET
    for byte in text.encode():
        state = ((state ^ byte) * _FNV_PRIME) & _MASK
    return state


@lru_cache(maxsize=4096)
def shard_of(text: str, shards: int) -> int:
    """Return the shard, from 0, of a task id."""
    return _hashed(text, shards) % shards


def shard_of_key(tenant: str, key: str, shards: int) -> int:
    """Return the shard of an idempotency key, where its task is created."""
    return shard_of(f"{tenant}/{key}", shards)


def shard_of_lane(tenant: str, queue: str, key: str, shards: int) -> int:
    """Return the shard of a queue's tasks that have this key."""
    return shard_of(f"{tenant}/{queue}/{key}", shards)


def shard_of_queue(tenant: str, queue: str, shards: int) -> int:
    """Return the shard of all tasks that a queue, or a limit's scope, places."""
    return shard_of(f"{tenant}/{queue}", shards)


def with_shard(text: str, *, shards: int, wanted: int) -> str:
    """Return a text of the same length whose shard is the wanted one.

    Only the last four characters change, to the next hexadecimal number that is on that shard. An
    id that follows from a cause depends on it: an import that is repeated after an upgrade must
    find its tasks.

    Args:
        text: ASCII, at least four characters, the last four of them a hexadecimal number.
        shards: Of the cluster, at most `SHARDS_MAX`.
        wanted: From 0. Each shard has hundreds of the 65,536 endings.
    """
    drawn, first = divmod(int(text[-4:], 16), 16)
    digits = _DIGITS[first:]
    for number in range(drawn, drawn + 16**3 + 1):
        head = f"{text[:-4]}{number & 0xFFF:03x}"
        state = _hashed(head, shards)
        for digit in digits:
            if ((state ^ digit) * _FNV_PRIME & _MASK) % shards == wanted:
                return head + chr(digit)
        digits = _DIGITS
    raise AssertionError(f"no ending of {text} is on {wanted}")


def _hashed(text: str, shards: int) -> int:
    """Return the hash; where the number of shards is a power of two, only the bits that decide."""
    if shards & (shards - 1):
        return fnv1a_64(text)
    row = _rows(shards)[_FNV_OFFSET & (shards - 1)]
    bits: int = reduce(getitem, text.encode(), row)[_BYTES]
    return bits


@lru_cache
def _rows(shards: int) -> list[list[Any]]:
    """Return the hash's steps for a power of two of shards, which its lowest bits alone decide.

    A step carries bits upwards only. So each value of these bits has a row, in which the next row
    stands at each byte, and the value itself behind them: one call of `reduce` takes all steps,
    where a loop took an eighth of the interpreter's work for a create.
    """
    rows: list[list[Any]] = [[] for _ in range(shards)]
    for bits, row in enumerate(rows):
        row.extend(rows[((bits ^ byte) * _FNV_PRIME) % shards] for byte in range(_BYTES))
        row.append(bits)
    return rows


def home_shard(tenant: str, shards: int) -> int:
    """Return the shard, from 0, that has the tenant's cluster-wide items."""
    return shard_of("tenant/" + (tenant or "_"), shards)
