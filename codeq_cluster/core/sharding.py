"""Sharding: which shard a task lives on."""

from __future__ import annotations

SHARDS_MAX = 256  # Of one cluster.

_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_MASK = 0xFFFFFFFFFFFFFFFF


def fnv1a_64(text: str) -> int:
    """Hash `text` (as UTF-8) with FNV-1a, 64 bits."""
    value = _FNV_OFFSET
    for byte in text.encode():
        value = ((value ^ byte) * _FNV_PRIME) & _MASK
    return value


def shard_of(text: str, shards: int) -> int:
    """Return the shard, from 0, of a task id or of `tenant/key` for an idempotency key."""
    return fnv1a_64(text) % shards


def home_shard(tenant: str, shards: int) -> int:
    """Return the shard, from 0, whose leader keeps what a tenant has once in the whole cluster."""
    return shard_of("tenant/" + (tenant or "_"), shards)
