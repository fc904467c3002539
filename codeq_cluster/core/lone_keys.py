"""Lone keys: the rows of keys for which nothing waits; only their numbers change.

Most tasks with a key live such a life. `lanes` would decide the same of them, by more steps.
"""

from __future__ import annotations

from collections.abc import Iterable

from codeq_cluster.core.changes import ItemChange, TaskChange
from codeq_cluster.core.lane import Lane, lane_of_key
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import State, Task
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
        after = change.after
        if after is None:
            return None
        more = after.more
        if more is None or not more.key:
            continue
        name = after.tenant, lane_of_key(after.command.lower(), more.key)
        row = _row(view, name, more.key, change.before, after) if name not in rows else None
        if row is None:
            return None
        if row.after is not row.before:
            rows[name] = row
    return [*rows.values()]


def _row(
    view: View, name: tuple[str, str], key: str, before: Task | None, after: Task
) -> ItemChange | None:
    """Return the change of a key's row, which may stay as it is; None if `lanes` has to say more.

    Args:
        name: Tenant and id of the row.
        before: A task with the key; None for a new one.
        after: The same task after the change.
    """
    was = None if before is None else before.state
    added = _ADDED.get((was, after.state))
    if added is None:
        return None
    rule = None
    if was is not State.LEASED:  # The end of a task asks its rule nothing while nothing waits.
        flow = view.flow(name[0], after.command.lower())
        rule = flow.per_key if flow is not None else None
        if rule is not None and rule.rate is not None:
            return None
    found = view.item(ItemKind.LANE, *name)
    if found is None:
        new = Lane(tenant=name[0], id=name[1], key=key, ready=1)
        return ItemChange(before=None, after=new) if before is None else None
    assert isinstance(found, Lane)
    now = found.plus(ready=added[0], running=added[1])
    # Of a key that has tasks already, another one may have to wait.
    if now is None or (before is None and rule is not None):
        return None
    if added is _NOTHING:
        now = found
    return ItemChange(before=found, after=now if now.taken else None)
