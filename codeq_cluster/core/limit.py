"""Limit: a bound that several queues of a tenant share, such as the quota of one API.

Its rule is in force on every shard as the `Flow` of its scope, and its `Gate` has that name, too.
All queues that name it are on the shard of its scope, so one log decides about them together.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from codeq_cluster.core.bounds import (
    NUMBER_MAX,
    Instant,
    Name,
    NameOrNone,
    Owner,
    Queue,
    Seq,
    whole,
)
from codeq_cluster.core.gate import PerQueue, SoundPerQueue
from codeq_cluster.core.stored_item import StoredItem

LIMITS_MAX = 1000  # Of one tenant, because every shard keeps their rules in memory.
# Queues that share one: a claim counts the tasks in progress of each once, 64 x about 2 us.
SHARERS_MAX = 64
_MARK = "@"  # No queue's name has it.


class Limit(StoredItem, frozen=True, array_like=True, tag="limit", kw_only=True):
    """The rule of all tasks of the queues that name it.

    Attributes:
        id: Its name in lower case.
        name: As the caller spelt it.
        rule: Of the tasks of all its queues together.
        rule_seq: When the rule was put, by which shards tell it from older ones.
        version: 1 for a new one; grows by one with every change.
        request: Id of the request that wrote this version.
    """

    count_max = LIMITS_MAX

    tenant: Owner
    id: Queue
    name: Name
    rule: SoundPerQueue
    rule_seq: Seq
    version: Annotated[int, whole(1, NUMBER_MAX)] = 1
    created_ms: Instant = 0
    updated_ms: Instant = 0
    request: NameOrNone = ""

    @property
    def fault(self) -> str:
        """Return the rule between fields that it breaks, or ""."""
        return "id: must be the name in lower case" if self.id != self.name.lower() else ""


class PutLimit(Struct, frozen=True, array_like=True, tag="put_limit", kw_only=True):
    """Create or change a limit on all `shards`."""

    request: str
    tenant: str
    name: str
    by: str
    rule: PerQueue
    shards: int


class DeleteLimit(Struct, frozen=True, array_like=True, tag="delete_limit", kw_only=True):
    """Delete a limit that no queue names, on all `shards`."""

    request: str
    tenant: str
    name: str
    by: str
    shards: int


LimitOperation = PutLimit | DeleteLimit


def scope_of_limit(limit: str) -> str:
    """Return the name under which the tasks of a limit's queues are counted together."""
    return _MARK + limit.lower()


def is_limits(scope: str) -> bool:
    """Return whether a scope is a limit's, and not a queue."""
    return scope.startswith(_MARK)


def pin_said(queue: str, scope: str) -> str:
    """Return a queue and what places it as one text; see `pin_read`."""
    return queue + scope if is_limits(scope) else queue


def pin_read(text: str) -> tuple[str, str]:
    """Return a queue and what places it: itself, or a limit."""
    queue, mark, limit = text.partition(_MARK)
    return queue, mark + limit if mark else queue
