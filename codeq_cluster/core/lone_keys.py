"""Lone keys: the rows of keys for which nothing waits; only their numbers change.

Most tasks with a key live such a life. `lanes` would decide the same of them, by more steps.
"""

from __future__ import annotations

from collections.abc import Iterable

from codeq_cluster.core.changes import ItemChange, TaskChange
from codeq_cluster.core.lane import Lane, lane_of_key
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import State
from codeq_cluster.core.view import View

_NOTHING = 0, 0
# By a task's states before and after: what is added to the ready and the running tasks of its key.
_ADDED = {
    (None, State.READY): (1, 0),
    (State.READY, State.LEASED): (-1, 1),
    (State.LEASED, State.LEASED): _NOTHING,
    (State.LEASED, State.DONE): (0, -1),
    (State.LEASED, State.FAILED): (0, -1),
}


def counted(view: View, changes: Iterable[TaskChange]) -> list[ItemChange] | None:
    """Return the changes of rows that changes of tasks cause; None if `lanes` has to say more."""
    rows: dict[tuple[str, str], ItemChange] = {}
    for change in changes:
        before, after = change.before, change.after
        if after is None:
            return None
        if after.more is None or not after.more.key:
            continue
        queue = after.command.lower()
        flow = view.flow(after.tenant, queue)
        rule = flow.per_key if flow is not None else None
        added = _ADDED.get((None if before is None else before.state, after.state))
        name = after.tenant, lane_of_key(queue, after.more.key)
        if added is None or name in rows or (rule is not None and rule.rate is not None):
            return None
        found = view.item(ItemKind.LANE, *name)
        if found is None:
            if before is not None:
                return None
            now = Lane(tenant=name[0], id=name[1], key=after.more.key, ready=1)
        else:
            assert isinstance(found, Lane)
            # Of a key that has tasks already, another one may have to wait.
            if not found.is_count or (before is None and rule is not None):
                return None
            now = found.plus(ready=added[0], running=added[1])
        if added is not _NOTHING:
            rows[name] = ItemChange(before=found, after=now if now.taken else None)
    return [*rows.values()]
