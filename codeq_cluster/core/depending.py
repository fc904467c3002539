"""Depending: tasks that wait for others, on their way through one decision.

A decision may touch a dependent, or a parent, many times: the edges of a graph, the results of a
batch. `Dependents` gathers them, so that each row is written once, and a dependent goes when the
last of its dependencies is met.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from codeq_cluster.core.cancelling import cancel_with, taken_along
from codeq_cluster.core.changes import Change, ItemChange, TaskChange
from codeq_cluster.core.courses import status_of
from codeq_cluster.core.dependencies import (
    ASK_AGAIN_MS,
    ASK_AGAIN_MS_MAX,
    CANCELLED,
    DEAD,
    DELETED,
    DEPENDENCY_FAILED,
    DEPENDENCY_UNKNOWN,
    INPUTS_BYTES_MAX,
    UNKNOWN,
    Dependencies,
    Dependency,
    Edge,
    Ended,
    Input,
    Need,
    Node,
    Otherwise,
    Resolve,
    Terms,
    Verdict,
    Walk,
    Watch,
    asking,
    edge_id,
    input_id,
    told,
    waiting_for,
)
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.sending import EDGE_PLACE, Cause, sent
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import More, Result, State, Task, cancelling_of
from codeq_cluster.core.transitions import dead, released, unmet, waiting
from codeq_cluster.core.view import View


class Dependents:
    """The dependents and parents that a decision changes.

    Args:
        changes: What the decision changes so far, each task at most once.
        told_bytes_max: What those who ask are told at once of parents that have ended; walks tell
            the others. None for no bound.
    """

    def __init__(
        self,
        view: View,
        rules: LifetimeRules,
        changes: Iterable[Change] = (),
        *,
        told_bytes_max: int | None = None,
    ) -> None:
        self._view = view
        self._told_bytes_left = told_bytes_max
        self._rules = rules
        self._tasks: dict[str, TaskChange] = {}
        self._others: list[Change] = []
        self._rows: dict[str, tuple[Dependencies | None, Dependencies]] = {}
        self._edges: dict[str, ItemChange] = {}
        self._begun_walks: dict[str, ItemChange] = {}
        self._inputs: list[ItemChange] = []
        self._causes: list[Cause] = []
        self._taken: dict[str, str] = {}
        self._new: set[str] = set()
        for change in changes:
            if isinstance(change, TaskChange):
                task = change.after or change.before
                assert task is not None
                self._tasks[task.id] = change
                if change.before is None:
                    self._new.add(task.id)
            else:
                self._others.append(change)

    def changes(self) -> Iterator[Change]:
        """Yield everything that the decision changes, those included that it began with."""
        for task_id in list(self._rows):
            self._settle(task_id)
        yield from self._tasks.values()
        yield from self._others
        for before, after in self._rows.values():
            if before != after:
                yield ItemChange(before=before, after=after)
        yield from self._edges.values()
        yield from self._begun_walks.values()
        yield from self._inputs
        yield from sent(self._view, self._causes)

    def task(self, task_id: str) -> Task | None:
        """Return a task as it is so far, or None."""
        change = self._tasks.get(task_id)
        return self._view.task(task_id) if change is None else change.after

    def begin(self, task_id: str, needs: Iterable[Need], *, grace_ms: int = 0) -> None:
        """Let a new task of this decision wait for others, which may come until `grace_ms`."""
        view, task = self._view, self.task(task_id)
        assert task is not None
        row = waiting_for(task, needs, grace_ms=grace_ms)
        self._rows[task.id] = None, row
        seq = task.seq or view.next_seq()
        more = replace(task.more or More(), depends=True)
        self._put(waiting(replace(task, more=more), seq=seq, now_ms=view.now_ms))
        for need in needs:
            self._ask(row, need.parent, need.terms)
            ended = need.ended
            # A dead letter that holds the task may be revived before the question arrives: only
            # the answer to that is followed by what comes later.
            if ended is not None and need.terms.verdict(ended.status) is not Verdict.WAITS:
                self._resolve(task.id, need.parent, ended)
        self._asked_again(task.id)

    def ask_for(self, node: Node, *, shard: int, cause: str) -> None:
        """Ask for the parents of a task that is on its way to another shard.

        It asks again itself, but then one that is on its way as well may not have arrived.

        Args:
            shard: This one.
            cause: An id of this shard, for the relays' names.
        """
        tenant, task_id = node.create.tenant, node.create.id
        for need in node.needs:
            if shard_of(need.parent, self._rules.shards) == shard:
                self._watch(tenant, need.parent, task_id, need.terms)
            else:
                self._send(cause, _watch_of(tenant, task_id, need.parent, need.terms))

    def ask_again(self, row: Dependencies) -> int:
        """Ask for every parent whose end a task still waits for; return how many they are."""
        task = self.task(row.id)
        before, now = self._rows.get(row.id, (row, row))  # A walk may have told it of some.
        now = asking(now, now_ms=self._view.now_ms)
        self._rows[row.id] = before, now
        if task is None or not task.waits_for_others:
            return 0
        waits = [each for each in now.of if each.verdict is Verdict.WAITS]
        for each in waits:
            self._ask(row, each.parent, each.terms)
        self._asked_again(row.id)
        return len(waits)

    def relayed(self, effect: Watch | Resolve) -> None:
        """Do what a shard asks for or tells: of a parent here, or of a dependent here."""
        if isinstance(effect, Watch):
            self._watch(effect.tenant, effect.parent, effect.dependent, effect.terms)
            return
        task = self.task(effect.dependent)
        if task is not None and task.tenant == effect.tenant:
            self._resolve(effect.dependent, effect.parent, effect.ended)

    def walk_on(self, walk: Walk, most: int, bytes_max: int) -> tuple[int, int]:
        """Tell the next dependents of a parent; the walk ends behind the last of them.

        Args:
            walk: It goes on where it has stopped.
            most: How many dependents it may look at.
            bytes_max: It ends after the one whose input passes this.

        Returns:
            How many it has looked at, and how much they were told.
        """
        walked, size, looked_at = walk.walked, 0, 0
        edges = self._view.beside(ItemKind.EDGE, walk.tenant, walk.id, after=walk.walked)
        for edge in edges:
            assert isinstance(edge, Edge)
            if looked_at == most or size >= bytes_max:
                break
            looked_at += 1
            walked = edge.dependent
            if not edge.done:
                self._tell(edge.tenant, edge.parent, edge.dependent, walk.ended)
                size += walk.ended.size
            done = edge.terms.verdict(walk.ended.status) is not Verdict.WAITS
            after = None if walk.gone else replace(edge, done=edge.done or done)
            if after != edge:
                self._edges[edge.id] = ItemChange(before=edge, after=after)
        else:
            self._others.append(ItemChange(before=walk, after=None))
            return looked_at, size
        after_walk = replace(walk, walked=walked, expires_ms=self._view.now_ms)
        self._others.append(ItemChange(before=walk, after=after_walk))
        return looked_at, size

    def _is_here(self, task_id: str, other: str) -> bool:
        shards = self._rules.shards
        return shard_of(task_id, shards) == shard_of(other, shards)

    def _ask(self, row: Dependencies, parent: str, terms: Terms) -> None:
        """Ask for a parent, on this shard at once."""
        if self._is_here(parent, row.id):
            self._watch(row.tenant, parent, row.id, terms)
        else:
            self._send(row.id, _watch_of(row.tenant, row.id, parent, terms))

    def _watch(self, tenant: str, parent: str, dependent: str, terms: Terms) -> None:
        task = self.task(parent)
        if task is None or task.tenant != tenant:
            self._tell(tenant, parent, dependent, self._of_absent(tenant, parent))
            return
        ended = self._ended(task) if task.state.terminal else Ended()
        if ended.status and not self._has_room(ended):
            self._walk_to(task, ended)
            ended = Ended()
        done = terms.verdict(ended.status) is not Verdict.WAITS
        edge = Edge(tenant=tenant, id=edge_id(parent, dependent), terms=terms, done=done)
        known = self._edges.get(edge.id)
        if known:
            found = known.before
        elif parent in self._new and dependent in self._new:
            found = None  # Two tasks of this decision have no edge yet.
        else:
            found = self._view.item(ItemKind.EDGE, tenant, edge.id)
        if found != edge or known:
            self._edges[edge.id] = ItemChange(before=found, after=edge)
        if found is None and not known:
            more = task.more or More()
            self._put(replace(task, more=replace(more, dependents=more.dependents + 1)))
        if ended.status:
            self._tell(tenant, parent, dependent, ended)

    def _has_room(self, ended: Ended) -> bool:
        """Return whether one more is told of an end at once.

        Always of an end that takes dependents along: to a walk, a new one is as those of before.
        """
        if self._told_bytes_left is None or ended.takes:
            return True
        has_room = self._told_bytes_left > 0
        self._told_bytes_left -= ended.size
        return has_room

    def _walk_to(self, parent: Task, ended: Ended) -> None:
        """Let a walk tell of an end, from the first dependent on; it passes those that know."""
        found = self._view.item(ItemKind.WALK, parent.tenant, parent.id)
        now_ms = self._view.now_ms
        walk = Walk(tenant=parent.tenant, id=parent.id, ended=ended, expires_ms=now_ms)
        self._begun_walks[parent.id] = ItemChange(before=found, after=walk)

    def _of_absent(self, tenant: str, parent: str) -> Ended:
        """Return what is to be said of a parent that is not here: its end may still be told."""
        task = self._view.task(parent)
        if task is not None and task.tenant == tenant:
            return _last_of(self._view, task)  # This decision deletes it.
        walk = self._view.item(ItemKind.WALK, tenant, parent)
        return walk.ended if isinstance(walk, Walk) else Ended(status=UNKNOWN)

    def _ended(self, task: Task) -> Ended:
        change = self._tasks.get(task.id)
        result = change.result if change is not None else None
        return ended_of(task, result or self._view.result(task.id))

    def _tell(self, tenant: str, parent: str, dependent: str, ended: Ended) -> None:
        if self._is_here(parent, dependent):
            task = self.task(dependent)
            if task is not None and task.tenant == tenant:
                self._resolve(dependent, parent, ended)
        else:
            resolve = Resolve(tenant=tenant, parent=parent, dependent=dependent, ended=ended)
            self._send(parent, resolve)

    def _send(self, cause: str, effect: Watch | Resolve) -> None:
        name = f"{cause}.{self._view.next_seq()}.{EDGE_PLACE}"
        self._causes.append(Cause(name, cause, effect.home(self._rules.shards), effect))

    def _resolve(self, task_id: str, parent: str, ended: Ended) -> None:
        """Note what a dependent is told of a parent, unless that is decided already."""
        task = self.task(task_id)
        row = self._row(task)
        if task is None or row is None or not task.waits_for_others:
            return
        if ended.status == UNKNOWN and self._view.now_ms < row.grace_ms:
            return
        for place, each in enumerate(row.of):
            if each.parent != parent or each.verdict is not Verdict.WAITS:
                continue
            # A dependent of this decision was made after the end, and knows of it.
            if ended.takes and self._rows[task_id][0] is not None:
                self._taken[task_id] = parent
                return
            now = replace(each, status=ended.status)
            of = (*row.of[:place], now, *row.of[place + 1 :])
            self._rows[task_id] = self._rows[task_id][0], replace(row, of=of)
            if now.verdict is Verdict.MET:
                self._hand(task, place, now, ended)

    def _row(self, task: Task | None) -> Dependencies | None:
        if task is None:
            return None
        if task.id not in self._rows:
            found = self._view.item(ItemKind.DEPENDENCIES, task.tenant, task.id)
            if not isinstance(found, Dependencies):
                return None
            self._rows[task.id] = found, found
        return self._rows[task.id][1]

    def _hand(self, task: Task, place: int, of: Dependency, ended: Ended) -> None:
        """Keep the result of a parent for the dependent's worker."""
        more = task.more or More()
        size = len(ended.body.encode()) + len(ended.error.encode())
        if more.input_bytes + size > INPUTS_BYTES_MAX:
            ended, size = Ended(status=ended.status, left_out=True), 0
        item = Input(
            tenant=task.tenant,
            id=input_id(task.id, place),
            name=of.name,
            parent=of.parent,
            ended=ended,
        )
        self._inputs.append(ItemChange(before=None, after=item))
        self._put(replace(task, more=replace(more, input_bytes=more.input_bytes + size)))

    def _asked_again(self, task_id: str) -> None:
        """Let a task ask again while a parent that is elsewhere, or on its way, has not ended."""
        before, row = self._rows[task_id]
        may_come = self._view.now_ms < row.grace_ms
        if any(
            each.verdict is Verdict.WAITS and (may_come or not self._is_here(each.parent, row.id))
            for each in row.of
        ):
            wait_ms = min(ASK_AGAIN_MS << min(row.asked, 16), ASK_AGAIN_MS_MAX)
            due_ms = self._view.now_ms + wait_ms
            self._rows[task_id] = before, replace(row, asked=row.asked + 1, expires_ms=due_ms)

    def _settle(self, task_id: str) -> None:
        """Let a dependent go whose dependencies are met; end one that can never go."""
        before, row = self._rows[task_id]
        task = self.task(task_id)
        if task is None or not task.waits_for_others:
            return
        view, now_ms = self._view, self._view.now_ms
        if task_id in self._taken:
            self._rows[task_id] = before, replace(row, expires_ms=0)
            change = cancel_with(view, task, self._rules, taken_along(self._taken[task_id], now_ms))
            assert change.after is not None
            self._put(change.after, result=change.result)
            return
        lost = next((each for each in row.of if each.verdict is Verdict.IMPOSSIBLE), None)
        if lost is not None and before is None:
            # It is not there yet; it ends in the next entry, like any other.
            self._rows[task_id] = before, replace(row, expires_ms=now_ms)
        elif lost is not None:
            self._rows[task_id] = before, replace(row, expires_ms=0)
            self._end(task, lost)
        elif row.all_met:
            self._rows[task_id] = before, replace(row, expires_ms=0)
            start_ms = row.start_ms
            seq = view.next_seq() if start_ms <= now_ms else 0
            self._put(released(task, start_ms=start_ms, seq=seq, now_ms=now_ms))

    def _end(self, task: Task, lost: Dependency) -> None:
        view, rules = self._view, self._rules
        policy = view.policy(task.tenant, task.command.lower())
        error = DEPENDENCY_UNKNOWN if lost.status == UNKNOWN else DEPENDENCY_FAILED
        error = f"{error}: {lost.name}"
        if lost.terms.otherwise is Otherwise.DEAD_LETTER:
            change = dead(task, rules, policy, error=error, now_ms=view.now_ms)
        else:
            change = unmet(task, rules, policy, error=error, now_ms=view.now_ms)
        assert change.after is not None
        self._put(change.after, result=change.result)

    def _put(self, after: Task, *, result: Result | None = None) -> None:
        change = self._tasks.get(after.id)
        if change is None:
            change = TaskChange(before=self._view.task(after.id), after=after)
        self._tasks[after.id] = replace(change, after=after, result=result or change.result)


