"""Lanes: lets the tasks of a key go in order, at most as many at once as their queue's rule says.

`decide` passes every decision that changes a task with a key, or by which the walk of a new rule
goes on. So whatever makes, returns or ends such a task: its key's row, and the next task of the
key, change in the same entry. Tasks that may run now are READY; the others are HELD in their lane.
A lane has at most `UNCLAIMED_MAX` tasks that are READY, so the keys of a queue take turns. With a
rate, a task becomes READY when its key has the tokens for it, and its claim spends them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from msgspec.structs import replace

from codeq_cluster.core.changes import Change, ItemChange, TaskChange
from codeq_cluster.core.lane import (
    Flow,
    KeyRule,
    Lane,
    OnRetry,
    Order,
    OwnRule,
    PerKey,
    WhenDead,
    cost_of,
    lane_id,
    lane_name,
    lane_of,
    takes_place,
)
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import State, Task
from codeq_cluster.core.transitions import admitted, held
from codeq_cluster.core.view import View

UNCLAIMED_MAX = 1
# What one step of a walk changes and looks at, so that it delays no other decision for long.
WALK_CHANGES_MAX = 48
WALK_LANES_MAX = 32
WALK_PAUSE_MS = 50  # Between two steps of one queue, so that others have most of the loop.
# Ready tasks of a key that one step takes back when a worker holds the key; there is one, unless
# several came back at once.
HELD_BACK_MAX = 16

_COUNTED = {State.LEASED: "running", State.READY: "ready", State.HELD: "held"}


def settled(
    view: View, changes: Iterable[Change], *, walked_max: int = WALK_CHANGES_MAX
) -> tuple[Change, ...]:
    """Return a decision's changes with those of the keys' lanes.

    The end of a `Flow` by time stands for the next step of its walk, that of a `Lane` for a look
    at whom time lets go. A `Lane` that stays stands for what a worker or an admin says of its key.
    """
    lanes = _Lanes(view, walked_max)
    all_: list[Change] = []
    walks: list[Flow] = []
    for change in changes:
        if isinstance(change, TaskChange):
            all_.append(lanes.noted(change))
        elif change.after is None and isinstance(change.before, Flow):
            walks.append(change.before)
        elif change.after is None and isinstance(change.before, Lane):
            lanes.woken(change.before)
        elif isinstance(change.after, Lane):
            lanes.told(change.after)
        else:
            all_.append(change)
    last: dict[str, Task] = {}
    for lane in lanes.known.values():
        all_ += lane.arranged(last)
    if last:
        all_ = [_instead(change, last) for change in all_]
    for flow in walks:
        all_ += lanes.walked(flow)
    for lane in lanes.known.values():
        all_ += lane.row()
    return tuple(all_)


def count(lanes: dict[tuple[str, str], Lane], task: Task) -> None:
    """Count a task in its lane's row, in rows that are made from the tasks alone."""
    key = lane_of(task)
    stops = task.id if key and _stops(task) else ""
    field = _counted_as(task) if key else ""
    if field or stops:
        name = task.tenant, lane_id(task.command.lower(), lane_name(key))
        lane = lanes.get(name) or Lane(tenant=name[0], id=name[1], key=key)
        if field:
            lane = replace(lane, **{field: getattr(lane, field) + 1})
        lanes[name] = replace(lane, stopped_by=stops or lane.stopped_by)


def count_own(lanes: dict[tuple[str, str], Lane], rule: KeyRule) -> None:
    """Let a key follow its own rule, in rows that are made from the tasks and these alone."""
    name = rule.tenant, rule.id
    lane = lanes.get(name) or Lane(tenant=rule.tenant, id=rule.id, key=rule.key)
    lanes[name] = replace(lane, own=rule.own)


def is_stopped(lane: Lane, rule: PerKey) -> bool:
    """Return whether a dead letter keeps all other tasks of its key waiting."""
    return rule.when_dead is WhenDead.STOP and bool(lane.stopped_by)


