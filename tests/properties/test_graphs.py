"""Graphs against a model that only watches tasks: who waits for whom, and how these have ended."""

from __future__ import annotations

from collections import defaultdict
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from codeq_cluster.core.changes import ItemChange, TaskChange
from codeq_cluster.core.decide import decide
from codeq_cluster.core.dependencies import (
    ASK_AGAIN_MS_MAX,
    DEPENDENCY_FAILED,
    DEPENDENCY_UNKNOWN,
    CreateDependent,
    CreateGraph,
    Dependencies,
    Edge,
    Ended,
    Input,
    Need,
    Node,
    OnDead,
    Otherwise,
    Resolve,
    RunIf,
    Terms,
    Verdict,
    Walk,
    Watch,
    edge_id,
    input_id,
    told,
)
from codeq_cluster.core.grace import AskCancel
from codeq_cluster.core.lane import FlowRule, Lane, PerKey, SetFlow
from codeq_cluster.core.lanes import count as count_in_lane
from codeq_cluster.core.new_task import Create, CreateKeyed
from codeq_cluster.core.operations import (
    Abandon,
    Advance,
    Cancel,
    Claim,
    Delete,
    Operation,
    Requeue,
    Submit,
    UndoRequeue,
)
from codeq_cluster.core.outcomes import Claimed, Created, GraphStands, Outcome, Rejected
from codeq_cluster.core.relays import Relay, RelaysTaken, TakeRelays, relayed
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.sharding import shard_of, shard_of_lane, with_shard
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import COMPLETED, FAILED, State, Task, cancelling_of
from tests.fakes.dict_view import DictView

from .checks import check_arrows, check_changes

SHARDS = 3
TENANT = "acme"
DAY_MS = 86_400_000
RULES = LifetimeRules(shards=SHARDS, retention_ms=DAY_MS, dlq_retention_ms=DAY_MS)
ONE_AT_ONCE = FlowRule(TENANT, "render", 1, PerKey(), 0)
STEPS_MAX = 2000

terms = st.just(Terms()) | st.builds(
    Terms,
    run_if=st.sampled_from(RunIf),
    otherwise=st.sampled_from(Otherwise),
    on_dead=st.sampled_from(OnDead),
)
parents = st.lists(st.tuples(st.integers(0, 30), terms), max_size=3)
# Of a new task: may it start now, has it a time to live, the number of its key or 0.
rarely = st.sampled_from([False, False, False, True])
kinds = st.tuples(rarely, rarely, st.sampled_from([0, 0, 0, 0, 0, 1, 3, 7]))
Kind = tuple[bool, bool, int]


