"""Sharding: the shard on which a task lives."""

from __future__ import annotations

from functools import lru_cache

SHARDS_MAX = 256  # Per cluster.

_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_MASK = 0xFFFFFFFFFFFFFFFF


def fnv1a_64(text: str) -> int:
    """Return the 64-bit FNV-1a hash of `text` as UTF-8."""
    return _hashed(_FNV_OFFSET, text, _MASK)


@lru_cache(maxsize=4096)
def shard_of(text: str, shards: int) -> int:
    """Return the shard, from 0, of a task id."""
    return _hashed(_FNV_OFFSET, text, _needed(shards)) % shards


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

    Only the last four characters change, to hexadecimal digits. The part before them is hashed
    once, and each try then costs four steps of the hash.

    Args:
        text: ASCII, at least four characters.
        shards: Of the cluster, at most `SHARDS_MAX`.
        wanted: From 0. Each shard has hundreds of the 65,536 endings.
    """
    head, drawn = text[:-4], int(text[-4:], 16)
    mask = _needed(shards)
    state = _hashed(_FNV_OFFSET, head, mask)
    prime = _FNV_PRIME & mask
    for number in range(drawn, drawn + 2**16):
        ending = f"{number & 0xFFFF:04x}"
        hashed = state
        for byte in ending.encode():
            hashed = ((hashed ^ byte) * prime) & mask
        if hashed % shards == wanted:
            return head + ending
    raise AssertionError(f"no ending of {head} is on {wanted}")


def _hashed(state: int, text: str, mask: int) -> int:
    """Return those bits of the hash that a mask has, which is 1 less than a power of two."""
    state &= mask
    prime = _FNV_PRIME & mask
    for byte in text.encode():
        state = ((state ^ byte) * prime) & mask
    return state


@lru_cache
def _needed(shards: int) -> int:
    """Return the mask of the bits that decide the shard: the lowest, of a power of two.

    A step of the hash carries bits upwards only, and takes half the time where numbers are small.
    """
    return _MASK if shards & (shards - 1) else shards - 1


def home_shard(tenant: str, shards: int) -> int:
    """Return the shard, from 0, that has the tenant's cluster-wide items."""
    return shard_of("tenant/" + (tenant or "_"), shards)
