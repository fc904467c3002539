"""Graphing: dependents are told of every end, whichever message comes first."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType

from msgspec.structs import replace

from codeq_cluster.core.arrival import Arrival
from codeq_cluster.core.bulk import STEP_MS, ActionKind, BulkAction, StartBulk
from codeq_cluster.core.decide import decide
from codeq_cluster.core.dependencies import (
    ASK_AGAIN_MS,
    DEPENDENCY_UNKNOWN,
    EDGES_MAX,
    GRACE_MS,
    INPUT_BYTES_MAX,
    INPUTS_BYTES_MAX,
    WALKED_BYTES_MAX,
    WALKED_MAX,
    CreateDependent,
    CreateGraph,
    Dependencies,
    Dependency,
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
    arriving,
    restored,
    told,
)
from codeq_cluster.core.faults import fault
from codeq_cluster.core.grace import AskCancel
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import (
    Abandon,
    Advance,
    Cancel,
    Claim,
    Delete,
    Import,
    Operation,
    Requeue,
    Submit,
    UndoRequeue,
)
from codeq_cluster.core.outcomes import Created, GraphStands, Outcome, Rejected, Rejection
from codeq_cluster.core.relays import Effect, Relay, Relayed, TakeRelays
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.selecting import Selection
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import More, State, Task
from tests.fakes.dict_view import DictView

SHARDS = 2
RULES = LifetimeRules(shards=SHARDS)
PARENT, AWAY = (
    next(name for name in map(str, range(99)) if shard_of(name, SHARDS) == shard)
    for shard in range(SHARDS)
)
HERE, OTHER, *MANY = (name for name in map(str, range(100, 999)) if shard_of(name, SHARDS) == 0)


def _task(task_id: str, *, command: str = "render") -> Create:
    return Create(id=task_id, tenant="acme", command=command, payload="1", max_attempts=1)


def _after(task_id: str, *parents: str, terms: Terms = Terms()) -> CreateDependent:  # noqa: B008
    needs = tuple(Need(parent=each, name=each, terms=terms) for each in parents)
    return CreateDependent(Node(_task(task_id), needs))


class Cluster:
    """Two shards whose relays arrive when a test says so; the parent is on the first one."""

    def __init__(self) -> None:
        self.views = [DictView(now_ms=1_000_000) for _ in range(SHARDS)]
        self.sent: set[str] = set()
        self.ask(_task(PARENT))

    def ask(self, operation: Operation, shard: int = 0) -> Outcome:
        """Decide an operation on a shard."""
        view = self.views[shard]
        decision = decide(view, operation, RULES)
        view.advance(decision.changes)
        return decision.outcome

    def end_parent(self, *, body: str = "7") -> None:
        """Complete the parent, and walk its edges."""
        self.ask(
            Claim(request="c", tenant="acme", worker="w", commands=(), count=1, lease_ms=60_000)
        )
        self.ask(
            Submit(request="s", id=PARENT, tenant="acme", worker="w", status="COMPLETED", body=body)
        )
        self.walk()

    def walk(self) -> int:
        """Let everything that is due happen on every shard; return in how many steps."""
        steps = 0
        for shard, view in enumerate(self.views):
            while view.lapsed(1):
                self.ask(Advance(count=1000), shard)
                steps += 1
        return steps

    def pass_ms(self, passed_ms: int) -> None:
        """Let time pass."""
        for view in self.views:
            view.now_ms += passed_ms
        self.walk()

    def relays(self, origin: int) -> list[Relay]:
        """Return what a shard has not sent, in its order."""
        found = [each for each in self.views[origin].items.values() if isinstance(each, Relay)]
        waiting = [each for each in found if each.id not in self.sent]
        return sorted(waiting, key=lambda relay: relay.number)

    def deliver(self, origin: int) -> list[Effect]:
        """Send what a shard has for the other one."""
        relays = self.relays(origin)
        for relay in relays:
            self.sent.add(relay.id)
            self.take(origin, relay.number, relay.effect)
        return [relay.effect for relay in relays]

    def take(self, origin: int, number: int, *effects: Effect) -> None:
        """Let the other shard take some relays, whatever it has taken before."""
        relays = tuple(Relayed(number + place, each) for place, each in enumerate(effects))
        self.ask(TakeRelays(origin=origin, after=0, relays=relays), 1 - origin)

    def state(self, task_id: str) -> State:
        """Return the state of a task."""
        return self.task(task_id).state

    def die(self) -> None:
        """Let the parent become a dead letter, and walk its edges."""
        claim = Claim(request="c", tenant="acme", worker="w", commands=(), count=1, lease_ms=60_000)
        self.ask(claim)
        self.ask(Abandon(request="a", id=PARENT, tenant="acme", worker="w"))
        self.walk()

    def requeue(self, task_id: str, request: str) -> None:
        """Make a dead letter ready again, and walk its edges."""
        self.ask(Requeue(request=request, tenant="acme", ids=(task_id,), by="op"))

    def row(self, task_id: str) -> Dependencies:
        """Return what a task waits for."""
        view = self.views[shard_of(task_id, SHARDS)]
        found = view.items[ItemKind.DEPENDENCIES, "acme", task_id]
        assert isinstance(found, Dependencies)
        return found

    def task(self, task_id: str) -> Task:
        """Return a task."""
        return self.views[shard_of(task_id, SHARDS)].tasks[task_id]


def handed(task: Task) -> int:
    """Return the size of the results that a task has been handed."""
    assert task.more is not None
    return task.more.input_bytes


def test_a_watch_that_comes_after_the_end_is_answered() -> None:
    """The parent ends after the create and before the question arrives."""
    cluster = Cluster()
    cluster.ask(_after(AWAY, PARENT), 1)
    cluster.end_parent()
    assert State.HELD is cluster.state(AWAY)
    cluster.deliver(1)
    cluster.deliver(0)

    assert State.READY is cluster.state(AWAY)
    found = cluster.views[1].items[ItemKind.INPUT, "acme", f"{AWAY}.0"]
    assert isinstance(found, Input)
    assert ("COMPLETED", "7") == (found.ended.status, found.ended.body)


def test_a_watch_that_comes_after_the_deletion_is_answered_too() -> None:
    """Nobody knows how the parent has ended, so `else` applies."""
    cluster = Cluster()
    cluster.ask(_after(AWAY, PARENT), 1)
    cluster.end_parent()
    cluster.ask(Delete(request="d", tenant="acme", ids=(PARENT,), by="op"))
    cluster.deliver(1)
    cluster.deliver(0)

    assert State.FAILED is cluster.state(AWAY)
    assert cluster.task(AWAY).error.startswith(DEPENDENCY_UNKNOWN)


def test_a_dependent_asks_again_while_it_hears_nothing() -> None:
    """After a minute, then after two; the second question changes nothing at a parent that runs."""
    cluster = Cluster()
    cluster.ask(_after(AWAY, PARENT), 1)
    [first] = cluster.deliver(1)
    assert isinstance(first, Watch)
    cluster.pass_ms(ASK_AGAIN_MS)
    assert [first] == cluster.deliver(1)
    cluster.pass_ms(ASK_AGAIN_MS)
    assert [] == cluster.deliver(1)
    cluster.pass_ms(ASK_AGAIN_MS)

    assert [first] == cluster.deliver(1)
    assert 1 == sum(isinstance(each, Edge) for each in cluster.views[0].items.values())
    more = cluster.task(PARENT).more
    assert more is not None
    assert 1 == more.dependents


def test_a_walk_goes_on_in_steps_over_the_parents_deletion() -> None:
    """The parent is deleted after the first step; all are told how it ended, and no edge stays."""
    cluster = Cluster()
    names = MANY[: 2 * WALKED_MAX + 1]
    for name in names:
        cluster.ask(_after(name, PARENT))
    cluster.ask(Claim(request="c", tenant="acme", worker="w", commands=(), count=1, lease_ms=1))
    end = Submit(request="s", id=PARENT, tenant="acme", worker="w", status="COMPLETED", body="7")
    cluster.ask(end)
    cluster.ask(Advance(count=1000, leases_too=False))
    told_first = [name for name in names if cluster.state(name) is State.READY]
    cluster.ask(Delete(request="d", tenant="acme", ids=(PARENT,), by="op"))
    steps = cluster.walk()

    assert WALKED_MAX == len(told_first)
    assert 3 == steps
    assert {State.READY} == {cluster.state(name) for name in names}
    assert not [each for each in cluster.views[0].items.values() if isinstance(each, Edge | Walk)]


def test_the_walks_of_many_parents_share_steps_in_which_tenants_take_turns() -> None:
    """What one tenant has ended before delays another's dependents by no step."""
    cluster = Cluster()
    parents, after = MANY[: 2 * WALKED_MAX], MANY[2 * WALKED_MAX : 4 * WALKED_MAX]
    for parent, name in zip(parents, after, strict=True):
        cluster.ask(_task(parent))
        cluster.ask(_after(name, parent))
    cluster.ask(replace(_task(OTHER), tenant="b"))
    other = replace(_task(HERE), tenant="b")
    cluster.ask(CreateDependent(Node(other, (Need(parent=OTHER, name=OTHER),))))
    for parent in parents:
        cluster.ask(Cancel(request="x", id=parent, tenant="acme"))
    cluster.views[0].now_ms += 1
    cluster.ask(Cancel(request="x", id=OTHER, tenant="b"))
    cluster.ask(Advance(count=1000))
    told_first = [name for name in (HERE, *after) if cluster.state(name) is State.FAILED]
    steps = cluster.walk()

    assert WALKED_MAX == len(told_first)
    assert HERE in told_first
    assert 2 == steps
    assert {State.FAILED} == {cluster.state(name) for name in after}


