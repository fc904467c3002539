"""Graphs over the deaths of leaders: the parent on one shard, its dependent on the other."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.requests.graphs import Asked, AskedNode
from codeq_cluster.broker.service import Broker
from codeq_cluster.broker.values import Caller, NewResult
from codeq_cluster.codec import entries, keyspace, records
from codeq_cluster.codec.levels import LEVEL
from codeq_cluster.core.dependencies import Dependencies, Input
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.outcomes import Claimed, Created, Submitted
from codeq_cluster.core.sharding import shard_of, shard_of_lane
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import State, Task
from tests.simulator.brokers import SimBrokers
from tests.simulator.invariants import InvariantBroken

from .moves import PATIENCE_S, SHARDS, STEP_S, asked_closely, at_rest, lead


@pytest.fixture
def brokers(brokers: SimBrokers) -> SimBrokers:
    """Return three nodes."""
    brokers.client_s = lambda: STEP_S / 4
    return brokers


def claimed(brokers: SimBrokers, command: str) -> Claimed:
    """Claim a task."""
    return asked_closely(
        brokers,
        "C",
        lambda broker: broker.claim(
            "", "ann", commands=(command,), count=1, lease_ms=60_000, wait_s=0, timeout_s=4
        ),
    )


def leased_parent(brokers: SimBrokers) -> Task:
    """Create a task and lease it; A leads its shard then, and B the other one."""
    new = [Create(command="parent", payload="{}")]
    asked_closely(brokers, "A", lambda broker: broker.create("", new, timeout_s=4))
    [parent] = claimed(brokers, "parent").tasks
    home = shard_of(parent.id, SHARDS)
    lead(brokers, home, "A")
    lead(brokers, 1 - home, "B")
    return parent


def create_child(brokers: SimBrokers, parent: Task) -> None:
    """Ask for a task on the other shard that waits for the parent, until its entry is applied."""
    home = shard_of(parent.id, SHARDS)
    key = next(
        key for key in map(str, range(99)) if shard_of_lane("", "child", key, SHARDS) != home
    )
    child = AskedNode(Create(command="child", payload="{}", key=key), (Asked(parent.id),))

    async def ask(broker: Broker) -> Created:
        made = await broker.graphs.create_one(Caller("", "p", deadline_in(4)), child)
        assert isinstance(made, Created)
        return made

    brokers.outside.create_task(brokers.request("B", ask, give_up_s=PATIENCE_S)).add_done_callback(
        lambda work: work.exception()
    )
    assert brokers.run_until(lambda: brokers.relays.count == 1, seconds=PATIENCE_S, step_s=STEP_S)


def end(brokers: SimBrokers, node_id: str, task: Task) -> None:
    """End a task."""
    new = NewResult(task_id=task.id, status="COMPLETED", body="7")
    [answer] = asked_closely(
        brokers, node_id, lambda broker: broker.submit("", "ann", (new,), timeout_s=4)
    )
    assert isinstance(answer, Submitted)


def dependents(brokers: SimBrokers) -> list[Task]:
    """Return the tasks that wait for others, or did, as node C has them."""
    rows = [
        row
        for state in brokers.nodes["C"].states
        for row in state.scan(*keyspace.prefix_range(keyspace.TASK_PREFIX), 9999)
    ]
    tasks = [records.decode_task(value) for _, value in rows]
    return [task for task in tasks if task.more is not None and task.more.depends]


def goes(brokers: SimBrokers) -> bool:
    """Return whether the dependent may run."""
    return [task.state for task in dependents(brokers)] == [State.READY]


def cut_off(brokers: SimBrokers, one: str, other: str) -> None:
    """Let two nodes hear nothing of each other."""
    brokers.cut({(one, other), (other, one)})


def test_a_parent_that_ends_before_it_is_watched_lets_its_dependent_go(
    brokers: SimBrokers,
) -> None:
    """The question waits for its shard; the leaders die before it leaves and when it arrives."""
    parent = leased_parent(brokers)
    create_child(brokers, parent)
    cut_off(brokers, "A", "B")
    end(brokers, "A", parent)
    assert not goes(brokers)
    assert brokers.relays.waiting
    brokers.crash("B", power=True)
    brokers.cut(set())
    brokers.run(2)
    brokers.start("B")
    assert brokers.run_until(lambda: goes(brokers), seconds=PATIENCE_S)
    at_rest(brokers)
    [task], [inputs] = claimed(brokers, "child").tasks, claimed_inputs(brokers)

    assert inputs.parent == parent.id
    assert "7" == inputs.ended.body
    assert [task.id] == [each.id for each in dependents(brokers)]


def claimed_inputs(brokers: SimBrokers) -> list[Input]:
    """Return what was handed to the dependents, as node C has it."""
    prefix = keyspace.item_prefix(ItemKind.INPUT)
    rows = [
        row
        for state in brokers.nodes["C"].states
        for row in state.scan(*keyspace.prefix_range(prefix), 9999)
    ]
    items = [records.decode_item(value) for _, value in rows]
    return [item for item in items if isinstance(item, Input)]


def test_a_leader_that_dies_after_the_end_leaves_the_walk_to_the_next(brokers: SimBrokers) -> None:
    """The end is committed, and with it the walk; the dependent goes once."""
    parent = leased_parent(brokers)
    create_child(brokers, parent)
    at_rest(brokers)
    made = brokers.relays.count
    new = NewResult(task_id=parent.id, status="COMPLETED", body="7")
    brokers.outside.create_task(
        brokers.request(
            "A", lambda broker: broker.submit("", "ann", (new,), timeout_s=4), give_up_s=PATIENCE_S
        )
    ).add_done_callback(lambda work: work.exception())
    assert brokers.run_until(
        lambda: any(each.state is State.DONE for each in tasks(brokers)),
        seconds=PATIENCE_S,
        step_s=STEP_S,
    )
    brokers.crash("A", power=True)
    assert brokers.run_until(lambda: goes(brokers), seconds=PATIENCE_S)
    brokers.start("A")
    at_rest(brokers)

    assert made + 1 == brokers.relays.count


def tasks(brokers: SimBrokers) -> list[Task]:
    """Return all tasks, as node A has them."""
    return [
        records.decode_task(value)
        for state in brokers.nodes["A"].states
        for _, value in state.scan(*keyspace.prefix_range(keyspace.TASK_PREFIX), 9999)
    ]


def test_w19_a_task_that_nobody_will_tell(brokers: SimBrokers) -> None:
    """An entry by which a dependent asks no more is found before it is applied."""
    parent = leased_parent(brokers)
    create_child(brokers, parent)
    at_rest(brokers)
    [task] = dependents(brokers)
    shard = shard_of(task.id, SHARDS)
    key = keyspace.item(ItemKind.DEPENDENCIES, "", task.id)
    [row] = [value for state in brokers.nodes["C"].states if (value := state.get(key))]
    item = records.decode_item(row)
    assert isinstance(item, Dependencies)
    rows: dict[bytes, bytes | None] = {key: records.encode(replace(item, expires_ms=0))}
    watch = brokers.watches[shard]
    payload = entries.encode(entries.Entry(1, 1, 1, 1, rows), level=LEVEL)

    with pytest.raises(InvariantBroken, match=r"^W19 "):
        watch.applied("A", max(watch._entries) + 1, 1, payload)