def _watch_of(tenant: str, dependent: str, parent: str, terms: Terms) -> Watch:
    return Watch(tenant=tenant, parent=parent, dependent=dependent, terms=terms)


def settled(view: View, changes: Iterable[Change]) -> tuple[Change, ...]:
    """Return a decision's changes with what they cause along edges.

    An end, a revival or a deletion of a parent leaves a walk. A deleted dependent takes its rows
    along, and a revived one goes through its dependencies again.
    """
    found: list[Change] = []
    for change in changes:
        if isinstance(change, TaskChange):
            task = change.after or change.before
            more = task.more if task is not None else None
            if more is not None and more.dependents:
                found += _walk_of(view, change)
            if more is not None and more.depends:
                change, rows = _of_dependent(view, change)  # noqa: PLW2901
                found += rows
        found.append(change)
    return tuple(found)


def inputs(view: View, row: Dependencies) -> Iterator[Input]:
    """Yield what a task's dependencies have handed to it."""
    for place, each in enumerate(row.of):
        if each.verdict is Verdict.MET:
            found = view.item(ItemKind.INPUT, row.tenant, input_id(row.id, place))
            if isinstance(found, Input):
                yield found


def _walk_of(view: View, change: TaskChange) -> Iterator[ItemChange]:
    """Yield the walk that tells the dependents of a parent of its change, if they must know."""
    before, after = change.before, change.after
    task = after or before
    assert task is not None
    found = view.item(ItemKind.WALK, task.tenant, task.id)
    now_ms, walk = view.now_ms, None
    if after is None:
        ended = _last_of(view, task)
        walk = Walk(tenant=task.tenant, id=task.id, ended=ended, gone=True, expires_ms=now_ms)
    elif change.result is not None:
        ended = ended_of(after, change.result)
        walk = Walk(tenant=task.tenant, id=task.id, ended=ended, expires_ms=now_ms)
    elif before is not None and before.state is State.DEAD and not after.state.terminal:
        walk = Walk(tenant=task.tenant, id=task.id, ended=Ended(), expires_ms=now_ms)
    if walk is not None:
        yield ItemChange(before=found, after=walk)