def test_a_question_and_a_walk_of_one_step_know_of_each_other() -> None:
    """The dependent asks for the parent whose end is not told, and only for that."""
    cluster = Cluster()
    cluster.ask(_after(HERE, PARENT, AWAY))
    [relay] = cluster.relays(0)
    cluster.sent.add(relay.id)
    cluster.ask(
        Claim(request="c", tenant="acme", worker="w", commands=(), count=1, lease_ms=60_000)
    )
    cluster.ask(
        Submit(request="s", id=PARENT, tenant="acme", worker="w", status="COMPLETED", body="7")
    )
    cluster.views[0].now_ms += ASK_AGAIN_MS
    cluster.ask(Advance(count=1000))

    assert [Watch] == [type(relay.effect) for relay in cluster.relays(0)]
    assert [Verdict.MET, Verdict.WAITS] == [each.verdict for each in cluster.row(HERE).of]
    assert 2 == cluster.row(HERE).asked


def test_a_step_tells_no_more_than_fits_an_entry() -> None:
    """Sixteen results of 32 KiB are half a megabyte, whether of one parent or of many."""
    cluster = Cluster()
    names, parents, after = MANY[:40], MANY[40:80], MANY[80:120]
    for name in names:
        cluster.ask(_after(name, PARENT))
    body = '"' + "x" * 32_766 + '"'
    cluster.end_parent(body=body)
    for parent, name in zip(parents, after, strict=True):
        cluster.ask(_task(parent, command="other"))
        cluster.ask(_after(name, parent))
    cluster.ask(
        Claim(request="o", tenant="acme", worker="w", commands=("other",), count=40, lease_ms=9_000)
    )
    for parent in parents:
        cluster.ask(
            Submit(request="s", id=parent, tenant="acme", worker="w", status="COMPLETED", body=body)
        )
    cluster.ask(Advance(count=1000))

    assert 16 == [cluster.state(name) for name in after].count(State.READY)
    assert {State.READY} == {cluster.state(name) for name in names}
    assert 32_768 == handed(cluster.task(names[0]))
    assert 1 + 32_768 == cluster.task(names[0]).stored_bytes


