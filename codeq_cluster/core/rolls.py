"""Rolls: groups on their way through one decision.

A decision may change a group many times: each member that it adds, each that ends. Its roll gathers
them, so that the group's row is written once, and the last end makes the completion task in the
same entry.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeGuard

from msgspec.structs import replace

from codeq_cluster.core import courses, task_ids
from codeq_cluster.core.cancelling import cancel_change
from codeq_cluster.core.changes import Change, ItemChange, TaskChange
from codeq_cluster.core.creating import OnceNames, made
from codeq_cluster.core.groups import (
    DEAD,
    KEPT_MS,
    MEMBERS_MAX,
    NOT_MADE,
    NOT_SEALED,
    Group,
    Member,
    MemberEnded,
    NewMember,
    OnFailure,
    ThenIf,
    has_succeeded,
    member_id,
)
from codeq_cluster.core.items import KIND_OF, Item
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.placing import kept_id, once_name
from codeq_cluster.core.relays import RelayedCancel, RelayedTask
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.sending import MEMBER_PLACE, Cause, sent
from codeq_cluster.core.sharding import shard_of, shard_of_key, with_shard
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.tally import GROUPS, Tally, count_of, moved
from codeq_cluster.core.task import COMPLETED, FAILED, GroupCounts, Membership, More, Task
from codeq_cluster.core.transitions import CANCELLED
from codeq_cluster.core.view import View

_COUNTED = {COMPLETED: "completed", FAILED: "failed", CANCELLED: "cancelled", DEAD: "dead"}


class Roll:
    """The roll of one group.

    Args:
        found: The group as it stands; None for a new one.
        keys: Of the tasks that the decision makes.

    Attributes:
        at: The group as it is so far.
    """

    def __init__(
        self, view: View, found: Group | None, at: Group, rules: LifetimeRules, keys: OnceNames
    ) -> None:
        self._view = view
        self._rules = rules
        self._before = found
        self._members: dict[str, ItemChange] = {}
        self._tasks: list[TaskChange] = []
        self._causes: list[Cause] = []
        self._keys = keys
        self.at = at

    @property
    def changes(self) -> list[Change]:
        """Return everything that the decision changes for it."""
        rows: list[Change] = [row for row in self._members.values() if row.before != row.after]
        if self.at != self._before:
            rows.append(ItemChange(before=self._before, after=self.at))
        return [*self._tasks, *rows, *sent(self._view, self._causes)]

    @property
    def tasks_here(self) -> tuple[Task, ...]:
        """Return the members that the decision makes on this shard."""
        return tuple(change.after for change in self._tasks if change.after is not None)

    @property
    def ended_now(self) -> bool:
        """Return whether it has ended in this decision."""
        was_open = self._before is None or not self._before.ended_ms
        return was_open and self.at.ended_ms > 0

    def stands(self, row: Member) -> None:
        """Begin with a member's row as an earlier part of the decision has left it."""
        self._members[row.id] = ItemChange(before=row, after=row)

    def member(self, name: str) -> Member | None:
        """Return a member's row as it is so far."""
        row_id = member_id(self.at.id, name)
        if row_id in self._members:
            after = self._members[row_id].after
            assert isinstance(after, Member)
            return after
        found = self._view.item(ItemKind.MEMBER, self.at.tenant, row_id)
        return found if isinstance(found, Member) else None

    def add(self, create: Create, *, parent_id: str = "", root_id: str = "") -> None:
        """Add a task, unless it is a member already; in a cancelled group it never begins."""
        if self.member(create.id) is not None:
            return
        at, shards = self.at, self._rules.shards
        effect = as_member(at, create, parent_id=parent_id, root_id=root_id)
        status = CANCELLED if at.cancelled_ms else ""
        if not status and effect.home(shards) != self._home:
            self._send(create.id, 0, effect)
        elif not status:
            change = made(self._view, create, self._rules, more=effect.more, keys=self._keys)
            if change is None:
                status = NOT_MADE
            else:
                self._tasks.append(change)
        row = Member(
            tenant=at.tenant,
            id=member_id(at.id, create.id),
            task_id=create.id,
            key=once_name(create),
            status=status,
            ended_ms=self._view.now_ms if status else 0,
        )
        self._members[row.id] = ItemChange(before=None, after=row)
        field = _COUNTED.get(status, "live")
        counts = {} if status == NOT_MADE else {field: getattr(at, field) + 1}
        self.at = replace(at, rows=at.rows + 1, **counts)

    def cancel(self, row: Member, task: Task | None) -> None:
        """Cancel a live member, here or on its shard; its end is counted like any other.

        Args:
            row: Of the member.
            task: None if it is on another shard, or gone.
        """
        request = f"{self.at.id}.{self.at.generation}"[-128:]
        # A restore may leave a member of this shard on its way: the cancel goes behind it.
        if task is None or not self._is_here(row):
            effect = RelayedCancel(row.tenant, row.task_id, request)
            self._send(row.task_id, 1, effect)
        elif not task.state.terminal:
            self._tasks.append(cancel_change(self._view, task, self._rules, request=request))

    def ended(self, end: MemberEnded) -> None:
        """Count the end of a member, once."""
        row = self.member(end.member.name)
        if row is None or row.status or end.member.generation != self.at.generation:
            return
        row_change = self._members.get(row.id)
        before = row if row_change is None else row_change.before
        after = replace(row, task_id=end.task_id, status=end.status, ended_ms=end.ended_ms)
        self._members[row.id] = ItemChange(before=before, after=after)
        at = replace(self.at, live=self.at.live - 1)
        field = _COUNTED.get(end.status)
        if field is not None:
            at = replace(at, **{field: getattr(at, field) + 1})
        self.at = at
        if at.on_failure is OnFailure.CANCEL and end.status in (FAILED, DEAD):
            self.begin_cancelling()

    def begin_cancelling(self) -> None:
        """Seal it and let a walk cancel its members."""
        at, now_ms = self.at, self._view.now_ms
        if at.cancelled_ms or at.ended_ms:
            return
        self.at = replace(
            at,
            sealed_ms=at.sealed_ms or now_ms,
            cancelled_ms=now_ms,
            walked="",
            expires_ms=now_ms,
        )

    def seal(self) -> None:
        """Let nobody but live members add to it."""
        if not self.at.sealed_ms:
            self.at = replace(self.at, sealed_ms=self._view.now_ms, expires_ms=0)

    def overdue(self) -> None:
        """End it because nobody has sealed it in time; no completion task follows."""
        self._end(reason=NOT_SEALED)

    def settle(self) -> None:
        """End it if nothing more can happen to it, with its completion task."""
        at = self.at
        if not at.sealed_ms or at.live or at.ended_ms:
            return
        self._end()
        if at.then is None or (at.then_if is ThenIf.SUCCEEDED and not has_succeeded(at)):
            return
        shards = self._rules.shards
        then_id = kept_id(
            task_ids.derived(at.tenant, f"{at.shard_name}.{at.generation}"),
            at.then,
            at.tenant,
            home=self._home,
            shards=shards,
            pins=self._view.pins,
            is_there=lambda _: False,
        )
        counts = GroupCounts(
            id=at.id,
            total=at.total,
            completed=at.completed,
            failed=at.failed,
            cancelled=at.cancelled,
            dead=at.dead,
        )
        create = replace(at.then, id=then_id, tenant=at.tenant)
        more = More(completes=counts)
        if shard_of(then_id, shards) != self._home:
            self._send(then_id, 0, RelayedTask(create, more))
        elif change := made(self._view, create, self._rules, more=more):
            self._tasks.append(change)
        self.at = replace(self.at, then_id=then_id)

    def _end(self, reason: str = "") -> None:
        """Note its end; of the completion task it keeps what is shown, which is not the payload."""
        at, now_ms = self.at, self._view.now_ms
        self.at = replace(
            at,
            then=at.then and replace(at.then, payload="null"),
            sealed_ms=at.sealed_ms or now_ms,
            ended_ms=now_ms,
            walked="",
            reason=reason,
            expires_ms=now_ms + KEPT_MS,
        )

    @property
    def _home(self) -> int:
        return shard_of_key(self.at.tenant, self.at.shard_name, self._rules.shards)

    def _is_here(self, row: Member) -> bool:
        return shard_of(row.task_id, self._rules.shards) == self._home

    def _send(self, name: str, number: int, effect: RelayedTask | RelayedCancel) -> None:
        """Relay to a member's shard, under a name of this shard: relays live on their cause's."""
        shards = self._rules.shards
        cause = with_shard(name, shards=shards, wanted=self._home)
        self._causes.append(Cause(f"{cause}.{number}.0", cause, effect.home(shards), effect))