class Graphs(RuleBasedStateMachine):
    """Three shards whose relays arrive late, and more than once."""

    def __init__(self) -> None:
        super().__init__()
        self.views = [DictView(now_ms=1_000_000, seq=shard) for shard in range(SHARDS)]
        self.numbers = count()
        self.needs: dict[str, tuple[Need, ...]] = {}  # By dependent.
        self.seen: defaultdict[str, set[str]] = defaultdict(set)  # By task: how it has ended.
        self.bodies: defaultdict[str, set[str]] = defaultdict(set)  # By task, of its results.
        self.deleted: set[str] = set()
        # Those that waited for a task when it was cancelled with its dependents.
        self.doomed: set[str] = set()
        # The questions after a deleted parent that arrived while others were still to be told.
        self.in_time: set[tuple[str, str]] = set()
        for shard in range(SHARDS):
            self._ask(shard, SetFlow(ONE_AT_ONCE))

    # -- what producers do -----------------------------------------------------------------------

    @rule(shard=st.integers(0, SHARDS - 1), of=parents, kind=kinds)
    def create(self, shard: int, of: list[tuple[int, Terms]], kind: Kind) -> None:
        """Create a task that waits for some that are there, on any shard."""
        create, tasks = self._create(shard, kind), self._tasks()
        shard = shard_of(create.id, SHARDS)
        asked = {
            tasks[index % len(tasks)][1].id: each for index, each in of if tasks
        }  # Each parent once.
        if not asked:
            self._ask(shard, CreateKeyed(create) if create.key else create)
            return
        needs = tuple(
            Need(parent=parent, name=parent, terms=each, ended=self._known(shard, parent))
            for parent, each in asked.items()
        )
        self.needs[create.id] = needs
        outcome = self._ask(shard, CreateDependent(Node(create, needs)))

        assert isinstance(outcome, Created)
        assert isinstance(self._ask(shard, CreateDependent(Node(create, needs))), Created)

    @rule(
        shard=st.integers(0, SHARDS - 1),
        nodes=st.lists(
            st.tuples(kinds, st.lists(st.tuples(st.integers(0, 3), terms), max_size=2)),
            min_size=1,
            max_size=4,
        ),
        key=st.booleans(),
        backwards=st.booleans(),
    )
    def create_graph(
        self,
        shard: int,
        nodes: list[tuple[Kind, list[tuple[int, Terms]]]],
        *,
        key: bool,
        backwards: bool,
    ) -> None:
        """Create a graph, whose tasks wait for those before them, or behind them."""
        creates = [self._create(shard, kind) for kind, _ in nodes]
        found: list[Node] = []
        for position, (_, of) in enumerate(nodes):
            asked = {index % position: each for index, each in of if position}
            needs = tuple(
                Need(parent=creates[index].id, name=f"n{index}", terms=each)
                for index, each in asked.items()
            )
            if needs:
                self.needs[creates[position].id] = needs
            found.append(Node(creates[position], needs))
        if backwards:
            found.reverse()
        name = f"{next(self.numbers):032x}" if key else ""
        if not key and all(create.key for create in creates):
            shard = shard_of(creates[0].id, SHARDS)
        operation = CreateGraph(tenant=TENANT, shard=shard, nodes=tuple(found), key=name, digest="")
        outcome = self._ask(shard, operation)

        assert isinstance(outcome, GraphStands)
        assert outcome.made
        again = decide(self.views[shard], operation, RULES)
        assert () == again.changes
        assert isinstance(again.outcome, GraphStands)
        assert again.outcome.tasks == outcome.tasks
        assert [node.create.id for node in found] == [task.id for task in outcome.tasks]

    # -- what workers and operators do -----------------------------------------------------------

    @rule(many=st.integers(1, 9), done=st.sampled_from([True, True, False, None]))
    def work(self, many: int, done: bool | None) -> None:
        """Claim tasks of any kind on every shard; each of them may run. End them, or keep them."""
        for shard in range(SHARDS):
            self._claim(shard, many)
        while done is not None and self._pick(0, lambda task: task.state is State.LEASED):
            self.submit(0, done)

    def _claim(self, shard: int, many: int) -> None:
        claim = Claim(
            request=f"c{next(self.numbers)}",
            tenant=TENANT,
            worker="ann",
            commands=(),
            count=many,
            lease_ms=DAY_MS // 8,
        )
        outcome = self._ask(shard, claim)

        assert isinstance(outcome, Claimed)
        for task in outcome.tasks:
            assert task.id not in self.doomed
            for place, need in enumerate(self.needs.get(task.id, ())):
                assert self._may_be_met(need)
                found = self.views[shard].items[ItemKind.INPUT, TENANT, input_id(task.id, place)]
                assert isinstance(found, Input)
                assert found.name == need.name
                if found.ended.status == COMPLETED:
                    assert found.ended.body in self.bodies[need.parent]

    @rule(index=st.integers(0, 30), done=st.booleans())
    def submit(self, index: int, done: bool) -> None:
        """End a task with a result."""
        found = self._pick(index, lambda task: task.state is State.LEASED)
        if found is not None:
            shard, task = found
            number = next(self.numbers)
            submit = Submit(
                request=f"s{number}",
                id=task.id,
                tenant=TENANT,
                worker="ann",
                status=COMPLETED if done else FAILED,
                body=f"{number}" if done else "",
            )
            self._ask(shard, submit)

    @rule(index=st.integers(0, 30), is_told=st.booleans())
    def give_up(self, index: int, is_told: bool) -> None:
        """Let a task die, since each has one attempt, and perhaps let everybody hear of it."""
        found = self._pick(index, lambda task: task.state is State.LEASED)
        if found is not None:
            shard, task = found
            request = f"a{next(self.numbers)}"
            self._ask(shard, Abandon(request=request, id=task.id, tenant=TENANT, worker="ann"))
        if is_told:
            self._rest()

    @rule(index=st.integers(0, 30), undone=st.booleans(), is_told=st.booleans())
    def revive(self, index: int, undone: bool, is_told: bool) -> None:
        """Requeue a dead letter, and perhaps take it back, or let everybody hear of it."""
        found = self._pick(index, lambda task: task.state is State.DEAD)
        if found is None:
            return
        shard, task = found
        request, ids = f"q{next(self.numbers)}", (task.id,)
        self._ask(shard, Requeue(request=request, tenant=TENANT, ids=ids, by="op"))
        if undone:
            undo = UndoRequeue(
                request=f"u{request}", tenant=TENANT, ids=ids, by="op", requeue=request
            )
            self._ask(shard, undo)
        if is_told:
            self._rest()

    @rule(index=st.integers(0, 30))
    def cancel(self, index: int) -> None:
        """Cancel a task."""
        found = self._pick(index, lambda task: not task.state.terminal)
        if found is not None:
            shard, task = found
            self._ask(shard, Cancel(request=f"x{next(self.numbers)}", id=task.id, tenant=TENANT))

    @rule(
        index=st.integers(0, 30),
        grace_ms=st.sampled_from([0, 0, 60_000]),
        dependents=st.sampled_from([True, True, False]),
    )
    def ask_cancel(self, index: int, grace_ms: int, dependents: bool) -> None:
        """Cancel a task, perhaps with all that wait for it; its worker may have time to end it."""
        found = self._pick(index, lambda task: not task.state.terminal)
        if found is not None:
            shard, task = found
            ask = AskCancel(
                request=f"x{next(self.numbers)}",
                id=task.id,
                tenant=TENANT,
                grace_ms=grace_ms,
                dependents=dependents,
            )
            self._ask(shard, ask)

    @rule(index=st.integers(0, 30), is_asked=st.booleans())
    def delete(self, index: int, is_asked: bool) -> None:
        """Delete a task that has ended; questions may arrive at once."""
        found = self._pick(index, lambda task: task.state.terminal)
        if found is not None:
            shard, task = found
            request = f"d{next(self.numbers)}"
            self._ask(shard, Delete(request=request, tenant=TENANT, ids=(task.id,), by="op"))
            for origin in range(SHARDS) if is_asked else ():
                self._deliver(origin, shard, 64, is_heard=True)

    # -- what time and the network do ------------------------------------------------------------

    @rule(
        shard=st.integers(0, SHARDS - 1),
        passed_ms=st.sampled_from([0, 1, 60_000, 120_000, DAY_MS // 4, DAY_MS]),
        most=st.integers(1, 9),
    )
    def advance(self, shard: int, passed_ms: int, most: int) -> None:
        """Let time pass, and act on some of what is due."""
        self._pass_ms(passed_ms)
        self._advance(shard, most)

    @rule(
        origin=st.integers(0, SHARDS - 1),
        to=st.integers(0, SHARDS - 1),
        most=st.integers(1, 4),
        is_heard=st.sampled_from([True, True, False]),
    )
    def deliver(self, origin: int, to: int, most: int, is_heard: bool) -> None:
        """Send relays; an answer that is not heard lets them be sent again."""
        self._deliver(origin, to, most, is_heard=is_heard)

    def teardown(self) -> None:
        """End with everything told."""
        self._rest()

    def _rest(self) -> None:
        """Let everything arrive; then whoever waits has a parent that has not ended for good."""
        self._settle()
        for _, task in self._tasks():
            assert task.state.terminal or task.id not in self.doomed
            if not task.waits_for_others:
                continue
            waits = [each for each in self._row(task).of if each.verdict is Verdict.WAITS]
            assert waits
            for each in waits:
                parent = self._task(each.parent)
                assert parent is not None
                assert not parent.state.terminal or parent.state is State.DEAD
                assert each.status == ("DEAD" if parent.state is State.DEAD else "")

    # -- what always holds -----------------------------------------------------------------------

    @invariant()
    def whoever_waits_will_be_told(self) -> None:
        """Each waiting task has one cause; an edge leads to it from each parent, or one will."""
        sent = [
            item.effect
            for view in self.views
            for item in view.items.values()
            if isinstance(item, Relay)
        ]
        for shard, task in self._tasks():
            row = self.views[shard].items.get((ItemKind.DEPENDENCIES, TENANT, task.id))
            assert isinstance(row, Dependencies) == (task.id in self.needs)
            if not task.waits_for_others:
                assert not (task.more is not None and task.more.waits)
                continue
            assert isinstance(row, Dependencies)
            for each in row.of:
                if each.verdict is not Verdict.WAITS:
                    continue
                view = self.views[shard_of(each.parent, SHARDS)]
                edge = view.items.get((ItemKind.EDGE, TENANT, edge_id(each.parent, task.id)))
                is_due = any(
                    isinstance(effect, Watch | Resolve)
                    and (effect.parent, effect.dependent) == (each.parent, task.id)
                    for effect in sent
                )
                assert isinstance(edge, Edge) or is_due or row.expires_ms

    @invariant()
    def nobody_waits_for_others_in_a_lane(self) -> None:
        """Check each key's row against a recount."""
        for view in self.views:
            lanes: dict[tuple[str, str], Lane] = {}
            for task in view.tasks.values():
                count_in_lane(lanes, task)
            found = {
                (item.tenant, item.id): item
                for item in view.items.values()
                if isinstance(item, Lane)
            }
            assert found == lanes

    @invariant()
    def rows_go_with_their_tasks(self) -> None:
        """No row is left of a task that is gone, but for the walk that takes its edges along."""
        for view in self.views:
            for item in view.items.values():
                if isinstance(item, Dependencies | Input):
                    assert item.id.partition(".")[0] in view.tasks
                elif isinstance(item, Edge) and item.parent not in view.tasks:
                    walk = view.items[ItemKind.WALK, TENANT, item.parent]
                    assert isinstance(walk, Walk)
                    assert walk.gone

    # -- inside ----------------------------------------------------------------------------------

    def _create(self, shard: int, kind: Kind) -> Create:
        waits, mortal, number = kind
        key = f"k{number}" if number else ""
        if key:
            shard = shard_of_lane(TENANT, "render", key, SHARDS)
        return Create(
            id=with_shard(f"t{next(self.numbers)}-0000", shards=SHARDS, wanted=shard),
            tenant=TENANT,
            command="render",
            payload="1",
            max_attempts=1,
            delay_ms=120_000 if waits else 0,
            ttl_ms=DAY_MS // 8 if mortal else 0,
            key=key,
        )

    def _known(self, shard: int, parent: str) -> Ended | None:
        """Return what the shard of a parent answers before the create."""
        home = shard_of(parent, SHARDS)
        task = self.views[home].task(parent)
        if home == shard or task is None or not task.state.terminal:
            return None
        result = self.views[home].result(parent)
        assert result is not None
        return told(status=_status(task), body=result.body, error=result.error)

    def _may_be_met(self, need: Need) -> bool:
        how = {RunIf.SUCCEEDED: {COMPLETED}, RunIf.FAILED: {FAILED, "CANCELLED", "DEAD"}}
        wanted = how.get(need.terms.run_if, {COMPLETED, FAILED, "CANCELLED", "DEAD"})
        return bool(wanted & self.seen[need.parent])

    def _may_be_impossible(self, need: Need) -> bool:
        seen = self.seen[need.parent]
        if need.terms.run_if is RunIf.FAILED:
            return COMPLETED in seen
        if need.terms.run_if is RunIf.ENDED:
            return False
        dead = "DEAD" in seen and (need.terms.on_dead is OnDead.FAIL or need.parent in self.deleted)
        return dead or bool(seen & {FAILED, "CANCELLED"})

    def _tasks(self) -> list[tuple[int, Task]]:
        return [
            (shard, task)
            for shard, view in enumerate(self.views)
            for _, task in sorted(view.tasks.items())
        ]

    def _task(self, task_id: str) -> Task | None:
        return self.views[shard_of(task_id, SHARDS)].task(task_id)

    def _row(self, task: Task) -> Dependencies:
        row = self.views[shard_of(task.id, SHARDS)].items[ItemKind.DEPENDENCIES, TENANT, task.id]
        assert isinstance(row, Dependencies)
        return row

    def _pick(self, index: int, fits: object) -> tuple[int, Task] | None:
        """Return one of the tasks that fit; every other index prefers those that are waited for."""
        assert callable(fits)
        tasks = self._tasks()
        found = [each for each in tasks if fits(each[1])]
        if index % 2:
            waiting = [task.id for _, task in tasks if task.waits_for_others]
            awaited = {need.parent for name in waiting for need in self.needs[name]}
            found = [each for each in found if each[1].id in awaited] or found
        return found[index // 2 % len(found)] if found else None

    def _ask(self, shard: int, operation: Operation) -> Outcome:
        view = self.views[shard]
        decision = decide(view, operation, RULES)
        assert not isinstance(decision.outcome, Rejected)
        check_changes(decision)
        check_arrows(operation, decision)
        view.advance(decision.changes)
        for change in decision.changes:
            if isinstance(change, ItemChange):
                continue
            self._note(change)
        return decision.outcome

    def _note(self, change: TaskChange) -> None:
        task = change.after
        if task is None:
            assert change.before is not None
            self.deleted.add(change.before.id)
        elif change.result is not None:
            if not self.seen[task.id] and _takes(task):
                self.doomed |= self._waiting_for(task.id)
            self.seen[task.id].add(_status(task))
            self.bodies[task.id].add(change.result.body)
            needs = {need.name: need for need in self.needs.get(task.id, ())}
            why, _, name = task.error.partition(": ")
            if why == DEPENDENCY_FAILED:
                assert self._may_be_impossible(needs[name])
                dead = needs[name].terms.otherwise is Otherwise.DEAD_LETTER
                assert (task.state is State.DEAD) == dead
            elif why == DEPENDENCY_UNKNOWN:
                parent = needs[name].parent
                grace_ms = self._row(task).grace_ms
                assert parent in self.deleted or 0 < grace_ms <= task.updated_ms
                assert (parent, task.id) not in self.in_time

    def _waiting_for(self, parent: str) -> set[str]:
        """Return who waits for a task, as they know it."""
        return {
            task.id
            for _, task in self._tasks()
            if task.waits_for_others
            for each in self._row(task).of
            if each.parent == parent and each.verdict is Verdict.WAITS
        }

    def _pass_ms(self, passed_ms: int) -> None:
        for view in self.views:
            view.now_ms += passed_ms

    def _settle(self) -> None:
        """Let everything arrive, and whoever asks again ask once more."""
        for last in (False, True):
            for _ in range(STEPS_MAX):
                moved = [
                    self._deliver(origin, to, 64, is_heard=True)
                    for origin in range(SHARDS)
                    for to in range(SHARDS)
                ]
                moved += [
                    bool(view.lapsed(1)) and self._advance(shard, 100)
                    for shard, view in enumerate(self.views)
                ]
                if not any(moved):
                    break
            else:
                raise AssertionError("the shards come to no rest")
            if not last:
                self._pass_ms(ASK_AGAIN_MS_MAX)

    def _advance(self, shard: int, most: int) -> bool:
        outcome = self._ask(shard, Advance(count=most))
        return bool(getattr(outcome, "count", 0))

    def _deliver(self, origin: int, to: int, most: int, *, is_heard: bool) -> bool:
        waiting = sorted(
            (
                item
                for item in self.views[origin].items.values()
                if isinstance(item, Relay) and item.to == to and not item.taken_ms
            ),
            key=lambda item: item.number,
        )[:most]
        if not waiting:
            return False
        for item in waiting:
            assert item.effect.home(SHARDS) == to
            assert shard_of(item.task_id, SHARDS) == origin
            effect, items = item.effect, self.views[to].items
            is_late = isinstance(effect, Watch) and effect.parent in self.deleted
            if is_late and (ItemKind.WALK, TENANT, effect.parent) in items:
                self.in_time.add((effect.parent, effect.dependent))
        link = self.views[origin].items.get((ItemKind.RELAY_LINK, "", f"to.{to}"))
        take = TakeRelays(
            origin=origin,
            after=getattr(link, "number", 0),
            relays=tuple(map(relayed, waiting)),
        )
        self._ask(to, take)
        if is_heard:
            names = tuple((each.tenant, each.id, each.number) for each in waiting)
            self._ask(origin, RelaysTaken(to=to, number=waiting[-1].number, relays=names))
        return True


def _takes(task: Task) -> bool:
    asked = cancelling_of(task)
    return asked is not None and asked.dependents and _status(task) == "CANCELLED"


def _status(task: Task) -> str:
    if task.state is State.FAILED:
        return "CANCELLED" if task.error == "CANCELLED" else FAILED
    return COMPLETED if task.state is State.DONE else "DEAD"


def test_graphs_agree_with_a_model_that_watches_tasks() -> None:
    """No task runs before its condition, none ends without a reason, and none waits for ever."""
    run_state_machine_as_test(
        Graphs, settings=settings(max_examples=100, stateful_step_count=50, deadline=None)
    )
