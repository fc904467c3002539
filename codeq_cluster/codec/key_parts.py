"""Key parts: the pieces that keys are made of."""

from __future__ import annotations

from functools import lru_cache

QUEUE_PREFIX = b"codeq/q/"
NUMBER_BYTES = 8
NUMBER_MAX = 2**64 - 1
PARTS_CACHED = 4096  # x about 200 bytes; every decision uses its task's id up to eight times.
QUEUES_CACHED = 4096  # The same; every decision uses its queue's keys several times.

_DEFAULT_TENANT = "_"


@lru_cache(PARTS_CACHED)
def part(name: str) -> bytes:
    """Return a name as a part of a key."""
    assert name
    assert "/" not in name
    return name.encode()


def tenant_part(tenant: str) -> bytes:
    """Return a tenant as a part of a key; the default one has no name of its own."""
    assert tenant != _DEFAULT_TENANT
    return part(tenant or _DEFAULT_TENANT)


def tenant_name(segment: bytes) -> str:
    """Return the tenant of a part."""
    name = segment.decode()
    return "" if name == _DEFAULT_TENANT else name


def be8(value: int) -> bytes:
    """Return a number as a part that sorts like it."""
    return value.to_bytes(NUMBER_BYTES)


@lru_cache(QUEUES_CACHED)
def queue_part(queue: str, tenant: str) -> bytes:
    """Return what the keys of all places of a queue begin with."""
    return b"%b%b/%b/" % (QUEUE_PREFIX, part(queue), tenant_part(tenant))
