"""Bulk jobs, against a model: what each task is to be after its turn, and whose turn it was."""

from __future__ import annotations

from functools import partial
from itertools import count, takewhile
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from codeq_cluster.broker.engine.answers import count_selected
from codeq_cluster.broker.questions import END, CountSelected
from codeq_cluster.broker.scanning import next_keys, walk
from codeq_cluster.codec.mutations import mutations
from codeq_cluster.core.bulk import (
    CHANGED_MAX,
    LIVE_JOBS,
    LIVE_MAX,
    LOOKED_MAX,
    STEP_MS,
    ActionKind,
    BulkAction,
    BulkJob,
    StartBulk,
    StopBulk,
)
from codeq_cluster.core.changes import Decision, ItemChange, TaskChange
from codeq_cluster.core.decide import decide
from codeq_cluster.core.faults import task_fault
from codeq_cluster.core.groups import CreateGroup
from codeq_cluster.core.holds import Nack
from codeq_cluster.core.items import Audit
from codeq_cluster.core.lane import FlowRule, PerKey, SetFlow
from codeq_cluster.core.new_task import Create, CreateKeyed, CreateTagged, CreateUnique
from codeq_cluster.core.operations import Advance, Claim, Delete, Operation, PutTopic, Submit
from codeq_cluster.core.outcomes import BulkStands, Rejected, Rejection
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.selecting import Selection, TaskFilter, tags_of
from codeq_cluster.core.tags import ChangeTags
from codeq_cluster.core.task import State, Task
from codeq_cluster.core.unique import On, UniqueTerms
from tests.fakes.dict_view import DictView
from tests.fakes.memory_store import MemoryState

from .checks import check_arrows, check_changes
from .rows import counters_in, recomputed

RULES = LifetimeRules(retention_ms=100_000, dlq_retention_ms=100_000)
WAITING = (State.READY, State.DELAYED, State.HELD)
ACTIONS = (
    BulkAction(kind=ActionKind.CANCEL),
    BulkAction(kind=ActionKind.CANCEL, reason="no more"),
    BulkAction(kind=ActionKind.REQUEUE),
    BulkAction(kind=ActionKind.DELETE),
    BulkAction(kind=ActionKind.PRIORITY, priority=7),
    BulkAction(kind=ActionKind.RUN_NOW),
    BulkAction(kind=ActionKind.TAG, put=(("seen", "yes"),), remove=("env",)),
    BulkAction(kind=ActionKind.TAG, put=(("user", "b"),)),
)
SELECTIONS = (
    Selection(queue="render"),
    Selection(queue="tiers"),
    Selection(tags=(("user", "a"),)),
    Selection(tags=(("user", "a"), ("env", "x"))),
    Selection(states=(State.READY, State.DELAYED, State.HELD)),
    Selection(states=(State.FAILED, State.DEAD)),
    Selection(only=TaskFilter(group="g")),
    Selection(tags=(("user", "a"),), only=TaskFilter(created_from_ms=1_003_000)),
    Selection(queue="render", only=TaskFilter(created_before_ms=1_005_000)),
)


