"""Walk keys: the range of rows that a bulk job goes over; no change of a task moves one of them."""

from __future__ import annotations

from codeq_cluster.codec import keyspace
from codeq_cluster.codec.tag_keys import tag_prefix, tag_range
from codeq_cluster.core.selecting import TaskFilter


def walk_range(
    tenant: str, tag: tuple[str, str] | None, *, only: TaskFilter, after: bytes
) -> tuple[bytes, bytes, int]:
    """Return the half-open range that is left, and the length of the prefix before positions.

    Args:
        tag: Only tasks with it, the newest first; None for the tasks of all tenants, by id.
        only: Its instants of creation bound a walk by tag.
        after: Position after which to begin; empty for the start.
    """
    if tag is None:
        prefix = keyspace.TASK_PREFIX
        start, end = keyspace.prefix_range(prefix)
    else:
        prefix = tag_prefix(tenant, *tag)
        start, end = tag_range(
            tenant, *tag, from_ms=only.created_from_ms, before_ms=only.created_before_ms
        )
    if after:
        start = max(start, prefix + after + b"\0")
    return start, end, len(prefix)
