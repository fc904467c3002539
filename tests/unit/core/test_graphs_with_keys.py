"""Graphs with keys: a task whose key belongs on another shard is sent there, edges and all."""

from __future__ import annotations

from codeq_cluster.core.decide import decide
from codeq_cluster.core.dependencies import (
    ASK_AGAIN_MS,
    DEPENDENCY_UNKNOWN,
    SENT_GRACE_MS,
    CreateGraph,
    Edge,
    Need,
    Node,
    Resolve,
    Watch,
)
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import Advance, Claim, Operation, Submit
from codeq_cluster.core.outcomes import GraphStands, Outcome
from codeq_cluster.core.relays import Relay, Relayed, RelayedTask, RelaysTaken, TakeRelays
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.sharding import shard_of, shard_of_lane, with_shard
from codeq_cluster.core.task import State, Task
from tests.fakes.dict_view import DictView

SHARDS = 3
RULES = LifetimeRules(shards=SHARDS)
HOME, *AWAY = range(SHARDS)
KEYS = {
    shard_of_lane("acme", "render", name, SHARDS): name for name in (f"k{n}" for n in range(99))
}


def _node(name: str, shard: int, *parents: str) -> Node:
    """Return a task of a shard, with a key if that is not the graph's; `parents` are ids."""
    create = Create(
        id=_id(name, shard),
        tenant="acme",
        command="render",
        payload=f'"{name}"',
        key=KEYS[shard] if shard != HOME else "",
    )
    return Node(create, tuple(Need(parent=each, name=each) for each in parents))


def _id(name: str, shard: int) -> str:
    return with_shard(f"{name}-0000", shards=SHARDS, wanted=shard)


class Cluster:
    """Three shards whose relays arrive when a test says so."""

    def __init__(self) -> None:
        self.views = [DictView(now_ms=1_000_000) for _ in range(SHARDS)]

    def ask(self, operation: Operation, shard: int = HOME) -> Outcome:
        """Decide an operation on a shard."""
        view = self.views[shard]
        decision = decide(view, operation, RULES)
        view.advance(decision.changes)
        return decision.outcome

    def create(self, *nodes: Node) -> GraphStands:
        """Create a graph, or repeat that."""
        outcome = self.ask(CreateGraph(tenant="acme", shard=HOME, nodes=nodes))
        assert isinstance(outcome, GraphStands)
        return outcome

    def waiting(self, origin: int, to: int) -> list[Relay]:
        """Return what a shard has for another one, in its order."""
        found = [each for each in self.views[origin].items.values() if isinstance(each, Relay)]
        found = [each for each in found if each.to == to and not each.taken_ms]
        return sorted(found, key=lambda relay: relay.number)

    def deliver(self, origin: int, to: int) -> None:
        """Send all of it, each relay by itself."""
        for relay in self.waiting(origin, to):
            sent = Relayed(relay.number, relay.effect, relay.created_ms)
            self.ask(TakeRelays(origin=origin, after=0, relays=(sent,)), to)
            names = ((relay.tenant, relay.id, relay.number),)
            self.ask(RelaysTaken(to=to, number=relay.number, relays=names), origin)

    def settle(self) -> None:
        """Deliver everything, and walk every edge."""
        pairs = [(a, b) for a in range(SHARDS) for b in range(SHARDS) if a != b]
        while any(self.waiting(*pair) for pair in pairs) or self._walk():
            for pair in pairs:
                self.deliver(*pair)

    def _walk(self) -> bool:
        due = [shard for shard, view in enumerate(self.views) if view.lapsed(1)]
        for shard in due:
            self.ask(Advance(count=1000), shard)
        return bool(due)

    def complete(self, task_id: str) -> None:
        """Claim a task, which must be the only one that is ready on its shard, and end it."""
        shard = shard_of(task_id, SHARDS)
        claim = Claim(request="c", tenant="acme", worker="w", commands=(), count=1, lease_ms=60_000)
        self.ask(claim, shard)
        end = Submit(
            request="s", id=task_id, tenant="acme", worker="w", status="COMPLETED", body="7"
        )
        self.ask(end, shard)

    def task(self, task_id: str) -> Task:
        """Return a task."""
        return self.views[shard_of(task_id, SHARDS)].tasks[task_id]

    def pass_ms(self, passed_ms: int) -> None:
        """Let time pass on every shard."""
        for view in self.views:
            view.now_ms += passed_ms