class World:
    """Tasks of two tenants that live while jobs of one of them go over them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.view = DictView(now_ms=1_000_000)
        self.store = MemoryState()
        self.numbers = count()
        self.judged: dict[str, list[str]] = {}
        # By job: the tasks that it must judge, whatever becomes of them, but for their deletion.
        self.meant: dict[str, set[str]] = {}
        self.ask(SetFlow(FlowRule("acme", "render", 1, PerKey(max_running=1), 0)))
        self.ask(
            PutTopic(request="p", tenant="acme", by="ops", name="tiers", priority_tiers=(0, 5))
        )
        member = Create(command="render", payload="1")
        self.ask(CreateGroup(tenant="acme", id="g", digest="", tasks=(member,) * 9, seal=True))

    def live(self, steps: int) -> None:
        """Do random things; each step of a job is as the model says."""
        for _ in range(self.random.choice([10, 60, 300])):
            self.create()
        for _ in range(steps):
            match self.random.randrange(12):
                case 0 | 1:
                    self.create()
                case 2 | 3:
                    self.work()
                case 4:
                    self.retag()
                case 5:
                    self.start()
                case 6 if self.random.random() < 0.2:
                    self.stop()
                case _:
                    self.view.now_ms += self.random.choice([1, STEP_MS, STEP_MS, 1000])
                    self.ask(Advance(count=256))
        for _ in range(60):
            self.view.now_ms += STEP_MS
            self.ask(Advance(count=256))

    def create(self) -> None:
        """Make a task: plain, with tags, with a key, or with a unique key."""
        random = self.random
        create = Create(
            id=self.name("t"),
            tenant=random.choice(["acme", "acme", ""]),
            command=random.choice(["Render", "tiers", "mail"]),
            payload="1",
            max_attempts=random.choice([1, 2]),
            delay_ms=random.choice([0, 0, 1000, 60_000]),
            ttl_ms=random.choice([0, 0, 0, 5000]),
        )
        tags = (("env", random.choice("xy")), ("user", random.choice("ab")))
        create = replace(create, tags=tags[random.randrange(3) :])
        operation: Operation = create
        chosen = random.random()
        if chosen < 0.2:
            operation = CreateKeyed(replace(create, key=random.choice("kl")))
        elif chosen < 0.3:
            operation = CreateUnique(replace(create, unique=UniqueTerms(key="u", on=On.RETURN)))
        elif create.tags:
            operation = CreateTagged(create)
        self.ask(operation)

    def work(self) -> None:
        """Claim some, and end, return or keep them."""
        claim = Claim(
            request=self.name("c"),
            tenant=self.random.choice(["acme", ""]),
            worker="ann",
            commands=(),
            count=5,
            lease_ms=1000,
        )
        for task in getattr(self.ask(claim), "tasks", ()):
            held: dict[str, Any] = {
                "request": self.name("r"),
                "id": task.id,
                "tenant": task.tenant,
                "worker": "ann",
            }
            done = Submit(**held, status="COMPLETED", body="1")
            way = self.random.choice((done, Nack(**held, delay_ms=500), None))
            if way is not None:
                self.ask(way)
            elif self.random.random() < 0.2:
                self.ask(Delete(request="d", tenant=task.tenant, ids=(task.id,), by="ops"))

    def retag(self) -> None:
        """Change the first tag of a task."""
        task = self.random.choice([*self.view.tasks.values()])
        put = (("user", self.random.choice("ab")),)
        self.ask(ChangeTags(id=task.id, tenant=task.tenant, put=put))

    def start(self) -> None:
        """Begin a job, twice; one too many is refused."""
        job = StartBulk(
            request=self.name("b"),
            tenant="acme",
            id=self.name("job"),
            by="ops",
            select=self.random.choice(SELECTIONS),
            action=self.random.choice(ACTIONS),
            leads=self.random.random() < 0.5,
        )
        live = [each for each in self.jobs() if not each.ended_ms]
        found = self.ask(job)
        if len(live) >= LIVE_MAX:
            assert Rejected(Rejection.TOO_MANY, LIVE_JOBS) == found
            return
        assert isinstance(found, BulkStands)
        assert found.made
        assert BulkStands(found.job) == self.ask(replace(job, request="other"))
        other = replace(job, action=BulkAction(kind=ActionKind.PRIORITY, priority=1))
        assert Rejected(Rejection.IDEMPOTENCY_CONFLICT) == self.ask(other)
        self.judged[job.id] = []
        self.meant[job.id] = {
            task.id for task in self.view.tasks.values() if is_walked(job.select, task)
        }
        self.counts_are_right(job.select, job.action)

    def stop(self) -> None:
        """Stop a job: it judges nothing more."""
        live = [each.id for each in self.jobs() if not each.ended_ms]
        if live:
            job_id = self.random.choice(live)
            operation = StopBulk(request=self.name("s"), tenant="acme", id=job_id, by="ops")
            found = self.ask(operation)
            assert isinstance(found, BulkStands)
            assert ("ops", self.view.now_ms) == (found.job.stopped_by, found.job.ended_ms)
            assert found == self.ask(operation)
            del self.meant[job_id]

    def counts_are_right(self, select: Selection, action: BulkAction) -> None:
        """Count as a dry run does, by the rows of the store."""
        selected = dead = errors = 0
        after = b""
        while after != END:
            asked = CountSelected(tenant="acme", select=select, action=action, after=after)
            found = count_selected(self.store, asked, unreadable)
            selected += found.selected
            dead += found.by_state.get(State.DEAD, 0)
            errors += sum(found.by_error.values())
            after = found.edge
        chosen = [task for task in self.view.tasks.values() if is_meant(select, task)]
        assert len(chosen) == selected
        assert len([task for task in chosen if task.state is State.DEAD]) == dead
        assert sum(task.error == "" for task in chosen) + errors == len(chosen)
        tags, only = select.tags, select.only
        by_rows = walk(partial(next_keys, self.store), "acme", tags, only=only, after=b"")
        by_model = self.view.walk("acme", tags, only=only, after=b"")
        assert [task_id for _, task_id in by_model] == [each for _, each in by_rows if each]

    def jobs(self) -> list[BulkJob]:
        """Return all jobs."""
        return list(self.view.bulk_jobs("acme"))

    def name(self, of: str) -> str:
        """Return a new name."""
        return f"{of}{next(self.numbers)}"

    def ask(self, operation: Operation) -> object:
        """Decide, check what a job has done in it, and write what that says, as a leader does."""
        view, store = self.view, self.store
        decision = decide(view, operation, RULES)
        check_changes(decision)
        check_arrows(operation, decision)
        rows = dict(store.scan(b"", b"\xff", 10**6))
        written = mutations(decision.changes, counters_in(rows))
        store.commit(written, index=store.applied_index + 1, digest=bytes(16), net=True)
        before = dict(view.tasks)
        walks = [
            (change.before, change.after, self.walked(change.before, change.after))
            for change in decision.changes
            if isinstance(change.before, BulkJob)
            and isinstance(change.after, BulkJob)
            and isinstance(operation, Advance)
        ]
        view.advance(decision.changes)
        for task_id, task in before.items():
            now = view.tasks.get(task_id, task)
            if tags_of(now) != tags_of(task):
                for meant in self.meant.values():
                    meant.discard(task_id)  # No walk by tag promises anything of it.
        assert len(walks) <= 1
        for job, after, ids in walks:
            self.step_is_right(job, after, [before[each] for each in ids], decision)
        assert not any(map(task_fault, view.tasks.values()))
        assert not any(item.fault for item in view.items.values())
        return decision.outcome

    def walked(self, job: BulkJob, after: BulkJob) -> list[str]:
        """Return the tasks that a step has come to."""
        rows = self.view.walk("acme", job.select.tags, only=job.select.only, after=job.walked)
        return [task_id for _, task_id in takewhile(lambda row: row[0] <= after.walked, rows)]

    def step_is_right(
        self, job: BulkJob, after: BulkJob, looked: list[Task], decision: Decision
    ) -> None:
        """Check that a step judges each task once, and changes those it is about as it must."""
        judged = self.judged[job.id]
        assert not {task.id for task in looked} & set(judged)
        judged += [task.id for task in looked]
        about = [
            task
            for task in looked
            if is_meant(job.select, task) and task.created_ms <= job.until_ms
        ]
        changed = [task for task in about if self.is_as_said(job, task)]
        assert len(looked) == after.looked - job.looked <= LOOKED_MAX
        assert len(about) == after.selected - job.selected
        assert len(changed) == after.changed - job.changed <= CHANGED_MAX
        theirs = {task.id for task in changed}
        others = [
            change.before
            for change in decision.changes
            if isinstance(change, TaskChange)
            and change.before is not None
            and change.before.id not in theirs
            and change.before in looked
        ]
        # A key that has become free goes to one that waits, which no action has to name.
        assert all(task.state in WAITING for task in others)
        if after.ended_ms:
            self.meant[job.id] &= self.view.tasks.keys() | set(judged)
            assert self.meant.pop(job.id) <= set(judged)
            records = [
                change.after
                for change in decision.changes
                if isinstance(change, ItemChange)
                and isinstance(change.after, Audit)
                and change.after.target == job.id
            ]
            assert bool(after.changed) == len(records)

    def is_as_said(self, job: BulkJob, task: Task) -> bool:
        """Return whether the action is for a task as it was, which is then as it says."""
        now = self.view.tasks.get(task.id)
        action = job.action
        match action.kind:
            case ActionKind.DELETE:
                assert task.state.terminal == (now is None)
                return now is None
            case ActionKind.CANCEL if not task.state.terminal:
                assert now is not None
                said = now.more.cancelling if now.more is not None else None
                assert (State.FAILED, "CANCELLED", job.id) == (now.state, now.error, now.ended_by)
                assert action.reason == (said.reason if said is not None else "")
                return True
            case ActionKind.REQUEUE if task.state is State.DEAD:
                assert now is not None
                if task.more is not None and task.more.unique and now.state is State.DEAD:
                    return False  # Another one holds its key.
                assert now.state in (State.READY, State.HELD)
                assert job.id == now.history[-1].request
                return True
            case ActionKind.PRIORITY if task.state in WAITING and task.priority != 7:
                assert now is not None
                is_open = task.command != "tiers" or task.tenant != "acme"
                assert (7 if is_open else task.priority) == now.priority
                assert now.state in WAITING
                return is_open
            case ActionKind.RUN_NOW if task.state is State.DELAYED:
                assert now is not None
                assert now.state in (State.READY, State.HELD)
                return True
            case ActionKind.TAG:
                assert now is not None
                assert now.more is not None
                before = dict(task.more.tags) if task.more is not None else {}
                wanted = {k: v for k, v in before.items() if k not in action.remove}
                wanted |= dict(action.put)
                assert wanted == dict(now.more.tags)
                return wanted != before
            case _:
                return False


def is_walked(select: Selection, task: Task) -> bool:
    """Return whether the walk of a selection comes to a task: all tasks, or those with its tags."""
    tags, low = set(select.tags), select.only.created_from_ms
    has_them = task.more is not None and tags <= set(task.more.tags)
    return not tags or (task.tenant == "acme" and has_them and task.created_ms >= low)


def is_meant(select: Selection, task: Task) -> bool:
    """Return whether a selection of the tenant `acme` is about a task."""
    more, only = task.more, select.only
    wants = {
        task.tenant == "acme",
        select.queue in ("", task.command.lower()),
        not select.states or task.state in select.states,
        set(select.tags) <= set(more.tags if more is not None else ()),
        not only.group or (more is not None and more.member is not None),
        task.created_ms >= only.created_from_ms,
        not only.created_before_ms or task.created_ms < only.created_before_ms,
    }
    return wants == {True}


def unreadable() -> None:
    """Every record can be read."""
    raise AssertionError


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=12, deadline=None)
def test_a_job_judges_each_task_once_and_changes_what_it_is_about(seed: int) -> None:
    """Whatever happens between its steps; and the rows are those that follow from the state."""
    world = World(seed)
    world.live(80)

    assert recomputed(world.view) == dict(world.store.scan(b"codeq/", b"codeq0", 10**6))