def test_a_result_that_is_too_large_is_left_out() -> None:
    """Each has a bound, and so have those of one task together."""
    large = '"' + "x" * (INPUT_BYTES_MAX - 2) + '"'

    assert not told(status="COMPLETED", body=large, error="").left_out
    assert told(status="COMPLETED", body=large + " ", error="").left_out
    cluster = Cluster()
    many = INPUTS_BYTES_MAX // INPUT_BYTES_MAX + 1
    parents = [name for name in map(str, range(1000, 2000)) if shard_of(name, SHARDS) == 1][:many]
    cluster.ask(_after(HERE, *parents))
    ends = [
        Resolve(
            tenant="acme",
            parent=each,
            dependent=HERE,
            ended=Ended(status="COMPLETED", body=large),
        )
        for each in parents
    ]
    cluster.take(1, 1, *ends)
    found = [each for each in cluster.views[0].items.values() if isinstance(each, Input)]

    assert State.READY is cluster.state(HERE)
    assert [False] * (many - 1) + [True] == [each.ended.left_out for each in found]
    assert INPUTS_BYTES_MAX == handed(cluster.task(HERE))


def test_what_is_told_twice_changes_nothing() -> None:
    """A restored shard may send a relay again under another number."""
    cluster = Cluster()
    cluster.ask(_after(HERE, AWAY))
    resolve = Resolve(
        tenant="acme", parent=AWAY, dependent=HERE, ended=Ended(status="FAILED", error="e")
    )
    cluster.take(1, 1, resolve)
    before = dict(cluster.views[0].tasks)
    cluster.take(1, 2, replace(resolve, ended=Ended(status="COMPLETED", body="1")))
    cluster.take(1, 3, replace(resolve, dependent="999"))

    assert State.FAILED is cluster.state(HERE)
    assert before == cluster.views[0].tasks


