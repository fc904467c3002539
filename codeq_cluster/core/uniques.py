"""Uniques: passes a unique key on, in the entry in which its holder lets go.

`decide` passes every decision that changes a task with a unique key. So whatever ends, claims or
deletes the holder: the key's row changes in the same entry, and the task that is next goes on.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from codeq_cluster.core.changes import Change, ItemChange, TaskChange
from codeq_cluster.core.outcomes import Rejected, Rejection
from codeq_cluster.core.placing import is_misplaced
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import More, Role, State, Task, Unique
from codeq_cluster.core.transitions import released
from codeq_cluster.core.unique import Holder, lets_go, scope_of, unique_of
from codeq_cluster.core.view import View


def settled(view: View, changes: Iterable[Change]) -> tuple[Change, ...]:
    """Return a decision's changes with those of unique keys.

    The end of a `Holder` by time stands for the end of its throttle.
    """
    scopes: dict[tuple[str, str], _Scope] = {}
    all_: list[Change] = []
    lapsed: list[Holder] = []
    for change in changes:
        if isinstance(change, TaskChange):
            task = change.after or change.before
            assert task is not None
            if unique_of(task) is not None:
                change = _scope(view, scopes, task.tenant, scope_of(task)).noted(change)  # noqa: PLW2901
        elif change.after is None and isinstance(change.before, Holder):
            lapsed.append(change.before)
            continue
        all_.append(change)
    for each in lapsed:
        _add(all_, _scope(view, scopes, each.tenant, each.id).throttled(each))
    for scope in scopes.values():
        _add(all_, scope.passed_on())
        all_ += scope.row()
    return tuple(all_)


def holder_of(view: View, tenant: str, scope: str) -> Holder | None:
    """Return the row of a unique key, or None."""
    found = view.item(ItemKind.UNIQUE, tenant, scope)
    assert found is None or isinstance(found, Holder)
    return found


def taken(view: View, task: Task, shards: int, *, but: Iterable[str] = ()) -> Rejected | None:
    """Return why a dead letter cannot have its unique key again, or None.

    Either the refusal names who holds the key, or its queue has got a limit since: new tasks ask
    for the key on the queue's shard, so this one cannot know who holds it.

    Args:
        task: To be revived.
        shards: Of the cluster.
        but: Scopes that the same decision has given to others.
    """
    if unique_of(task) is None:
        return None
    if view.pins and is_misplaced(task, shards, view.pins):
        return Rejected(Rejection.KEYS_ELSEWHERE, task.id)
    scope = scope_of(task)
    row = holder_of(view, task.tenant, scope)
    if row is not None:
        return conflict(view, row)
    return Rejected(Rejection.UNIQUE_CONFLICT) if scope in but else None


def conflict(view: View, row: Holder) -> Rejected:
    """Return the refusal that names who holds a key: its id, its state and its age in ms."""
    task = view.task(row.task_id)
    assert task is not None  # A row goes with its task.
    age_ms = max(0, view.now_ms - task.created_ms)
    return Rejected(Rejection.UNIQUE_CONFLICT, f"{task.id} {task.state.name} {age_ms}")


def count(rows: dict[tuple[str, str], Holder], task: Task) -> None:
    """Note a task in the row of its unique key, in rows that are made from the tasks alone."""
    unique = unique_of(task)
    if unique is None or unique.role is Role.FREE:
        return
    name = task.tenant, scope_of(task)
    row = rows.get(name) or Holder(tenant=name[0], id=name[1], task_id="")
    if unique.role is Role.NEXT:
        rows[name] = replace(row, next_id=task.id)
    else:
        rows[name] = replace(row, task_id=task.id, expires_ms=unique.held_until_ms)


def restored(row: Holder) -> Holder:
    """Return the row as it begins in a restore; one without a holder lets the next task go."""
    if row.task_id:
        return row
    return replace(row, task_id=row.next_id, next_id="", expires_ms=1)


def with_role(task: Task, unique: Unique, role: Role, *, now_ms: int) -> Task:
    """Return a task that has become something else to its unique key."""
    gets = role is Role.HOLDER and unique.role is not Role.HOLDER
    until_ms = now_ms + unique.throttle_ms if gets and unique.throttle_ms else 0
    if role is Role.HOLDER and not gets:
        until_ms = unique.held_until_ms
    after = replace(unique, role=role, held_until_ms=until_ms, start_ms=0)
    return replace(task, more=replace(task.more or More(), unique=after))


def _add(changes: list[Change], more: TaskChange | None) -> None:
    """Add a change of a task, or make it part of the one that the decision makes already."""
    if more is None:
        return
    assert more.before is not None
    for position, change in enumerate(changes):
        if isinstance(change, TaskChange) and change.after == more.before:
            changes[position] = replace(change, after=more.after)
            return
    changes.append(more)


def _scope(view: View, scopes: dict[tuple[str, str], _Scope], tenant: str, scope: str) -> _Scope:
    known = scopes.get((tenant, scope))
    if known is None:
        known = scopes[tenant, scope] = _Scope(view, tenant, scope)
    return known


class _Scope:
    """One unique key while a decision is made."""

    def __init__(self, view: View, tenant: str, scope: str) -> None:
        self._view = view
        self._found = holder_of(view, tenant, scope)
        self._name = tenant, scope
        self._holder = self._found.task_id if self._found is not None else ""
        self._next = self._found.next_id if self._found is not None else ""
        self._until_ms = self._found.expires_ms if self._found is not None else 0
        self._latest: dict[str, Task] = {}  # Of those that the decision has changed.

    def noted(self, change: TaskChange) -> TaskChange:
        """Note a change of a task; return it with what it makes of the task's role."""
        before, after = change.before, change.after
        task = after or before
        assert task is not None
        if after is None:
            self._left(task.id)
            return change
        unique = unique_of(after)
        assert unique is not None
        role = unique.role
        over = lets_go(after, unique) or (role is Role.NEXT and after.state.terminal)
        if role is not Role.FREE and over:
            role = Role.FREE
        elif before is not None and before.state is State.DEAD and not after.state.terminal:
            role = Role.HOLDER  # A requeue asks beforehand whether the key is free.
        if role is not unique.role:
            after = with_role(after, unique, role, now_ms=self._view.now_ms)
        self._latest[after.id] = after
        self._as(after, role)
        return change if after is change.after else replace(change, after=after)

    def throttled(self, row: Holder) -> TaskChange | None:
        """Let the holder go because its throttle is over, if it is the one of the row."""
        if self._holder != row.task_id:
            return None
        before = self._of(self._holder)
        unique = unique_of(before)
        assert unique is not None
        if unique.role is Role.NEXT:  # A restore has lost the holder's record.
            self._holder, self._next = "", before.id
            return None
        after = with_role(before, unique, Role.FREE, now_ms=self._view.now_ms)
        self._latest[after.id] = after
        self._left(after.id)
        return TaskChange(before=before, after=after)

    def passed_on(self) -> TaskChange | None:
        """Give the key to the task that is next, if nobody holds it."""
        if self._holder or not self._next:
            return None
        before = self._of(self._next)
        unique = unique_of(before)
        assert unique is not None
        now_ms = self._view.now_ms
        # The next claim of its key, or of its queue, finds it at the tail.
        freed = released(before, start_ms=unique.start_ms, seq=self._view.next_seq(), now_ms=now_ms)
        after = with_role(freed, unique, Role.HOLDER, now_ms=now_ms)
        self._as(after, Role.HOLDER)
        return TaskChange(before=before, after=after)

    def row(self) -> list[Change]:
        """Return the change of the key's row, if it changes."""
        tenant, scope = self._name
        after = None
        if self._holder:
            after = Holder(
                tenant=tenant,
                id=scope,
                task_id=self._holder,
                next_id=self._next,
                expires_ms=self._until_ms,
            )
        return [] if after == self._found else [ItemChange(before=self._found, after=after)]

    def _as(self, task: Task, role: Role) -> None:
        self._left(task.id)
        if role is Role.HOLDER:
            assert not self._holder, "two tasks hold one unique key"
            unique = unique_of(task)
            assert unique is not None
            self._holder, self._until_ms = task.id, unique.held_until_ms
        elif role is Role.NEXT:
            assert not self._next, "two tasks are next of one unique key"
            self._next = task.id

    def _left(self, task_id: str) -> None:
        if self._holder == task_id:
            self._holder, self._until_ms = "", 0
        if self._next == task_id:
            self._next = ""

    def _of(self, task_id: str) -> Task:
        task = self._latest.get(task_id) or self._view.task(task_id)
        assert task is not None
        return task