def _last_of(view: View, task: Task) -> Ended:
    """Return what the dependents of a task are told that is deleted."""
    ended = ended_of(task, view.result(task.id))
    return replace(ended, status=DELETED) if ended.status == DEAD else ended


def _of_dependent(view: View, change: TaskChange) -> tuple[TaskChange, list[ItemChange]]:
    """Return the change of a dependent as it is to be, and those of its rows."""
    before, after = change.before, change.after
    if before is None or (after is not None and before.state is not State.DEAD):
        return change, []
    row = view.item(ItemKind.DEPENDENCIES, before.tenant, before.id)
    if not isinstance(row, Dependencies):
        return change, []
    if after is None:
        rows: list[Input | Dependencies] = [*inputs(view, row), row]
        return change, [ItemChange(before=each, after=None) for each in rows]
    # What is met stays met; after the others it asks again.
    of = tuple(each if each.verdict is Verdict.MET else replace(each, status="") for each in row.of)
    if after.state is not State.READY or all(each.verdict is Verdict.MET for each in of):
        return change, []
    asks = replace(row, of=of, start_ms=0, asked=0, expires_ms=view.now_ms)
    held = waiting(after, seq=after.seq, now_ms=view.now_ms)
    return replace(change, after=held), [ItemChange(before=row, after=asks)]


def ended_of(task: Task, result: Result | None) -> Ended:
    """Return how a task has ended, as its dependents are told."""
    status = status_of(task)
    if result is None:
        return Ended(status=status)
    ended = told(status=status, body=result.body, error=result.error)
    asked = cancelling_of(task)
    if asked is not None and asked.dependents and status == CANCELLED and not result.worker:
        return replace(ended, takes=True)
    return ended
