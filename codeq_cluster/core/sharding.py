"""Sharding: the shard on which a task lives."""

from __future__ import annotations

from functools import lru_cache

SHARDS_MAX = 256  # Per cluster.

_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_MASK = 0xFFFFFFFFFFFFFFFF


def fnv1a_64(text: str) -> int:
    """Return the 64-bit FNV-1a hash of `text` as UTF-8."""
    value = _FNV_OFFSET
    for byte in text.encode():
        value = ((value ^ byte) * _FNV_PRIME) & _MASK
    return value


@lru_cache(maxsize=4096)
def shard_of(text: str, shards: int) -> int:
    """Return the shard, from 0, of a task id or of `tenant/key` for an idempotency key."""
    return fnv1a_64(text) % shards


def with_shard(text: str, *, shards: int, wanted: int) -> str:
    """Return a text of the same length whose shard is the wanted one.

    Only the last four characters change, to hexadecimal digits. The part before them is hashed
    once, and each try then costs four steps of the hash.

    Args:
        text: ASCII, at least four characters.
        shards: Of the cluster, at most `SHARDS_MAX`.
        wanted: From 0. Each shard has hundreds of the 65,536 endings.
    """
    head, drawn = text[:-4], int(text[-4:], 16)
    state = fnv1a_64(head)
    for number in range(drawn, drawn + 2**16):
        ending = f"{number & 0xFFFF:04x}"
        value = state
        for byte in ending.encode():
            value = ((value ^ byte) * _FNV_PRIME) & _MASK
        if value % shards == wanted:
            return head + ending
    raise AssertionError(f"no ending of {head} is on {wanted}")


def home_shard(tenant: str, shards: int) -> int:
    """Return the shard, from 0, that has the tenant's cluster-wide items."""
    return shard_of("tenant/" + (tenant or "_"), shards)