def test_tasks_of_three_shards_go_one_after_the_other() -> None:
    """The graph is one entry; its tasks with keys follow, and wait as they were told to."""
    cluster = Cluster()
    first, second, third = _id("a", AWAY[0]), _id("b", HOME), _id("c", AWAY[1])
    stands = cluster.create(
        _node("a", AWAY[0]), _node("b", HOME, first), _node("c", AWAY[1], first, second)
    )
    cluster.settle()

    assert [first, second, third] == [task.id for task in stands.tasks]
    assert [State.READY, State.HELD, State.HELD] == [task.state for task in stands.tasks]
    for done, states in (
        (first, [State.DONE, State.READY, State.HELD]),
        (second, [State.DONE, State.DONE, State.READY]),
    ):
        cluster.complete(done)
        cluster.settle()
        assert states == [cluster.task(each).state for each in (first, second, third)]


def test_a_parent_may_arrive_after_its_dependent() -> None:
    """The lines to two shards have nothing to do with each other."""
    cluster = Cluster()
    parent, dependent = _id("a", AWAY[0]), _id("b", AWAY[1])
    cluster.create(_node("h", HOME), _node("a", AWAY[0]), _node("b", AWAY[1], parent))
    cluster.deliver(HOME, AWAY[1])
    cluster.deliver(AWAY[1], AWAY[0])
    cluster.deliver(AWAY[0], AWAY[1])
    assert State.HELD is cluster.task(dependent).state
    cluster.settle()

    edges = [each for each in cluster.views[AWAY[0]].items.values() if isinstance(each, Edge)]
    assert [dependent] == [each.dependent for each in edges]
    cluster.complete(parent)
    cluster.settle()
    assert State.READY is cluster.task(dependent).state


def test_an_end_that_is_told_too_early_is_told_again() -> None:
    """The parent runs before its dependent arrives, which then asks."""
    cluster = Cluster()
    parent, dependent = _id("a", AWAY[0]), _id("b", AWAY[1])
    cluster.create(_node("h", HOME), _node("a", AWAY[0]), _node("b", AWAY[1], parent))
    cluster.deliver(HOME, AWAY[0])
    cluster.complete(parent)
    cluster.ask(Advance(count=1000), AWAY[0])
    told = [each.effect for each in cluster.waiting(AWAY[0], AWAY[1])]
    assert [Resolve] == list(map(type, told))
    cluster.deliver(AWAY[0], AWAY[1])
    cluster.settle()

    assert State.READY is cluster.task(dependent).state


def test_a_parent_that_never_comes_is_given_up_after_a_day() -> None:
    """So nothing waits for ever behind a shard that was lost."""
    cluster = Cluster()
    parent, dependent = _id("a", AWAY[0]), _id("b", AWAY[1])
    cluster.create(_node("h", HOME), _node("a", AWAY[0]), _node("b", AWAY[1], parent))
    cluster.deliver(HOME, AWAY[1])
    states = []
    for passed_ms in (0, ASK_AGAIN_MS, SENT_GRACE_MS):
        cluster.pass_ms(passed_ms)
        cluster.ask(Advance(count=1000), AWAY[1])
        cluster.deliver(AWAY[1], AWAY[0])
        cluster.deliver(AWAY[0], AWAY[1])
        states.append(cluster.task(dependent).state)

    assert [State.HELD, State.HELD, State.FAILED] == states
    assert cluster.task(dependent).error.startswith(DEPENDENCY_UNKNOWN)


def test_a_repetition_names_what_is_to_be_read_elsewhere() -> None:
    """Tasks that are on their way are told as they will begin; nothing is made twice."""
    cluster = Cluster()
    nodes = _node("h", HOME), _node("a", AWAY[0]), _node("b", AWAY[1], _id("a", AWAY[0]))
    first = cluster.create(*nodes)
    again = cluster.create(*nodes)
    cluster.deliver(HOME, AWAY[0])
    later = cluster.create(*nodes)
    cluster.settle()

    assert ([*first.tasks], ()) == ([*again.tasks], again.ids)
    assert tuple(node.create.id for node in nodes) == later.ids
    assert [_id("h", HOME), _id("b", AWAY[1])] == [task.id for task in later.tasks]
    assert [1, 1, 1] == [len(view.tasks) for view in cluster.views]


def test_a_task_is_sent_before_the_questions_after_it() -> None:
    """Both go the same way, so a question never meets a parent that is behind it."""
    cluster = Cluster()
    parent = _id("a", AWAY[0])
    cluster.create(_node("b", HOME, parent), _node("a", AWAY[0]))
    effects = [each.effect for each in cluster.waiting(HOME, AWAY[0])]

    assert [RelayedTask, Watch] == list(map(type, effects))