def as_member(
    group: Group, create: Create, *, parent_id: str = "", root_id: str = ""
) -> RelayedTask:
    """Return a new member as it is sent to its shard."""
    membership = Membership(group=group.id, generation=group.generation, name=create.id)
    return RelayedTask(create, More(parent_id=parent_id, root_id=root_id, member=membership))


class Rolls:
    """The rolls of all groups that a decision changes.

    Args:
        changes: What the decision changes so far.
        keys: Of the tasks that the decision makes besides; those of members are added.
    """

    def __init__(
        self,
        view: View,
        rules: LifetimeRules,
        changes: Iterable[Change] = (),
        *,
        keys: OnceNames | None = None,
    ) -> None:
        self._view = view
        self._rules = rules
        self._keys: OnceNames = set() if keys is None else keys
        self._known: dict[tuple[str, str], Roll | None] = {}
        self._others: list[Change] = []
        self._causes: list[Cause] = []
        self._begun: dict[str, int] = {}  # By tenant, how many groups begin.
        self._standing = {_name(change): change.after for change in changes if _is_ours(change)}

    @property
    def changes(self) -> list[Change]:
        """Return everything that the decision changes for them, once they are settled."""
        found: list[Change] = list(self._others)
        more = dict(self._begun)
        for roll in filter(None, self._known.values()):
            roll.settle()
            found += roll.changes
            if roll.ended_now:
                more[roll.at.tenant] = more.get(roll.at.tenant, 0) - 1
        found += [self._tallied(tenant, count) for tenant, count in more.items() if count]
        return [*found, *sent(self._view, self._causes)]

    def open_groups(self, tenant: str) -> int:
        """Return how many of the tenant's groups have not ended."""
        return count_of(self._found(ItemKind.TALLY, tenant, GROUPS))

    def roll(self, tenant: str, group_id: str) -> Roll | None:
        """Return the roll of a group, or None if there is none."""
        name = tenant, group_id
        if name not in self._known:
            found = self._found(ItemKind.GROUP, *name)
            roll = self._roll(found, found) if isinstance(found, Group) else None
            self._known[name] = roll
            for row in self._standing.values() if roll is not None else ():
                if isinstance(row, Member) and (row.tenant, row.group) == name and roll:
                    roll.stands(row)
        return self._known[name]

    def begin(self, group: Group) -> Roll:
        """Return the roll of a new group."""
        roll = self._roll(None, group)
        self._known[group.tenant, group.id] = roll
        self._begun[group.tenant] = self._begun.get(group.tenant, 0) + 1
        return roll

    def ended(self, end: MemberEnded) -> None:
        """Count the end of a member; its group may be gone."""
        roll = self.roll(end.tenant, end.member.group)
        if roll is not None:
            roll.ended(end)

    def joined(self, new: NewMember) -> None:
        """Add what a member on another shard has made; without its group it is a task by itself."""
        roll = self.roll(new.tenant, new.parent.group)
        if (
            roll is not None
            and roll.at.generation == new.parent.generation
            and roll.at.rows < MEMBERS_MAX
        ):
            roll.add(new.create, parent_id=new.parent_id, root_id=new.root_id)
            return
        shards = self._rules.shards
        effect = RelayedTask(new.create, More(parent_id=new.parent_id, root_id=new.root_id))
        if effect.home(shards) != new.home(shards):
            cause = with_shard(new.create.id, shards=shards, wanted=new.home(shards))
            self._causes.append(Cause(f"{cause}.0.0", cause, effect.home(shards), effect))
        elif change := made(self._view, new.create, self._rules, more=effect.more, keys=self._keys):
            self._others.append(change)

    def _roll(self, found: Group | None, at: Group) -> Roll:
        return Roll(self._view, found, at, self._rules, self._keys)

    def _tallied(self, tenant: str, more: int) -> ItemChange:
        before = self._found(ItemKind.TALLY, tenant, GROUPS)
        return ItemChange(before=before, after=moved(before, tenant, GROUPS, more))

    def _found(self, kind: ItemKind, tenant: str, item_id: str) -> Item | None:
        name = kind, tenant, item_id
        return self._standing[name] if name in self._standing else self._view.item(*name)