def test_another_tenants_task_is_neither_watched_nor_resolved() -> None:
    """Both messages name the tenant."""
    cluster = Cluster()
    watch = Watch(tenant="other", parent=PARENT, dependent=AWAY)
    cluster.take(1, 1, watch)
    [told_] = cluster.deliver(0)
    cluster.ask(_after(AWAY, PARENT), 1)

    assert isinstance(told_, Resolve)
    assert "UNKNOWN" == told_.ended.status
    assert cluster.task(PARENT).more is None
    assert State.HELD is cluster.state(AWAY)


def test_a_parent_that_is_not_here_refuses_the_create() -> None:
    """So does one that has as many dependents as it may have."""
    cluster = Cluster()
    refused = cluster.ask(_after(HERE, next(n for n in "abcdef" if shard_of(n, SHARDS) == 0)))
    assert isinstance(refused, Rejected)
    assert Rejection.UNKNOWN_DEPENDENCY is refused.rejection
    view = cluster.views[0]
    view.tasks[PARENT] = replace(view.tasks[PARENT], more=More(dependents=EDGES_MAX))

    assert Rejected(Rejection.TOO_MANY, "dependents") == cluster.ask(_after(HERE, PARENT))
    assert HERE not in view.tasks


def test_a_graph_is_made_whole_or_not_at_all() -> None:
    """The second task's parent is unknown, so the first is not made."""
    cluster = Cluster()
    gone = next(name for name in "abcdef" if shard_of(name, SHARDS) == 0)
    nodes = (Node(_task(HERE)), _after(OTHER, gone).node)
    outcome = cluster.ask(CreateGraph(tenant="acme", shard=0, nodes=nodes))

    assert Rejected(Rejection.UNKNOWN_DEPENDENCY, gone) == outcome
    assert [PARENT] == list(cluster.views[0].tasks)


