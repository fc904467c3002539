"""Line keys: the order in which relays are sent, schedules fire and groups are listed."""

from __future__ import annotations

from codeq_cluster.codec.key_parts import NUMBER_BYTES, be8, tenant_name, tenant_part

FIRE_PREFIX = b"codeq/sched/"
FORWARD_PREFIX = b"codeq/forward/"
GROUPS_PREFIX = b"codeq/groups/"


def forward_prefix(shard: int) -> bytes:
    """Return the prefix of the keys of the relays to a shard."""
    return b"%b%b/" % (FORWARD_PREFIX, shard.to_bytes(2))


def forward_from(shard: int, number: int) -> bytes:
    """Return the first key of the relays to a shard from a number on."""
    return forward_prefix(shard) + be8(number)


def forward_parts(key: bytes) -> tuple[int, int]:
    """Return (shard, number) from the key of a relay's place in its line."""
    start = len(FORWARD_PREFIX)
    return int.from_bytes(key[start : start + 2]), int.from_bytes(key[start + 3 : start + 11])


def fire_prefix(tenant: str) -> bytes:
    """Return the prefix of the keys of a tenant's schedules, by their next firing."""
    return b"%b%b/" % (FIRE_PREFIX, tenant_part(tenant))


def fire_from(tenant: str, due_ms: int) -> bytes:
    """Return the first key of a tenant's schedules that fire then or later."""
    return fire_prefix(tenant) + be8(due_ms)


def fire_parts(key: bytes) -> tuple[str, int]:
    """Return (tenant, Unix milliseconds) from the key of a schedule's next firing."""
    start = key.index(b"/", len(FIRE_PREFIX)) + 1
    tenant = tenant_name(key[len(FIRE_PREFIX) : start - 1])
    return tenant, int.from_bytes(key[start : start + NUMBER_BYTES])


def groups_prefix(tenant: str) -> bytes:
    """Return the prefix of the keys of a tenant's groups, in the order of their list."""
    return b"%b%b/" % (GROUPS_PREFIX, tenant_part(tenant))
