"""Groups against a model that only watches tasks: who was asked for, who was made, who ended."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from codeq_cluster.core.changes import ItemChange, TaskChange
from codeq_cluster.core.decide import decide
from codeq_cluster.core.groups import (
    CANCELLED_MAX,
    DAY_MS,
    AddMembers,
    CancelGroup,
    CreateGroup,
    Group,
    Member,
    OnFailure,
    SealGroup,
    ThenIf,
    group_shard,
)
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import (
    Abandon,
    Advance,
    Cancel,
    Claim,
    Finish,
    Operation,
    Requeue,
    Submit,
)
from codeq_cluster.core.outcomes import Claimed, Outcome, Rejected
from codeq_cluster.core.relays import Relay, RelaysTaken, TakeRelays, relayed
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.tally import Tally
from codeq_cluster.core.task import COMPLETED, FAILED, GroupCounts, State, Task
from tests.fakes.dict_view import DictView

from .checks import check_arrows, check_changes

SHARDS = 3
TENANT = "acme"
NAMES = ("a", "b.c", "a.b")
KEYS = ("", "", "", "k1", "k2", "k3", "k4")
REPORT = Create(command="report", payload='"then"')
RULES = LifetimeRules(shards=SHARDS, retention_ms=DAY_MS // 2, dlq_retention_ms=DAY_MS // 2)
STEPS_MAX = 1000

_Asked = CreateGroup | AddMembers | SealGroup | CancelGroup

# The number of tasks, each with a key or without one.
members = st.lists(st.sampled_from(KEYS), max_size=4).filter(
    lambda keys: max(Counter(filter(None, keys)).values(), default=0) <= 1
)


@dataclass
class Life:
    """What the model knows of a group."""

    then_if: ThenIf
    on_failure: OnFailure
    labels: list[str] = field(default_factory=list)
    sealed: bool = False
    cancelled: bool = False
    overdue: bool = False


class Groups(RuleBasedStateMachine):
    """Three shards whose relays arrive late, and more than once."""

    def __init__(self) -> None:
        super().__init__()
        self.views = [DictView(now_ms=1_000_000) for _ in range(SHARDS)]
        self.numbers = count()
        self.lives: dict[tuple[str, int], Life] = {}
        self.beginning = Life(ThenIf.ENDED, OnFailure.CONTINUE)
        self.made: set[str] = set()
        self.ended: dict[str, str] = {}  # By label: how it ended first.
        self.reports: dict[tuple[str, int], GroupCounts] = {}
        self.last: tuple[int, _Asked, int] | None = None

    # -- what producers do -----------------------------------------------------------------------

    @rule(
        name=st.sampled_from(NAMES),
        keys=members,
        then_if=st.sampled_from(ThenIf),
        on_failure=st.sampled_from(OnFailure),
        seal=st.booleans(),
        has_then=st.sampled_from([True, True, False]),
    )
    def create(
        self,
        *,
        name: str,
        keys: list[str],
        then_if: ThenIf,
        on_failure: OnFailure,
        seal: bool,
        has_then: bool,
    ) -> None:
        """Begin a group; one of another request is refused."""
        tasks = self._tasks(keys)
        operation = CreateGroup(
            tenant=TENANT,
            id=name,
            digest=f"{next(self.numbers):032x}",
            then=REPORT if has_then else None,
            then_if=then_if,
            on_failure=on_failure,
            tasks=tasks,
            seal=seal,
        )
        labels = [task.payload for task in tasks]
        self.beginning = Life(then_if, on_failure, labels, sealed=seal)
        stood = self._group(name) is not None
        outcome = self._ask(self._home(name), operation)

        assert isinstance(outcome, Rejected) == stood

    @rule(name=st.sampled_from(NAMES), keys=members, seal=st.booleans())
    def add(self, name: str, keys: list[str], seal: bool) -> None:
        """Add to a group, unless it is sealed."""
        tasks = self._tasks(keys)
        operation = AddMembers(
            tenant=TENANT, id=name, name=f"r{next(self.numbers)}", tasks=tasks, seal=seal
        )
        life = self._life(name)
        is_refused = life is None or life.sealed
        if life is not None and not is_refused:
            life.labels += [task.payload for task in tasks]
            life.sealed = seal
        outcome = self._ask(self._home(name), operation)

        assert isinstance(outcome, Rejected) == is_refused

    @rule(name=st.sampled_from(NAMES))
    def seal(self, name: str) -> None:
        """Seal a group."""
        life = self._life(name)
        if life is not None:
            life.sealed = True
        self._ask(self._home(name), SealGroup(tenant=TENANT, id=name))

    @rule(name=st.sampled_from(NAMES))
    def cancel(self, name: str) -> None:
        """Cancel a group."""
        life, group = self._life(name), self._group(name)
        if life is not None and group is not None and not group.ended_ms:
            life.sealed = life.cancelled = True
        self._ask(self._home(name), CancelGroup(tenant=TENANT, id=name))

    @precondition(lambda self: self.last is not None)
    @rule()
    def repeat(self) -> None:
        """Repeat the last request of a producer; it changes nothing."""
        assert self.last is not None
        shard, operation, generation = self.last
        group = self._group(operation.id)
        if group is not None and group.generation == generation:
            decision = decide(self.views[shard], operation, RULES)

            assert () == decision.changes

    # -- what workers and operators do -----------------------------------------------------------

    @rule(shard=st.integers(0, SHARDS - 1), many=st.integers(1, 3))
    def claim(self, shard: int, many: int) -> None:
        """Claim tasks of any kind."""
        claim = Claim(
            request=f"c{next(self.numbers)}",
            tenant=TENANT,
            worker="ann",
            commands=(),
            count=many,
            lease_ms=60_000,
        )
        assert isinstance(self._ask(shard, claim), Claimed)

    @rule(
        index=st.integers(0, 20),
        done=st.booleans(),
        keys=members,
        joins=st.booleans(),
    )
    def submit(self, index: int, done: bool, keys: list[str], joins: bool) -> None:
        """End a task; its follow-ups may join its own group, even if that is sealed."""
        found = self._pick(index, lambda task: task.state is State.LEASED)
        if found is None:
            return
        shard, task = found
        submit = Submit(
            request=f"s{next(self.numbers)}",
            id=task.id,
            tenant=TENANT,
            worker="ann",
            status=COMPLETED if done else FAILED,
            body="1" if done else "",
        )
        if not keys:
            self._ask(shard, submit)
            return
        tasks = self._tasks(keys)
        member = task.more.member if task.more else None
        finish = Finish(
            submit=submit,
            next=tasks,
            digest="d",
            shards=SHARDS,
            groups=tuple(member.group for _ in tasks) if member and joins else (),
        )
        # A member that was revived adds no more, because its end is counted.
        is_refused = bool(finish.groups) and task.endings > 0
        life = self.lives.get((member.group, member.generation)) if member else None
        if finish.groups and life is not None and not is_refused:
            life.labels += [each.payload for each in tasks]
        outcome = self._ask(shard, finish)

        assert isinstance(outcome, Rejected) == is_refused

    @rule(index=st.integers(0, 20))
    def give_up(self, index: int) -> None:
        """Let a task die: each has one attempt."""
        found = self._pick(index, lambda task: task.state is State.LEASED)
        if found is not None:
            shard, task = found
            request = f"a{next(self.numbers)}"
            abandon = Abandon(request=request, id=task.id, tenant=TENANT, worker="ann")
            self._ask(shard, abandon)

    @rule(index=st.integers(0, 20))
    def revive(self, index: int) -> None:
        """Requeue a dead letter; it is not counted again."""
        found = self._pick(index, lambda task: task.state is State.DEAD)
        if found is not None:
            shard, task = found
            request = f"q{next(self.numbers)}"
            self._ask(shard, Requeue(request=request, tenant=TENANT, ids=(task.id,), by="op"))

    @rule(index=st.integers(0, 20))
    def cancel_one(self, index: int) -> None:
        """Cancel a task, perhaps a member."""
        found = self._pick(index, lambda task: not task.state.terminal)
        if found is not None:
            shard, task = found
            self._ask(shard, Cancel(request=f"x{next(self.numbers)}", id=task.id, tenant=TENANT))

    # -- what time and the network do ------------------------------------------------------------

    @rule(
        shard=st.integers(0, SHARDS - 1),
        passed_ms=st.sampled_from([0, 1, 60_000, DAY_MS // 4, DAY_MS]),
        most=st.integers(1, 9),
    )
    def advance(self, shard: int, passed_ms: int, most: int) -> None:
        """Let time pass, and act on some of what is due."""
        for view in self.views:
            view.now_ms += passed_ms
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
        """Let everything arrive and every task end; then each group has ended, as its rows say."""
        for _ in range(STEPS_MAX):
            moved = [
                self._deliver(origin, to, 64, is_heard=True)
                for origin in range(SHARDS)
                for to in range(SHARDS)
            ]
            moved += [self._walk(shard) for shard in range(SHARDS)]
            if not any(moved):
                break
        else:
            raise AssertionError("the shards come to no rest")
        for (name, generation), life in self.lives.items():
            group = self._group(name)
            if group is None or group.generation != generation:
                continue
            made = [label for label in life.labels if label in self.made]
            all_ended = all(label in self.ended for label in made)
            ended = Counter(self.ended[label] for label in made if label in self.ended)
            assert group.completed == ended[COMPLETED]
            assert group.failed == ended[FAILED]
            assert group.dead == ended["DEAD"]
            # A member that a cancelled group gets never begins, and counts as cancelled.
            never = len(life.labels) - len(made)
            assert 0 <= group.cancelled - ended["CANCELLED"] <= (never if life.cancelled else 0)
            assert group.live == len(made) - sum(ended.values())
            assert bool(group.ended_ms) == (life.overdue or (life.sealed and all_ended))
            if life.cancelled:
                assert all_ended

    # -- what always holds -----------------------------------------------------------------------

    @invariant()
    def counts_are_those_of_the_rows(self) -> None:
        """Check each group against a recount of its members, and the tally."""
        open_groups: Counter[int] = Counter()
        for shard, view in enumerate(self.views):
            rows: dict[str, Counter[str]] = {}
            for item in view.items.values():
                if isinstance(item, Member):
                    rows.setdefault(item.group, Counter())[item.status] += 1
            for item in view.items.values():
                if not isinstance(item, Group):
                    continue
                assert shard == self._home(item.id)
                assert "" == item.fault
                if not (item.ended_ms and item.expires_ms <= view.now_ms):
                    found = rows.get(item.id, Counter())
                    assert found.total() == item.rows
                    assert found[""] == item.live
                    counts = item.completed, item.failed, item.cancelled, item.dead
                    assert counts == tuple(
                        found[each] for each in (COMPLETED, FAILED, "CANCELLED", "DEAD")
                    )
                open_groups[shard] += not item.ended_ms
            tally = view.items.get((ItemKind.TALLY, TENANT, "groups"))
            count_ = tally.count if isinstance(tally, Tally) else 0
            assert count_ == open_groups[shard]

    # -- inside ----------------------------------------------------------------------------------

    def _home(self, name: str) -> int:
        return group_shard(TENANT, name, SHARDS)

    def _group(self, name: str) -> Group | None:
        found = self.views[self._home(name)].items.get((ItemKind.GROUP, TENANT, name))
        return found if isinstance(found, Group) else None

    def _life(self, name: str) -> Life | None:
        group = self._group(name)
        return None if group is None else self.lives[name, group.generation]

    def _tasks(self, keys: list[str]) -> tuple[Create, ...]:
        return tuple(
            Create(
                command="render",
                payload=f'"{next(self.numbers)}"',
                idempotency_key=key,
                fingerprint="f" if key else "",
                max_attempts=1,
                delay_ms=1000 * (position % 2),
            )
            for position, key in enumerate(keys)
        )

    def _pick(self, index: int, fits: object) -> tuple[int, Task] | None:
        assert callable(fits)
        found = [
            (shard, task)
            for shard, view in enumerate(self.views)
            for _, task in sorted(view.tasks.items())
            if fits(task)
        ]
        return found[index % len(found)] if found else None

    def _ask(self, shard: int, operation: Operation) -> Outcome:
        view = self.views[shard]
        decision = decide(view, operation, RULES)
        check_changes(decision)
        check_arrows(operation, decision)
        payloads = {task_id: view.payload(task_id) for task_id in view.tasks}
        view.advance(decision.changes)
        for change in decision.changes:
            if isinstance(change, ItemChange):
                self._watch_group(change)
            else:
                self._watch_task(change, payloads)
        for change in decision.changes:
            if isinstance(change, TaskChange) and change.before is None:
                self._watch_report(change.after)
        if isinstance(operation, _Asked):
            group = self._group(operation.id)
            self.last = shard, operation, group.generation if group is not None else 0
        return decision.outcome

    def _watch_group(self, change: ItemChange) -> None:
        after = change.after
        if not isinstance(after, Group):
            return
        if change.before is None:
            self.lives[after.id, after.generation] = self.beginning
        life = self.lives[after.id, after.generation]
        if after.reason and not life.overdue:
            assert not life.sealed
            life.sealed = life.overdue = True
        if after.cancelled_ms and not life.cancelled:
            assert life.on_failure is OnFailure.CANCEL
            life.sealed = life.cancelled = True

    def _watch_task(self, change: TaskChange, payloads: dict[str, str]) -> None:
        task = change.after
        if task is None or task.command == REPORT.command:
            return
        label = change.payload if change.before is None else payloads[task.id]
        assert label is not None
        if change.before is None:
            self.made.add(label)
        if change.result is not None and task.endings == 1:
            assert label not in self.ended
            how = {State.DEAD: "DEAD", State.DONE: COMPLETED}.get(task.state, FAILED)
            self.ended[label] = "CANCELLED" if task.error == "CANCELLED" else how

    def _watch_report(self, task: Task | None) -> None:
        """Check a completion task: the first of its group, after the last end, and true."""
        counts = task.more.completes if task is not None and task.more is not None else None
        if counts is None or task is None:
            return
        group = self._group(counts.id)
        assert group is not None
        assert group.then_id == task.id
        name = group.id, group.generation
        assert name not in self.reports
        self.reports[name] = counts
        life = self.lives[name]
        assert life.sealed
        assert not life.overdue
        made = [label for label in life.labels if label in self.made]
        ended = Counter(self.ended[label] for label in made)  # Each has ended, or this fails.
        assert counts.total >= len(made)
        assert (counts.completed, counts.failed, counts.dead) == (
            ended[COMPLETED],
            ended[FAILED],
            ended["DEAD"],
        )
        assert counts.cancelled >= ended["CANCELLED"]
        if life.then_if is ThenIf.SUCCEEDED:
            assert counts.completed == counts.total

    def _advance(self, shard: int, most: int) -> bool:
        outcome = self._ask(shard, Advance(count=most))
        return bool(getattr(outcome, "count", 0))

    def _walk(self, shard: int) -> bool:
        view = self.views[shard]
        return bool(view.lapsed(1)) and self._advance(shard, 2 * CANCELLED_MAX)

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


def test_groups_agree_with_a_model_that_watches_tasks() -> None:
    """One completion task a group, after its last member's end, with true counts."""
    run_state_machine_as_test(
        Groups, settings=settings(max_examples=60, stateful_step_count=50, deadline=None)
    )