def test_each_task_of_a_graph_costs_the_same() -> None:
    """A look at all changes for each task would hold the leader for as long as their square."""

    def calls(ids: Sequence[str]) -> int:
        nodes = [
            Node(_task(each), tuple(Need(parent=of, name=of) for of in ids[max(0, n - 5) : n]))
            for n, each in enumerate(ids)
        ]
        graph = CreateGraph(tenant="acme", shard=0, nodes=tuple(nodes))
        count = 0

        def called(_frame: FrameType, event: str, _of: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(called)
        try:
            decided = decide(DictView(), graph, RULES)
        finally:
            sys.setprofile(None)
        assert isinstance(decided.outcome, GraphStands)
        assert ids == [task.id for task in decided.outcome.tasks]
        return count

    assert 2.5 * calls(MANY[:100]) > calls(MANY[:200]) > 200


def test_a_parent_that_has_ended_lets_a_task_go_at_once() -> None:
    """One that cannot be as it must ends it in the next entry, with its result and all."""
    cluster = Cluster()
    cluster.end_parent()
    made = cluster.ask(_after(HERE, PARENT))
    assert isinstance(made, Created)
    assert State.READY is made.task.state
    ended = cluster.ask(_after(OTHER, PARENT, terms=Terms(run_if=RunIf.FAILED)))
    assert isinstance(ended, Created)
    assert State.HELD is ended.task.state
    cluster.walk()

    assert State.FAILED is cluster.state(ended.task.id)
    assert cluster.views[0].result(ended.task.id) is not None


def test_a_cancelled_parent_takes_its_dependents_along() -> None:
    """And theirs, step by step; the edges stay until the parents are deleted."""
    cluster = Cluster()
    cluster.ask(_after(HERE, PARENT))
    cluster.ask(_after(OTHER, HERE))
    cluster.ask(Cancel(request="x", id=PARENT, tenant="acme"))
    cluster.walk()

    assert [State.FAILED] * 2 == [cluster.state(HERE), cluster.state(OTHER)]
    assert f"DEPENDENCY_FAILED: {HERE}" == cluster.task(OTHER).error
    edges = [each for each in cluster.views[0].items.values() if isinstance(each, Edge)]
    assert [True, True] == [each.done for each in edges]


def test_a_second_cancel_takes_no_dependent_out_of_the_first() -> None:
    """Nor does one by a bulk job, whatever reason it gives."""
    cluster = Cluster()
    cluster.ask(_after(HERE, PARENT, terms=Terms(run_if=RunIf.ENDED)))
    cluster.ask(
        Claim(request="c", tenant="acme", worker="w", commands=(), count=1, lease_ms=60_000)
    )
    cluster.ask(AskCancel(request="x", id=PARENT, tenant="acme", grace_ms=30_000, dependents=True))
    cluster.ask(
        StartBulk(
            request="b",
            tenant="acme",
            id="j",
            by="op",
            select=Selection(queue="render", states=(State.LEASED,)),
            action=BulkAction(kind=ActionKind.CANCEL, reason="clean-up"),
            leads=True,
        )
    )
    cluster.pass_ms(10 * STEP_MS)
    cluster.pass_ms(10 * STEP_MS)

    assert [State.FAILED] * 2 == [cluster.state(PARENT), cluster.state(HERE)]


def test_a_dead_letter_holds_until_it_is_requeued_or_deleted() -> None:
    """The dependent knows of both; a requeue that is taken back leaves it as it was."""
    cluster = Cluster()
    cluster.ask(_after(HERE, PARENT))
    cluster.die()
    assert "DEAD" == cluster.row(HERE).of[0].status
    cluster.requeue(PARENT, "r.1")
    cluster.walk()
    assert "" == cluster.row(HERE).of[0].status
    cluster.ask(UndoRequeue(request="u", tenant="acme", ids=(PARENT,), by="op", requeue="r"))
    cluster.walk()
    assert "DEAD" == cluster.row(HERE).of[0].status
    assert State.HELD is cluster.state(HERE)
    cluster.ask(Delete(request="d", tenant="acme", ids=(PARENT,), by="op"))
    cluster.walk()

    assert State.FAILED is cluster.state(HERE)
    assert f"DEPENDENCY_FAILED: {PARENT}" == cluster.task(HERE).error


def test_a_dead_letter_that_is_requeued_before_the_question_arrives_is_not_taken_for_dead() -> None:
    """Its shard was asked before the create; the dependent shows what is true by now."""
    cluster = Cluster()
    cluster.die()
    dead = Need(parent=PARENT, name=PARENT, ended=told(status="DEAD", body="", error="lost"))
    cluster.ask(CreateDependent(Node(_task(AWAY), (dead,))), 1)
    cluster.requeue(PARENT, "r")
    cluster.walk()
    cluster.deliver(1)
    cluster.deliver(0)
    assert "" == cluster.row(AWAY).of[0].status
    cluster.end_parent()
    cluster.deliver(0)

    assert State.READY is cluster.state(AWAY)


def test_a_question_in_the_entry_that_deletes_a_parent_gets_its_end() -> None:
    """The dependent asks again for all parents, also for the one whose retention is over then."""
    cluster = Cluster()
    cluster.ask(_task(AWAY), 1)
    cluster.ask(_after(HERE, PARENT, AWAY))
    cluster.die()
    cluster.views[0].now_ms = cluster.task(PARENT).retain_until_ms
    assert cluster.row(HERE).expires_ms <= cluster.views[0].now_ms
    cluster.ask(Advance(count=1000))

    assert PARENT not in cluster.views[0].tasks
    assert f"DEPENDENCY_FAILED: {PARENT}" == cluster.task(HERE).error


def test_a_question_that_overtakes_the_walk_of_a_deleted_parent_gets_its_end() -> None:
    """While others are still being told, nobody hears that the parent is unknown."""
    cluster = Cluster()
    cluster.ask(_after(HERE, PARENT))
    cluster.ask(_after(AWAY, PARENT), 1)
    cluster.ask(Claim(request="c", tenant="acme", worker="w", commands=(), count=1, lease_ms=1))
    cluster.ask(Submit(request="s", id=PARENT, tenant="acme", worker="w", status="COMPLETED"))
    cluster.ask(Delete(request="d", tenant="acme", ids=(PARENT,), by="op"))
    cluster.deliver(1)
    cluster.walk()
    cluster.deliver(0)

    assert [State.READY] * 2 == [cluster.state(name) for name in (HERE, AWAY)]


def test_a_dead_dependent_goes_through_its_dependencies_again() -> None:
    """Its parent has failed as a dead letter, and is completed by now."""
    cluster = Cluster()
    terms = Terms(on_dead=OnDead.FAIL, otherwise=Otherwise.DEAD_LETTER)
    cluster.ask(_after(HERE, PARENT, terms=terms))
    cluster.die()
    assert State.DEAD is cluster.state(HERE)
    cluster.requeue(HERE, "r")
    assert State.HELD is cluster.state(HERE)
    cluster.walk()
    assert State.DEAD is cluster.state(HERE)
    cluster.requeue(PARENT, "s")
    cluster.end_parent()
    cluster.requeue(HERE, "t")
    cluster.walk()

    assert State.READY is cluster.state(HERE)


def test_an_imported_task_waits_for_parents_that_come_behind_it() -> None:
    """It asks after a minute, and for an hour nobody says that they are gone."""
    cluster = Cluster()
    cluster.ask(_after(HERE, AWAY))
    arrival = Arrival(task=cluster.task(HERE), payload="1", dependencies=cluster.row(HERE))
    assert "" == fault(arrival)
    other = Cluster()
    other.ask(
        Import(request="i", tenant="acme", by="op", source="b", shards=SHARDS, tasks=(arrival,))
    )
    assert State.HELD is other.state(HERE)
    for passed_ms, state in ((ASK_AGAIN_MS, State.HELD), (GRACE_MS, State.FAILED)):
        other.pass_ms(passed_ms)
        other.deliver(0)
        other.deliver(1)
        assert state is other.state(HERE)

    assert other.task(HERE).error.startswith(DEPENDENCY_UNKNOWN)


def test_a_restored_task_asks_at_once() -> None:
    """A row that waits for nothing stays as it is; a dead letter may have been revived since."""
    waits = Dependencies(tenant="", id="1", of=(Dependency(parent="2", name="2"),), asked=3)
    met = replace(waits, of=(Dependency(parent="2", name="2", status="COMPLETED"),))
    held = replace(waits, of=(Dependency(parent="2", name="2", status="DEAD"),))
    asks = replace(waits, asked=0, expires_ms=1)

    assert [asks, met, asks] == [restored(row) for row in (waits, met, held)]
    [arrived] = arriving(held, tenant="", now_ms=1).of
    assert "" == arrived.status


def test_each_term_has_its_verdict() -> None:
    """A dead letter has failed, but what must succeed waits for it unless it says otherwise."""
    waits, met, never = Verdict.WAITS, Verdict.MET, Verdict.IMPOSSIBLE
    statuses = ("", "COMPLETED", "FAILED", "CANCELLED", "DEAD", "DELETED", "UNKNOWN")
    verdicts = {
        Terms(): (waits, met, never, never, waits, never, never),
        Terms(on_dead=OnDead.FAIL): (waits, met, never, never, never, never, never),
        Terms(run_if=RunIf.FAILED): (waits, never, met, met, met, met, never),
        Terms(run_if=RunIf.ENDED): (waits, met, met, met, met, met, never),
    }
    for terms, expected in verdicts.items():
        assert expected == tuple(map(terms.verdict, statuses))


def test_a_graph_is_told_of_ended_parents_in_steps() -> None:
    """A result is copied for each of its tasks, and all copies would not fit one entry."""
    cluster = Cluster()
    cluster.end_parent(body=f'"{"x" * (INPUT_BYTES_MAX - 2)}"')
    needs = (Need(parent=PARENT, name="p"),)
    ids = [HERE, OTHER, *MANY[:38], AWAY]
    create = CreateGraph(
        tenant="acme", shard=0, nodes=tuple(Node(_task(each), needs) for each in ids)
    )
    sizes = []
    for operation in (create, *[Advance(count=1000)] * 9):
        decision = decide(cluster.views[0], operation, RULES)
        cluster.views[0].advance(decision.changes)
        inputs = [each.after for each in decision.changes if isinstance(each.after, Input)]
        sizes.append(sum(each.ended.size for each in inputs))
    for origin in (0, 1, 0):
        cluster.deliver(origin)
    cluster.walk()

    assert max(sizes) <= WALKED_BYTES_MAX + 2 * INPUT_BYTES_MAX
    assert {State.READY} == {cluster.state(each) for each in ids}
    assert not [each for each in cluster.views[0].items.values() if isinstance(each, Walk)]


def test_a_graph_of_a_parent_that_took_its_dependents_along_is_not_taken() -> None:
    """However much its tasks are told of others: it was made after the end, and knows of it."""
    cluster = Cluster()
    cluster.end_parent(body=f'"{"x" * (INPUT_BYTES_MAX - 2)}"')
    taker, *many, last = MANY[:20]
    cluster.ask(_task(taker))
    cluster.ask(AskCancel(request="x", id=taker, tenant="acme", grace_ms=0, dependents=True))
    nodes = [Node(_task(each), (Need(parent=PARENT, name="p"),)) for each in many]
    ended = Terms(run_if=RunIf.ENDED)
    nodes.append(Node(_task(last), (Need(parent=taker, name="t", terms=ended),)))
    cluster.ask(CreateGraph(tenant="acme", shard=0, nodes=tuple(nodes)))
    cluster.walk()

    assert {State.READY} == {cluster.state(each) for each in (*many, last)}


def test_a_deleted_task_leaves_no_row() -> None:
    """What it waited for and what was handed to it go with it."""
    cluster = Cluster()
    cluster.end_parent()
    cluster.ask(_after(HERE, PARENT))
    cluster.ask(Cancel(request="x", id=HERE, tenant="acme"))
    cluster.ask(Delete(request="d", tenant="acme", ids=(HERE, PARENT), by="op"))
    cluster.walk()

    assert not [
        each
        for each in cluster.views[0].items.values()
        if isinstance(each, Dependencies | Edge | Input | Walk)
    ]