def _name(change: ItemChange) -> tuple[ItemKind, str, str]:
    item = change.after or change.before
    assert item is not None
    return KIND_OF[type(item)], item.tenant, item.id


def _is_ours(change: Change) -> TypeGuard[ItemChange]:
    """Return whether a change is of a row that a roll reads."""
    item = change.after or change.before
    return isinstance(item, Group | Member | Tally)


def counted(view: View, changes: tuple[Change, ...], rules: LifetimeRules) -> tuple[Change, ...]:
    """Return changes with what the ends of members cause: on their groups, here or elsewhere."""
    members = [
        (task, task.more.member)
        for change in changes
        if isinstance(change, TaskChange)
        and (task := change.first_end) is not None
        and task.more is not None
        and task.more.member is not None
    ]
    if not members:
        return changes
    rolls = Rolls(view, rules, changes)
    elsewhere: list[Cause] = []
    for task, member in members:
        end = MemberEnded(
            tenant=task.tenant,
            member=member,
            task_id=task.id,
            status=courses.status_of(task),
            ended_ms=task.updated_ms,
        )
        shard = end.home(rules.shards)
        if shard == shard_of(task.id, rules.shards):
            rolls.ended(end)
        else:
            name = f"{task.id}.{task.endings}.{MEMBER_PLACE}"
            elsewhere.append(Cause(name, task.id, shard, end))
    return _netted(changes, [*rolls.changes, *sent(view, elsewhere)])


def _netted(changes: tuple[Change, ...], more: list[Change]) -> tuple[Change, ...]:
    """Return changes and more as one decision's, in which each row changes once."""
    first = {_name(change): change for change in changes if _is_ours(change)}
    found: list[Change] = []
    for change in more:
        if _is_ours(change) and (before := first.pop(_name(change), None)):
            found.append(ItemChange(before=before.before, after=change.after))
        else:
            found.append(change)
    return *(each for each in changes if not _is_ours(each)), *first.values(), *found
