"""Tag keys: the rows by which a tenant's tasks with one tag are listed, the newest first.

A tag is the digest of its text, so that a value may be any text. Nothing in these keys changes in a
task's life but its tags.
"""

from __future__ import annotations

from functools import lru_cache

from codeq_cluster.codec.key_parts import NUMBER_MAX, PARTS_CACHED, be8, part, tenant_part
from codeq_cluster.core.lane import lane_name
from codeq_cluster.core.tags import shown_tag
from codeq_cluster.core.task import Task

TAG_PREFIX = b"codeq/by-tag/"


def tag_keys(of: Task) -> tuple[bytes, ...]:
    """Return the key of a task's row under each of its tags."""
    made = be8(NUMBER_MAX - of.created_ms)
    return tuple(
        b"%b%b/%b" % (tag_prefix(of.tenant, name, value), made, part(of.id))
        for name, value in (of.more.tags if of.more is not None else ())
    )


@lru_cache(PARTS_CACHED)
def tag_prefix(tenant: str, name: str, value: str) -> bytes:
    """Return the prefix of the rows of a tenant's tasks with a tag."""
    return b"%b%b/%b/" % (
        TAG_PREFIX,
        tenant_part(tenant),
        lane_name(shown_tag(name, value)).encode(),
    )


def tag_range(
    tenant: str, name: str, value: str, *, from_ms: int, before_ms: int
) -> tuple[bytes, bytes]:
    """Return the half-open range of the rows of a tag, of tasks created within two instants.

    Args:
        from_ms: Created then or later; 0 for any.
        before_ms: Created before; 0 for any.
    """
    prefix = tag_prefix(tenant, name, value)
    start = prefix + be8(NUMBER_MAX - before_ms + 1) if before_ms else prefix
    return start, prefix + be8(NUMBER_MAX - from_ms + 1) if from_ms else prefix[:-1] + b"0"