def unclaimed_max(lane: Lane, rule: PerKey) -> int:
    """Return how many tasks of a key may be ready, if it has places; with a rate its next one."""
    weighs = lane.own is not None and rule.rate is None
    return lane.own.weight if weighs and lane.own is not None else UNCLAIMED_MAX


class _Lanes:
    """The lanes that a decision concerns."""

    def __init__(self, view: View, walked_max: int) -> None:
        self._view = view
        # What is left for the walks of all queues.
        self._walks = min(walked_max, WALK_CHANGES_MAX), WALK_LANES_MAX
        self._is_whole = walked_max >= WALK_CHANGES_MAX  # No other work takes part of the step.
        self.known: dict[tuple[str, str], _Lane] = {}

    def noted(self, change: TaskChange) -> TaskChange:
        """Count a change of a task in its lane; return it with what the lane has marked."""
        task = change.after or change.before
        assert task is not None
        key = lane_of(task)
        if not key:
            return change
        found = Lane(tenant=task.tenant, id=lane_id(task.command.lower(), lane_name(key)), key=key)
        return self._of(found).noted(change)

    def woken(self, lane: Lane) -> None:
        """Look at a lane whose instant has come."""
        self._of(lane).is_strict = True

    def told(self, lane: Lane) -> None:
        """Let nobody of a lane go for a time, or let it follow another rule of its own."""
        self._of(lane).told(lane)

    def walked(self, flow: Flow) -> Iterator[Change]:
        """Let the next lanes of a queue follow its rule; then the walk goes on, or it ends.

        A walk for which other queues' walks leave nothing stays due.
        """
        (changes_left, lanes_left), after = self._walks, flow.walked
        if not changes_left or not lanes_left:
            return
        lanes = self._view.lanes(flow.tenant, flow.id, after=flow.walked)
        for lane in islice(lanes, lanes_left):
            if (lane.tenant, lane.id) in self.known:
                break  # This decision changes it: the next step sees how.
            changes = self._of(lane).followed(changes_left)
            yield from changes
            changes_left, lanes_left = changes_left - len(changes), lanes_left - 1
            self._walks = changes_left, lanes_left
            if not changes_left:
                break
            after = lane.name
        else:
            if next(lanes, None) is None:
                through = flow.walked_through(now_ms=self._view.now_ms)
                yield ItemChange(before=flow, after=through)
                return
        is_full = not lanes_left or (not changes_left and self._is_whole)
        due_ms = self._view.now_ms + (WALK_PAUSE_MS if is_full else 0)
        yield ItemChange(before=flow, after=replace(flow, walked=after, expires_ms=due_ms))

    def _of(self, lane: Lane) -> _Lane:
        name = lane.tenant, lane.id
        known = self.known.get(name)
        if known is None:
            known = self.known[name] = _Lane(self._view, lane)
        return known


