"""Import record: the one audit record of an import, which its operations add to.

The record of each shard has the same id, so that a list can join them to one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from msgspec.structs import replace

from codeq_cluster.core.items import Audit, audit_id, audit_ms
from codeq_cluster.core.operations import Import
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.view import View

ACTION = "task.import"

# A record goes on for this long, then the import gets another one: who names an old record could
# place an import below those that others have already read. A leader's clock may be a day ahead.
_GOES_ON_MS = 3_600_000
_AHEAD_MS = 86_400_000

_DIGEST_CHARS = 24  # As many as a request id has.
_NUMBER = re.compile(r"(\d+) (task|polic)")


def placed(view: View, operation: Import) -> tuple[str, Audit | None]:
    """Return the id of the operation's audit record, and the record so far.

    The id follows from the caller's, from who imports and from where, so no choice of the caller's
    makes it the id of another action's record.
    """
    at_ms = audit_ms(operation.request)
    if at_ms is None or not -_GOES_ON_MS <= at_ms - view.now_ms <= _AHEAD_MS:
        at_ms = view.now_ms
    named = f"{operation.request}\0{operation.by}\0{operation.source}"
    record_id = audit_id(at_ms, hashlib.sha256(named.encode()).hexdigest()[:_DIGEST_CHARS])
    found = view.item(ItemKind.AUDIT, operation.tenant, record_id)
    assert found is None or isinstance(found, Audit)
    return record_id, found


def joined(records: Iterable[Audit]) -> Audit:
    """Return the record of an import as the sum of those of several shards, at least one."""
    first, *others = records
    return replace(
        first,
        at_ms=max(first.at_ms, *(each.at_ms for each in others)) if others else first.at_ms,
        detail=summed(first.detail, *(each.detail for each in others)),
    )


def summed(*details: str) -> str:
    """Return what several details of an import together say."""
    numbers = {"task": 0, "polic": 0}
    for number, word in _NUMBER.findall(" ".join(details)):
        numbers[word] += int(number)
    return brought(tasks=numbers["task"], items=numbers["polic"])


def brought(*, tasks: int, items: int) -> str:
    """Return the detail of an import that brought so many tasks and items."""
    said = [
        f"{number} {one if number == 1 else many}"
        for number, one, many in (
            (tasks, "task", "tasks"),
            (items, "policy or subscription", "policies and subscriptions"),
        )
        if number
    ]
    return ", ".join(said) or "callbacks of a task that follows"