class _Lane:
    """One lane while a decision is made."""

    def __init__(self, view: View, lane: Lane) -> None:
        self._view = view
        found = view.item(ItemKind.LANE, lane.tenant, lane.id)
        assert found is None or isinstance(found, Lane)
        self._found = found
        self._now = found or lane
        if self._now.held_until_ms <= view.now_ms:
            self._now = replace(self._now, held_until_ms=0)
        flow = view.flow(lane.tenant, lane.queue)
        self._of_queue = flow.per_key if flow is not None else None
        self._rule = self._rule_for(self._now.own)
        self.is_strict = False  # Those that are ready beyond the rule are held again.
        self._moved: set[str] = set()  # Tasks that the view has in another state than this.
        self._stayed: dict[str, Task] = {}  # Held before and after, and changed otherwise.
        self._arrived: dict[str, Task] = {}  # Became ready, and must be given a place.
        self._returned: dict[str, Task] = {}  # Became ready, and kept theirs.
        self._front: set[str] = set()  # Those of them that go before all others of their priority.
        self._first: dict[int, int] = {}  # By priority, the place in the order of the first.
        self._free_ms = 0  # When the next held task has its tokens; 0 if it waits for other things.

    def noted(self, change: TaskChange) -> TaskChange:
        """Count a change; return it with what the rule marks in the task."""
        before, after = change.before, change.after
        if before is not None:
            self._left(before)
            if before.state is State.READY and after is not None and after.state is State.LEASED:
                self._spend(before)
        if after is not None:
            after = self._marked(before, after)
            self._came(before, after)
        return change if after is change.after else replace(change, after=after)

    def _rule_for(self, own: OwnRule | None) -> PerKey | None:
        rule = self._of_queue
        return rule if rule is None or own is None else own.over(rule)

    def told(self, lane: Lane) -> None:
        """Let nobody go until then, or longer if that was asked before; follow its own rule."""
        self.is_strict = self.is_strict or lane.own != self._now.own
        until_ms = max(self._now.held_until_ms, lane.held_until_ms)
        until_ms = until_ms if until_ms > self._view.now_ms else 0
        self._now = replace(self._now, held_until_ms=until_ms, own=lane.own)
        self._rule = self._rule_for(lane.own)

    def arranged(self, last: dict[str, Task]) -> list[Change]:
        """Return the changes of tasks that the decision itself does not change.

        Args:
            last: Gets those that it changes and that end otherwise, by id, as they are then: tasks
                that it makes ready and that must wait, and waiting ones that it notes and that go.
        """
        rule, now = self._rule, self._now
        moves = self._arrived or self._returned or now.held or self.is_strict or now.rests
        if rule is None or not moves:
            return []
        self._take_back(rule)
        arrived = deque(sorted(self._arrived.values(), key=self._rank))
        changes = list(self._let_go(arrived, self._room(rule, besides=len(arrived)), last))
        if self._is_beyond(rule):
            places = self._places(rule)
            changes += self._stay(list(islice(self._ready(), places, places + HELD_BACK_MAX)))
        for weak in self._weak(rule) if arrived else ():
            if not arrived or self._free(arrived[0]) > self._view.now_ms:
                break
            if weak.priority < arrived[0].priority:
                arrived.popleft()
                changes.append(self._changed(weak, self._held_again(weak)))
        # The last first: whoever goes to the front goes before those that are there already.
        for task in reversed(arrived):
            last[task.id] = self._held(task)
            self._changed(task, last[task.id])
        return changes

    def _take_back(self, rule: PerKey) -> None:
        """Let those give up their places that came back to more of them than the rule allows."""
        beyond = max(0, self._now.taken - len(self._arrived) - rule.max_running)
        if rule.rate is not None or self._now.rests:
            beyond = len(self._returned)  # Another claim has its price, or has to wait.
        for task in sorted(self._returned.values(), key=self._rank)[::-1][:beyond]:
            self._arrived[task.id] = task
            self._front.add(task.id)

    def _let_go(self, arrived: deque[Task], room: int, last: dict[str, Task]) -> Iterator[Change]:
        """Yield the changes of held tasks that go; take those that go from the arrived ones."""
        heads = self._heads()
        head = next(heads, None)
        while room > 0 and (arrived or head is not None):
            new = arrived[0] if arrived else None
            if head is not None and (new is None or self._rank(head) < self._rank(new)):
                if self._lacks_tokens(head):
                    break
                change = self._changed(head, self._admitted(head))
                if head.id in self._stayed:
                    assert change.after is not None
                    last[head.id] = change.after
                else:
                    yield change
                head = next(heads, None)
            elif new is None or self._lacks_tokens(new):
                break
            else:
                arrived.popleft()
            room -= 1

    def followed(self, most: int) -> list[Change]:
        """Return at most so many changes that the rule demands of a lane that was there before."""
        rule = self._rule
        room = most if rule is None else self._room(rule)
        if rule is None or room > 0:
            heads = list(islice(self._heads(), min(room, most)))
            if heads and self._lacks_tokens(heads[0]):
                return []
            return [self._changed(task, self._admitted(task)) for task in heads]
        stay = self._places(rule)
        ready = list(islice(self._ready(), stay + most))
        if stay and ready and self._lacks_tokens(ready[0]):
            stay = 0
        return self._stay(ready[stay : stay + most])

    def _stay(self, ready: list[Task]) -> list[Change]:
        """Hold tasks that are ready, each before all others of its priority; the first last."""
        return [self._changed(task, self._held_again(task)) for task in reversed(ready)]

    def row(self) -> Iterator[ItemChange]:
        """Yield the change of the lane's row, if it changes."""
        now, end_ms = self._now, self._free_ms
        if self._rule is None:
            now = replace(now, held_until_ms=0)
        elif self._is_beyond(self._rule):
            # At once, if more were ready than one step holds.
            end_ms = self._view.now_ms
        elif now.rests:
            end_ms = now.held_until_ms
        if now.is_idle and not now.rests:
            spent_ms = -(-now.spent_us // 1000)
            end_ms = spent_ms if spent_ms > self._view.now_ms else 0
            now = replace(now, spent_us=now.spent_us if end_ms else 0)
        ends = now.is_idle and not end_ms and now.own is None
        after = None if ends else replace(now, expires_ms=end_ms)
        if after != self._found:
            yield ItemChange(before=self._found, after=after)

    def _room(self, rule: PerKey, *, besides: int = 0) -> int:
        """Return how many more may become ready; `besides` that many who are counted already."""
        now = self._now
        return min(self._places(rule) - (now.ready - besides), len(self._arrived) + now.held)

    def _places(self, rule: PerKey) -> int:
        """Return how many tasks may be ready."""
        now = self._now
        if is_stopped(now, rule) or now.rests:
            return 0
        return max(0, min(unclaimed_max(now, rule), rule.max_running - now.running - now.kept))

    def _is_beyond(self, rule: PerKey) -> bool:
        """Return whether more are ready than may be, and are to be held again."""
        return (self.is_strict or self._now.rests) and self._now.ready > self._places(rule)

    def _free(self, task: Task) -> int:
        """Return from when on the key has the tokens for a task, milliseconds; 0 without a rate."""
        rate = self._rule.rate if self._rule is not None else None
        return rate.free_ms(self._now.spent_us, cost_of(task)) if rate is not None else 0

    def _lacks_tokens(self, task: Task) -> bool:
        """Return whether the next task of the key has to wait for tokens, and note until when."""
        free_ms = self._free(task)
        if free_ms <= self._view.now_ms:
            return False
        self._free_ms = free_ms
        return True

    def _spend(self, task: Task) -> None:
        rate = self._rule.rate if self._rule is not None else None
        if rate is not None:
            spent_us = rate.spent_us(self._now.spent_us, cost_of(task), now_ms=self._view.now_ms)
            self._now = replace(self._now, spent_us=spent_us)

    def _marked(self, before: Task | None, after: Task) -> Task:
        """Return the task with what it does to its key in its new state."""
        more, rule = after.more, self._rule
        assert more is not None
        was = before.state if before is not None else None
        if after.state is State.DELAYED and was is State.LEASED:
            keeps = rule is not None and rule.on_retry is OnRetry.HOLD
            if after.parked_at:
                keeps = more.durable is not None and more.durable.keeps_key
            more = replace(more, keeps_place=keeps)
        elif after.state is State.DEAD and was is not State.DEAD:
            stops = rule is not None and rule.when_dead is WhenDead.STOP
            # An import brings those that stopped their key there.
            stops = stops and not self._now.stopped_by and (was is not None or more.stops_key)
            more = replace(more, stops_key=stops)
        return after if more == after.more else replace(after, more=more)

    def _left(self, before: Task) -> None:
        self._moved.add(before.id)
        self._stayed.pop(before.id, None)
        self._arrived.pop(before.id, None)
        self._returned.pop(before.id, None)
        self._count(before, -1)
        if self._now.stopped_by == before.id:
            self._now = replace(self._now, stopped_by="")

    def _came(self, before: Task | None, after: Task) -> None:
        self._moved.add(after.id)
        self._count(after, 1)
        if _stops(after):
            self._now = replace(self._now, stopped_by=after.id)
        if before is not None and _counted_as(before) == _counted_as(after) == "held":
            self._stayed[after.id] = after
        if after.state is not State.READY:
            return
        was = before.state if before is not None else None
        if before is not None and takes_place(before) and self._keeps(before, after):
            self._returned[after.id] = after
        else:
            self._arrived[after.id] = after
            if was is State.DEAD or (before is not None and before.parked_at):
                self._front.add(after.id)

    def _keeps(self, before: Task, after: Task) -> bool:
        """Return whether a task that is given back keeps its place of the key."""
        undelivered = after.attempts < before.attempts
        # What others say of a task whose turn it is, such as a tag or a dependent, is no retry.
        place = State.READY, after.priority, after.seq
        is_noted = (before.state, before.priority, before.seq) == place
        kept = undelivered or is_noted or bool(before.parked_at)
        return kept or self._rule is None or self._rule.on_retry is OnRetry.HOLD

    def _rank(self, task: Task) -> tuple[int, bool, int]:
        return -task.priority, task.id not in self._front, task.seq

    def _heads(self) -> Iterator[Task]:
        """Yield the held tasks of the lane in order, except those that the decision has changed."""
        return self._tasks(self._view.held(self._now)) if self._now.held else iter(())

    def _ready(self) -> Iterator[Task]:
        """Yield the ready tasks of the lane, those to be claimed first at the front."""
        return self._tasks(self._view.ready_of(self._now)) if self._now.ready else iter(())

    def _tasks(self, ids: Iterator[str]) -> Iterator[Task]:
        for task_id in ids:
            if task_id in self._stayed:
                yield self._stayed[task_id]
            elif task_id not in self._moved:
                task = self._view.task(task_id)
                assert task is not None
                yield task

    def _weak(self, rule: PerKey) -> list[Task]:
        """Return the ready tasks whose place another one may take."""
        if rule.order is Order.FIFO or is_stopped(self._now, rule) or self._now.rests:
            return []
        stays = rule.on_retry is OnRetry.HOLD
        ready = [*islice(self._ready(), unclaimed_max(self._now, rule))]
        return [task for task in reversed(ready) if not (stays and task.attempts)]

    def _admitted(self, task: Task) -> Task:
        return admitted(task, seq=self._view.next_seq(), now_ms=self._view.now_ms)

    def _held(self, task: Task) -> Task:
        seq = task.seq
        if task.id in self._front:
            first = self._first.get(task.priority) or self._first_held(task.priority)
            seq = self._first[task.priority] = max(1, min(seq, first - 1)) if first else seq
        return held(task, seq=seq, now_ms=self._view.now_ms)

    def _held_again(self, task: Task) -> Task:
        """Hold a task whose turn it was: it goes before all others of its priority."""
        self._front.add(task.id)
        return self._held(task)

    def _first_held(self, priority: int) -> int:
        first = next(self._view.held(self._now, priority=priority), None)
        task = self._view.task(first) if first is not None else None
        return task.seq if task is not None and task.priority == priority else 0

    def _changed(self, before: Task, after: Task) -> TaskChange:
        self._moved.add(after.id)
        self._count(before, -1)
        self._count(after, 1)
        return TaskChange(before=before, after=after)

    def _count(self, task: Task, number: int) -> None:
        field = _counted_as(task)
        if field:
            self._now = replace(self._now, **{field: getattr(self._now, field) + number})


def _instead(change: Change, last: Mapping[str, Task]) -> Change:
    """Return a change with its task as it ends, if it is one of those."""
    if not isinstance(change, TaskChange) or change.after is None:
        return change
    after = last.get(change.after.id)
    return change if after is None else replace(change, after=after)


def _counted_as(task: Task) -> str:
    """Return the number of a lane that counts a task with a key, or ""."""
    if task.state is State.DELAYED:
        return "kept" if takes_place(task) else ""
    if task.waits_for_others:
        return ""
    return _COUNTED.get(task.state, "")


def _stops(task: Task) -> bool:
    return task.state is State.DEAD and task.more is not None and task.more.stops_key
